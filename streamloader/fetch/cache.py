"""Blocks that were read and verified once, kept on a local disk for the epochs to come."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from storage_backends import NotFound, StorageError, Store, Truncated, open_store
from streamloader.errors import ConfigError
from streamloader.fetch.cache_files import (
    block_name,
    cached_blocks,
    remove_blocks,
    remove_stale,
    require_folder,
    unfinished_name,
)
from streamloader.monitor import Counters
from streamloader.sizes import parse_size

_WRITE_THREADS = 2
#: A limit that is reached is looked at again no sooner: other processes may have made room.
_RESCAN_S = 10.0
#: What is removed at once beyond the need, as a share of the limit: scanning is not free.
_ROOM_SHARE = 0.02

logger = logging.getLogger("streamloader.fetch")


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """Where blocks are kept and how much of them; ConfigError if that cannot be.

    Attributes:
        folder: made when the first block is kept.
        limit_bytes: bound of the blocks in the folder, of all data sets; None: the disk's.
    """

    folder: str
    limit_bytes: int | None

    def __post_init__(self) -> None:
        require_folder(self.folder)

    @staticmethod
    def of(
        cache_dir: str | os.PathLike[str] | None, cache_limit: int | str | None
    ) -> CacheOptions | None:
        """From the arguments of a loader; None without a ``cache_dir``."""
        if cache_dir is None:
            if cache_limit is not None:
                raise ConfigError("cache_limit needs a cache_dir to limit")
            return None
        folder = os.fspath(cache_dir)
        if not folder or "://" in folder:
            raise ConfigError(f"cache_dir must be a folder of this machine, got {folder!r}")
        limit = None if cache_limit is None else parse_size(cache_limit, "cache_limit")
        return CacheOptions(os.path.abspath(folder), limit)


class BlockCache:
    """The cache of one data set; runs on one event loop, inside ``async with``.

    Every block of an epoch is read once, in an order that the next epoch does not repeat. So of
    the blocks of this data set, those that are there are worth as much as those that come, and
    stay; what a full cache gives up for them are blocks of other data sets, least recently used
    first, and blocks of this one that a whole epoch has not used.

    Any trouble with the disk ends the use of the cache with one warning, and never the run.

    Args:
        options: folder and limit.
        fingerprint: of the manifest.
        beside: fingerprints of data sets mixed with this one, whose blocks stay as its own do.
        counters: gets ``cache.hits``, ``cache.misses``, ``cache.bytes_read`` and
            ``cache.bytes_written``.
    """

    def __init__(
        self,
        options: CacheOptions,
        fingerprint: str,
        counters: Counters,
        *,
        beside: Collection[str] = (),
    ) -> None:
        self._root = options.folder
        self._limit_bytes = options.limit_bytes
        self._fingerprint = fingerprint
        self._in_use = frozenset([fingerprint, *beside])
        self._folder = os.path.join(options.folder, fingerprint)
        self._counters = counters
        self._store: Store = open_store(self._folder)
        self._threads = ThreadPoolExecutor(_WRITE_THREADS, "streamloader-cache")
        self._room = asyncio.Lock()
        self._held: set[str] = set()
        self._used_bytes = self._reserved_bytes = 0
        self._full_until = float("-inf")
        self._epochs: list[float] = []
        self._reads = self._writes = True

    async def __aenter__(self) -> BlockCache:
        await self._store.__aenter__()
        try:
            await self._in_thread(remove_stale, self._root)
            await self._in_thread(self._scan)
        except OSError as error:
            self._give_up(error, reads=False)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._store.close()
        self._threads.shutdown(wait=True)

    def begin_epoch(self) -> None:
        """A pass over the data set begins."""
        self._epochs = [*self._epochs[-1:], time.time()]

    async def read_into(
        self, shard: int, block: tuple[int, int], offset: int, view: memoryview
    ) -> bool:
        """Fills ``view`` from a block that is kept; False, with ``view`` undefined, if none is.

        Args:
            shard: number of the shard.
            block: its offset in the shard, and its bytes.
            offset: in the shard, of the first byte that is wanted.
            view: what to fill, with bytes of this block.
        """
        name = block_name(shard, *block)
        if not self._reads:
            return False
        try:
            await self._store.read_into(name, offset - block[0], view)
        except (NotFound, Truncated) as error:
            self._held.discard(name)
            if isinstance(error, Truncated):
                self.discard(shard, block)
            self._counters.add("cache.misses")
            return False
        except StorageError as error:
            self._give_up(error, reads=False)
            return False
        self._held.add(name)
        self._touch(name)
        self._counters.add("cache.hits")
        self._counters.add("cache.bytes_read", len(view))
        return True

    async def keep(self, shard: int, block: tuple[int, int], view: memoryview) -> None:
        """Keeps a verified block if there is room; ``view`` is not used after the return."""
        name = block_name(shard, *block)
        if not self._writes or name in self._held:
            return
        try:
            if not await self._reserve(len(view)):
                return
            try:
                await self._in_thread(self._write, name, view)
            finally:
                self._reserved_bytes -= len(view)
        except OSError as error:
            self._give_up(error, reads=True)
            return
        self._held.add(name)
        self._used_bytes += len(view)
        self._counters.add("cache.bytes_written", len(view))

    def discard(self, shard: int, block: tuple[int, int]) -> None:
        """Removes a block whose content is not what it should be."""
        name = block_name(shard, *block)
        self._held.discard(name)
        try:
            os.unlink(os.path.join(self._folder, name))
        except FileNotFoundError:
            return
        except OSError as error:
            self._give_up(error, reads=False)

    def _write(self, name: str, view: memoryview) -> None:
        """Under a name of its own first: no reader sees half a block."""
        os.makedirs(self._folder, exist_ok=True)
        unfinished = os.path.join(self._folder, unfinished_name())
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            try:
                done = 0
                while done < len(view):
                    done += os.write(descriptor, view[done:])
            finally:
                os.close(descriptor)
            os.rename(unfinished, os.path.join(self._folder, name))
        except BaseException:
            os.unlink(unfinished)
            raise

    async def _reserve(self, nbytes: int) -> bool:
        """Room for a block that is about to be written; False if it may have none."""
        async with self._room:
            if self._surplus(nbytes) > 0:
                now = time.monotonic()
                if now < self._full_until:
                    return False
                await self._in_thread(self._evict, nbytes)
                if self._surplus(nbytes) > 0:
                    self._full_until = now + _RESCAN_S
                    return False
            self._reserved_bytes += nbytes
            return True

    def _surplus(self, nbytes: int) -> int:
        """Bytes that must go before ``nbytes`` may come."""
        if self._limit_bytes is None:
            return 0
        return self._used_bytes + self._reserved_bytes + nbytes - self._limit_bytes

    def _evict(self, nbytes: int) -> None:
        assert self._limit_bytes is not None
        self._scan()
        if self._surplus(nbytes) <= 0:
            return
        # With two passes begun, what the first of them did not use is not used any more.
        own_before = self._epochs[0] if len(self._epochs) == 2 else float("-inf")
        victims = [
            block
            for block in cached_blocks(self._root)
            if block.fingerprint not in self._in_use
            or (block.fingerprint == self._fingerprint and block.used_s < own_before)
        ]
        victims.sort(key=lambda block: block.used_s)
        # Blocks in flight may have been counted as used already: they leave a little more room.
        wanted = self._surplus(nbytes) + int(_ROOM_SHARE * self._limit_bytes)
        self._used_bytes -= remove_blocks(victims, wanted)

    def _scan(self) -> None:
        """Counts what is there, whoever has written it."""
        blocks = list(cached_blocks(self._root))
        self._used_bytes = sum(block.nbytes for block in blocks)
        self._held = {
            os.path.basename(block.path)
            for block in blocks
            if block.fingerprint == self._fingerprint
        }

    def _touch(self, name: str) -> None:
        try:
            os.utime(os.path.join(self._folder, name))
        except (FileNotFoundError, PermissionError):
            # Removed meanwhile, or of another user, whose own runs will touch it.
            return

    def _give_up(self, error: Exception, *, reads: bool) -> None:
        """Goes on without the cache, or without writing to it; says so once."""
        if not self._writes:
            self._reads = self._reads and reads
            return
        self._writes, self._reads = False, reads
        full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
        what = "is full" if full else f"cannot be used ({error})"
        rest = "no more blocks are kept" if reads else "blocks are read from the storage"
        logger.warning("the cache folder %s %s; %s", self._root, what, rest)

    async def _in_thread(self, function: Callable[..., object], *args: object) -> None:
        """Runs to its end even if cancelled: the memory it reads must not be given away before."""
        job = asyncio.get_running_loop().run_in_executor(self._threads, function, *args)
        try:
            await asyncio.shield(job)
        except asyncio.CancelledError:
            await asyncio.wait([job])
            raise

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
    CachedBlock,
    block_name,
    cached_blocks,
    remove_blocks,
    remove_stale,
    require_folder,
    write_block,
)
from streamloader.fetch.cache_index import Extent, KeptExtents
from streamloader.monitor import Counters
from streamloader.sizes import parse_size

_WRITE_THREADS = 2
#: A limit that is reached is looked at again no sooner: other processes may have made room.
_RESCAN_S = 10.0
#: What is removed at once beyond the need, as a share of the limit: scanning is not free.
_ROOM_SHARE = 0.02
#: What is written before a look at what other processes have written, as a share of the limit.
_UNSEEN_SHARE = 1 / 32
_LEAST_SCAN_S = 1.0

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

    Every block is needed once in an epoch, so one that is kept for its next use is there when the
    epoch ends: no choice of what to give up saves more reads than there is room for blocks. So what
    is there stays, with no write after the first epoch, and what a full cache gives up are blocks
    of other data sets, least recently used first, and blocks of this one that a whole epoch has not
    used. Above the limit, because several processes have written at once, it gives up what was used
    last, and so is needed last.

    An epoch cuts some blocks in two, each epoch elsewhere; the parts are kept as they come, and
    together serve whatever cut comes next.

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
        self._written = asyncio.Condition()
        self._kept = KeptExtents()
        self._scanned_at = float("-inf")
        self._used_bytes = self._reserved_bytes = self._unseen_bytes = 0
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
        if self._writes:
            try:
                # Others have written meanwhile, and may have been killed.
                await self._in_thread(self._make_room, 0)
            except OSError as error:
                self._give_up(error, reads=False)
        self._threads.shutdown(wait=True)

    def begin_epoch(self) -> None:
        """A pass over the data set begins."""
        self._epochs = [*self._epochs[-1:], time.time()]

    async def read_into(self, shard: int, block: Extent, offset: int, view: memoryview) -> bool:
        """Fills ``view`` with what is kept of a block; False if some of it is missing.

        Args:
            shard: number of the shard.
            block: its offset in the shard, and its bytes.
            offset: in the shard, of the first byte that is wanted.
            view: what to fill, with bytes of this block; undefined after False.
        """
        if not self._reads:
            return False
        # What another process has kept as a whole is there although it is not known here.
        extents = self._kept.cover(shard, block, (offset, len(view))) or [block]
        at = offset
        for extent in extents:
            end = min(sum(extent), offset + len(view))
            if not await self._read_file(shard, extent, at, view[at - offset : end - offset]):
                return False
            at = end
        self._counters.add("cache.hits")
        self._counters.add("cache.bytes_read", len(view))
        return True

    async def _read_file(self, shard: int, extent: Extent, offset: int, view: memoryview) -> bool:
        name = block_name(shard, extent)
        try:
            await self._store.read_into(name, offset - extent[0], view)
        except (NotFound, Truncated) as error:
            self._kept.remove(shard, extent)
            if isinstance(error, Truncated):
                self._unlink(name)
            self._counters.add("cache.misses")
            return False
        except StorageError as error:
            self._give_up(error, reads=False)
            return False
        self._kept.add(shard, extent)
        self._touch(name)
        return True

    async def keep(self, shard: int, extent: Extent, view: memoryview) -> None:
        """Keeps a verified block, or part of one, if it is worth it and there is room.

        ``view`` is not used after the return.
        """
        if not self._writes or self._kept.cover(shard, extent, extent):
            return
        name = block_name(shard, extent)
        try:
            if not await self._reserve(len(view)):
                return
            try:
                await self._in_thread(write_block, self._folder, name, view)
            finally:
                await self._give_back(len(view))
        except OSError as error:
            self._give_up(error, reads=True)
            return
        self._kept.add(shard, extent)
        self._used_bytes += len(view)
        self._unseen_bytes += len(view)
        self._counters.add("cache.bytes_written", len(view))

    def discard(self, shard: int, block: Extent) -> None:
        """Removes what is kept of a block whose content is not what it should be."""
        for extent in [*self._kept.within(shard, block), block]:
            self._kept.remove(shard, extent)
            self._unlink(block_name(shard, extent))

    def _unlink(self, name: str) -> None:
        try:
            os.unlink(os.path.join(self._folder, name))
        except FileNotFoundError:
            return
        except OSError as error:
            self._give_up(error, reads=False)

    async def _reserve(self, nbytes: int) -> bool:
        """Room for a block that is about to be written; False if it may have none."""
        async with self._room:
            if self._is_stale():
                await self._count_and_make_room(0)
            if self._surplus(nbytes) > 0:
                now = time.monotonic()
                if now < self._full_until:
                    return False
                await self._count_and_make_room(nbytes)
                if self._surplus(nbytes) > 0:
                    self._full_until = now + _RESCAN_S
                    return False
            self._reserved_bytes += nbytes
            return True

    async def _give_back(self, nbytes: int) -> None:
        async with self._written:
            self._reserved_bytes -= nbytes
            self._written.notify_all()

    async def _count_and_make_room(self, nbytes: int) -> None:
        """With no write under way: it would be counted twice, or not at all."""
        async with self._written:
            await self._written.wait_for(lambda: not self._reserved_bytes)
        await self._in_thread(self._make_room, nbytes)

    def _surplus(self, nbytes: int) -> int:
        """Bytes that must go before ``nbytes`` may come."""
        if self._limit_bytes is None:
            return 0
        return self._used_bytes + self._reserved_bytes + nbytes - self._limit_bytes

    def _make_room(self, nbytes: int) -> None:
        """Removes what is above the limit, and for ``nbytes`` more what is not used any more."""
        blocks = self._scan()
        if self._surplus(nbytes) <= 0:
            return
        assert self._limit_bytes is not None
        others = [block for block in blocks if block.fingerprint not in self._in_use]
        own = [block for block in blocks if block.fingerprint == self._fingerprint]
        # With two passes begun, what the first of them did not use is not used any more.
        before = self._epochs[0] if len(self._epochs) == 2 else float("-inf")
        unused = others + [block for block in own if block.used_s < before]
        unused.sort(key=lambda block: block.used_s)
        if nbytes:
            # Blocks in flight may have been counted as used already: they leave a little more room.
            wanted = self._surplus(nbytes) + int(_ROOM_SHARE * self._limit_bytes)
            self._used_bytes -= remove_blocks(unused, wanted)
        if self._surplus(0) > 0:
            own.sort(key=lambda block: -block.used_s)
            self._used_bytes -= remove_blocks([*unused, *own], self._surplus(0))

    def _is_stale(self) -> bool:
        """Other processes may have written too much meanwhile."""
        if self._limit_bytes is None or self._unseen_bytes <= self._limit_bytes * _UNSEEN_SHARE:
            return False
        return time.monotonic() - self._scanned_at > _LEAST_SCAN_S

    def _scan(self) -> list[CachedBlock]:
        """Counts what is there, whoever has written it."""
        blocks = list(cached_blocks(self._root))
        kept = KeptExtents()
        for block in blocks:
            if block.fingerprint == self._fingerprint:
                kept.add(block.shard, block.extent)
        self._kept = kept
        self._used_bytes = sum(block.nbytes for block in blocks)
        self._unseen_bytes = 0
        self._scanned_at = time.monotonic()
        return blocks

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

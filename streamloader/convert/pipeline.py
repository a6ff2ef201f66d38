"""Reads, checks, hashes and stores samples, all at the same time.

A shard is a coroutine. Its samples go through a pool of threads in runs of a few MiB, several
runs ahead, and come back in the planned order, whatever thread was first; so the bytes of a
shard never depend on the number of threads. File reads, decoding and the upload all release the
GIL, hence threads and not processes. Memory is bounded by the runs that are ahead.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from dataclasses import dataclass

import numpy as np

from storage_backends import Store
from streamloader.convert.plan import ShardPlan
from streamloader.convert.report import Rejected
from streamloader.convert.runs import Run, RunReader, StoringOptions
from streamloader.convert.sources import Listing, ReadSamples
from streamloader.convert.upload import ShardUpload, StoredShard

SHARDS_IN_FLIGHT = 3


@dataclass(frozen=True, slots=True)
class ShardResult:
    """What became of a planned shard.

    Args:
        name: its file name.
        shard: as stored; None where none of its samples is sound.
        rejects: samples of it that are not stored.
        bytes_in: bytes in the source of those that are.
    """

    name: str
    shard: StoredShard | None
    rejects: tuple[Rejected, ...]
    bytes_in: int


CountRun = Callable[[Run], None]


@dataclass(frozen=True, slots=True)
class Threads:
    """Threads of a conversion, in two pools: an append must not queue behind minutes of decoding.

    Args:
        readers: read and decode.
        appenders: hash and append, one per shard under way.
        num_readers: threads of ``readers``.
    """

    readers: ThreadPoolExecutor
    appenders: ThreadPoolExecutor
    num_readers: int


@contextmanager
def conversion_threads(num_readers: int) -> Iterator[Threads]:
    """Own the threads of one conversion; all of them are joined at the end."""
    with (
        ThreadPoolExecutor(num_readers, "streamloader-convert-read") as readers,
        ThreadPoolExecutor(SHARDS_IN_FLIGHT, "streamloader-convert-append") as appenders,
    ):
        yield Threads(readers, appenders, num_readers)


class Pipeline:
    """Stores planned shards.

    Args:
        store: where to; already entered.
        listing: of the source.
        read: reads samples of the source.
        options: how samples become records.
        threads: who reads, decodes and appends.
        begin: awaited before anything of a shard is stored.
        count: called in the event loop's thread after every run of samples; may raise.
    """

    def __init__(
        self,
        store: Store,
        listing: Listing,
        read: ReadSamples,
        options: StoringOptions,
        threads: Threads,
        begin: Callable[[], Awaitable[None]],
        count: CountRun,
    ) -> None:
        self._store = store
        self._listing = listing
        self._reader = RunReader(listing, read, options, threads.num_readers)
        self._options = options
        self._threads = threads
        # Of each shard, so that one alone keeps every thread at work, and one run more.
        self._window_bytes = (threads.num_readers + 1) * self._reader.limits.nbytes
        self._making = asyncio.Semaphore(SHARDS_IN_FLIGHT)
        self._begin = begin
        self._count = count
        self._stats = options.pictures.shaping() or None

    def abort(self) -> None:
        """Let the threads give up what they are at; its results are not used."""
        self._reader.abort()

    @property
    def shards_at_once(self) -> int:
        """How many shards to store at once.

        Beside those that are made, some that only wait for the store to acknowledge them: forcing
        a shard to the disk takes as long as making one.
        """
        return SHARDS_IN_FLIGHT + self._store.parallel_commits

    async def store_shard(self, plan: ShardPlan) -> ShardResult:
        """Read, check and store the samples of one shard."""
        loop = asyncio.get_running_loop()
        split = self._listing.splits[plan.split].name
        upload = ShardUpload(
            self._store,
            plan.name,
            split,
            self._options.schema,
            plan.uuid,
            zstd_level=self._options.zstd_level,
            borrow=True,
        )
        rejects: list[Rejected] = []
        bytes_in = 0
        async with upload:
            async with self._making, aclosing(self._read_ahead(plan)) as runs:
                async for run in runs:
                    await loop.run_in_executor(self._threads.appenders, self._append, upload, run)
                    bytes_in += run.bytes_in
                    rejects += run.rejects
                    self._count(run)
                    if upload.num_samples:
                        await self._begin()
                    await upload.flush()
                    self._reader.give_back(run)
            shard = await upload.finish(self._stats)
        return ShardResult(plan.name, shard, tuple(rejects), bytes_in)

    def _append(self, upload: ShardUpload, run: Run) -> None:
        if run.packed is not None:
            upload.add_packed(run.packed.pictures, run.packed.columns, run.packed.keys)
        for sample in run.records:
            upload.add(sample.record, sample.key, sample.headers)

    async def _read_ahead(self, plan: ShardPlan) -> AsyncGenerator[Run, None]:
        """Yield the runs of a shard in order, while later ones are read, up to the window."""
        loop = asyncio.get_running_loop()
        ahead: deque[tuple[asyncio.Future[Run], int]] = deque()
        ahead_bytes = 0
        try:
            for places, run_bytes in self._runs(plan):
                while ahead and ahead_bytes + run_bytes > self._window_bytes:
                    oldest, oldest_bytes = ahead.popleft()
                    ahead_bytes -= oldest_bytes
                    yield await oldest
                reading = loop.run_in_executor(
                    self._threads.readers, self._reader.read_run, plan.split, places
                )
                ahead.append((reading, run_bytes))
                ahead_bytes += run_bytes
            while ahead:
                yield await ahead.popleft()[0]
        finally:
            for future, _ in ahead:
                future.cancel()

    def _runs(self, plan: ShardPlan) -> Iterator[tuple[list[int], int]]:
        """Cut a shard's samples into runs, with the bytes of each."""
        ends = np.cumsum(self._listing.splits[plan.split].sizes[plan.order])
        limits = self._reader.limits
        first, before = 0, 0
        while first < len(ends):
            stop = int(np.searchsorted(ends, before + limits.nbytes, side="right"))
            stop = min(max(stop, first + 1), first + limits.samples)
            end = int(ends[stop - 1])
            yield plan.order[first:stop].tolist(), end - before
            first, before = stop, end

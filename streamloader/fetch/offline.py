"""The prefetch path alone: order, memory bound, reads and checks, with no decode and no GPU.

It shows what the storage gives to a run with the same arguments.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from storage_backends import Store, open_store
from streamloader.errors import ConfigError
from streamloader.fetch.arena import Arena
from streamloader.fetch.budget import divide_memory
from streamloader.fetch.cache import BlockCache, CacheOptions
from streamloader.fetch.catalog import Catalog
from streamloader.fetch.loop import LoopThread
from streamloader.fetch.prefetcher import Fetched, Prefetcher
from streamloader.monitor import Counters, TimeSummary
from streamloader.order import EpochOrder, OrderSpec, RankPlan


@dataclass(frozen=True, slots=True)
class PrefetchOptions:
    """What to read; names and meaning as of ``StreamLoader``.

    Attributes:
        epochs: full epochs to read, at least 1.
        cache: where blocks are kept between runs; nowhere if None.
        seconds: stop after this many seconds, in the midst of an epoch; None reads all epochs.
    """

    batch_size: int = 256
    epochs: int = 1
    seconds: float | None = None
    shuffle: bool | str = True
    seed: int = 0
    split: str | None = None
    world_size: int = 1
    rank: int = 0
    memory_limit_bytes: int = 1 << 30
    verify: bool = True
    cache: CacheOptions | None = None

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise ConfigError(f"epochs must be at least 1, got {self.epochs}")
        if self.seconds is not None and not self.seconds > 0:
            raise ConfigError(f"seconds must be positive, got {self.seconds}")


@dataclass(frozen=True, slots=True)
class BadSample:
    """A sample whose bytes failed their checksum twice."""

    sample: int
    shard: str
    key: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class PrefetchReport:
    """What the storage gave; ``bytes`` are block bytes, ``latency_ms`` times of one read.

    The first block is there as soon as anything of the data is; the first batch has to wait for all
    its blocks, which are nearly as many as its samples where these are shuffled.
    """

    samples: int
    bytes: int
    seconds: float
    first_block_s: float
    first_batch_s: float
    requests: int
    retries: int
    latency: TimeSummary
    errors: tuple[BadSample, ...]
    cache_hits: int = 0

    def to_dict(self) -> dict[str, Any]:
        latency = self.latency
        return {
            "samples": self.samples,
            "bytes": self.bytes,
            "seconds": self.seconds,
            "mb_per_s": self.bytes / 1e6 / self.seconds if self.seconds else 0.0,
            "samples_per_s": self.samples / self.seconds if self.seconds else 0.0,
            "first_block_s": self.first_block_s,
            "first_batch_s": self.first_batch_s,
            "requests": self.requests,
            "retries": self.retries,
            "cache_hits": self.cache_hits,
            "latency_ms": {
                "p50": latency.p50,
                "p95": latency.p95,
                "p99": latency.p99,
                "max": latency.max,
            },
            "errors": [
                {"sample": e.sample, "shard": e.shard, "key": e.key, "reason": e.reason}
                for e in self.errors
            ],
        }


def prefetch_offline(
    url: str,
    options: PrefetchOptions,
    *,
    storage_options: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> PrefetchReport:
    """Reads a data set the way training would, and throws the bytes away.

    Args:
        url: the data set.
        progress: called with samples done and samples in all.

    Raises:
        ConfigError: arguments that cannot work, or no data set there.
        StorageError: the storage refused or failed.
        ShardError: the data set is damaged.
    """
    counters = _Arrivals()
    with LoopThread("prefetch") as loop_thread:
        store = open_store(url, counters=counters, **(storage_options or {}))
        return loop_thread.run(_Offline(store, options, counters, progress).run())


class _Arrivals(Counters):
    """Counts, and notes when the first piece of the data was there.

    Attributes:
        first_piece_at: by the performance counter; None before.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first_piece_at: float | None = None

    def add(self, name: str, value: int = 1) -> None:
        if self.first_piece_at is None and name == "fetch.pieces":
            self.first_piece_at = time.perf_counter()
        super().add(name, value)


class _Offline:
    def __init__(
        self,
        store: Store,
        options: PrefetchOptions,
        counters: _Arrivals,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self._store = store
        self._options = options
        self._counters = counters
        self._progress = progress
        self._started = time.perf_counter()
        self._first_batch_s: float | None = None
        self._samples = 0
        self._total = 0
        self._bad: dict[int, str] = {}
        self._caches: tuple[BlockCache, ...] = ()

    async def run(self) -> PrefetchReport:
        options = self._options
        async with self._store as store:
            limit = options.memory_limit_bytes
            catalog = await Catalog.open(store, options.split, tail_limit_bytes=limit // 4)
            if not catalog.num_samples:
                raise ConfigError(f"{catalog.url} holds no sample: nothing to read")
            async with AsyncExitStack() as stack:
                if options.cache is not None:
                    cache = BlockCache(options.cache, catalog.fingerprint, self._counters)
                    self._caches = (await stack.enter_async_context(cache),)
                prefetcher = await self._prefetcher(catalog)
                stack.callback(prefetcher.close)
                try:
                    async with asyncio.timeout(options.seconds):
                        await self._read_epochs(prefetcher)
                except TimeoutError:
                    if options.seconds is None:
                        raise
            return await self._report(catalog)

    async def _prefetcher(self, catalog: Catalog) -> Prefetcher:
        options = self._options
        self._spec = OrderSpec.choose(
            catalog.num_samples,
            catalog.blocks.block_samples,
            seed=options.seed,
            shuffle=options.shuffle,
        )
        memory = divide_memory(
            catalog,
            self._spec,
            options.memory_limit_bytes,
            batch_size=options.batch_size,
            world_size=options.world_size,
            expansion=await catalog.expansion(),
        )
        arena = Arena(memory.block_bytes)
        return Prefetcher(
            catalog, arena, counters=self._counters, verify=options.verify, caches=self._caches
        )

    async def _read_epochs(self, prefetcher: Prefetcher) -> None:
        options = self._options
        plans = [
            RankPlan(
                EpochOrder(self._spec, epoch),
                batch_size=options.batch_size,
                rank=options.rank,
                world_size=options.world_size,
            )
            for epoch in range(options.epochs)
        ]
        own = -(-self._spec.num_samples // options.world_size)
        self._total = own * options.epochs
        previous: asyncio.Task[None] | None = None
        try:
            async with asyncio.TaskGroup() as group:
                for plan in plans:
                    planned = asyncio.Event()
                    running = group.create_task(prefetcher.run(plan, self._take, planned.set))
                    # As in training: the next epoch is read ahead while this one ends.
                    await planned.wait()
                    if previous is not None:
                        await previous
                    previous = running
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _take(self, fetched: Fetched) -> None:
        if self._first_batch_s is None:
            self._first_batch_s = time.perf_counter() - self._started
        valid = fetched.plan.valid
        for row, reason in fetched.faults.items():
            if valid[row]:
                self._bad[int(fetched.plan.samples[row])] = reason
        self._samples += int(valid.sum())
        fetched.release()
        if self._progress is not None:
            self._progress(self._samples, self._total)

    async def _report(self, catalog: Catalog) -> PrefetchReport:
        seconds = time.perf_counter() - self._started
        first = self._counters.first_piece_at
        errors = []
        for sample, reason in sorted(self._bad.items()):
            error = await catalog.sample_error(sample, reason)
            errors.append(BadSample(sample, error.shard, error.key, reason))
        return PrefetchReport(
            samples=self._samples,
            bytes=self._counters.count("fetch.bytes"),
            seconds=seconds,
            first_block_s=seconds if first is None else first - self._started,
            first_batch_s=self._first_batch_s or seconds,
            requests=self._counters.count("storage.requests"),
            retries=self._counters.count("storage.retries"),
            latency=self._counters.time("storage.read_s"),
            errors=tuple(errors),
            cache_hits=self._counters.count("cache.hits"),
        )

"""Epochs from a real S3 server behind a proxy that goes wrong all the time."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest
from picture_sets import picture, write_pictures

from storage_backends import open_store
from streamloader.fetch import Arena, Catalog, Prefetcher
from streamloader.monitor import Counters
from streamloader.order import EpochOrder, OrderSpec, RankPlan
from tests.storage_backends.fault_proxy import (
    Answer,
    Break,
    Drip,
    Fault,
    FaultProxy,
    Flip,
    IgnoreRange,
    Rewrite,
    Seen,
    SlowStart,
    Stall,
)

pytestmark = pytest.mark.s3

NUM = 240
ARENA_BYTES = 1 << 21
#: What one request in three meets, by weight. Every one of them passes when asked again.
FAULTS: list[tuple[int, Any]] = [
    (6, lambda rng: Answer(503, "SlowDown")),
    (1, lambda rng: Answer(503, "SlowDown", {"Retry-After": "0"})),
    (3, lambda rng: Answer(500, "InternalError")),
    (2, lambda rng: Answer(400, "RequestTimeout")),
    (4, lambda rng: Break(-1, reset=True)),
    (4, lambda rng: Break(-1)),
    (4, lambda rng: Break(rng.randrange(3_000), reset=True)),
    (6, lambda rng: Break(rng.randrange(3_000))),
    (1, lambda rng: Stall(rng.randrange(-1, 3_000))),
    (1, lambda rng: Drip(10, 0.05)),
    (4, lambda rng: Rewrite(body_bytes=rng.randrange(500))),
    (4, lambda rng: Rewrite({"content-range": "bytes 0-9/10"})),
    (4, lambda rng: IgnoreRange()),
    (2, lambda rng: SlowStart(0.05)),
]
#: Beside them. A block whose checksum fails is read again once, so none is flipped twice in a row.
FLIPS = 4


class Chooser:
    """Chooses by seed, and remembers how often it chose what."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.injected: Counter[str] = Counter()
        self._flipped: set[tuple[str, str]] = set()

    def __call__(self, seen: Seen) -> Fault | None:
        rng = self._random
        place = (seen.target, seen.headers["range"].partition("-")[2])
        if rng.random() > 1 / 3:
            self._flipped.discard(place)
            return None
        weights, makers = zip(*FAULTS, strict=True)
        fault: Fault = rng.choices(makers, weights)[0](rng)
        if place not in self._flipped and rng.randrange(sum(weights)) < FLIPS:
            self._flipped.add(place)
            fault = Flip(rng.randrange(400))
        self.injected[type(fault).__name__] += 1
        return fault


async def run_epoch(catalog: Catalog, counters: Counters, epoch: int, arena: Arena) -> list[int]:
    """The samples of one epoch, each of whose bytes are compared."""
    found: list[int] = []
    memory = arena.array

    async def deliver(fetched: Any) -> None:
        assert not fetched.faults
        for row, sample in zip(fetched.rows, fetched.plan.samples.tolist(), strict=True):
            start, length = row["image@offset"], row["image@length"]
            assert bytes(memory[start : start + length]) == PICTURES[sample]
        found.extend(fetched.plan.samples[fetched.plan.valid].tolist())
        fetched.release()

    spec = OrderSpec.choose(NUM, catalog.blocks.block_samples, seed=1, shuffle=True)
    plan = RankPlan(EpochOrder(spec, epoch), batch_size=16, rank=0, world_size=1)
    prefetcher = Prefetcher(catalog, arena, counters=counters)
    try:
        await prefetcher.run(plan, deliver)
    finally:
        prefetcher.close()
    assert arena.used_bytes == 0
    return found


PICTURES = [picture(number) for number in range(NUM)]


@pytest.mark.parametrize(
    "least_faults",
    [80, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])],
)
async def test_no_sample_is_lost_repeated_or_wrong_whatever_the_storage_does(
    least_faults: int, s3_bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage_backends.http_pool.SILENCE_S", 0.5)
    monkeypatch.setattr("storage_backends.http_pool.RATE_WINDOW_S", 0.4)
    monkeypatch.setattr("storage_backends._retry._FIRST_DELAY_S", 0.005)
    monkeypatch.setattr("storage_backends._retry._MAX_DELAY_S", 0.1)
    url, options = f"{s3_bucket.url}/set", s3_bucket.storage_options
    await asyncio.to_thread(write_pictures, url, count=NUM, storage_options=options)
    choose, counters, arena = Chooser(1), Counters(), Arena(ARENA_BYTES)
    async with FaultProxy(options["endpoint_url"]) as proxy:
        faulty = {**options, "endpoint_url": proxy.url, "download_retry": 40}
        async with open_store(url, counters, **faulty) as store:
            catalog = await Catalog.open(store)
            for shard in range(catalog.manifest.num_shards):
                await catalog.shard_index(shard)
            before = counters.count("storage.requests")
            reads_before = counters.time("storage.read_s").count
            proxy.plan_by(choose)
            epoch = 0
            while choose.injected.total() < least_faults:
                assert sorted(await run_epoch(catalog, counters, epoch, arena)) == list(range(NUM))
                epoch += 1
    requests = counters.count("storage.requests") - before
    # A request on a connection that was just closed may not have been seen; it is sent again.
    reconnects = counters.count("storage.reconnects")
    assert requests - reconnects <= len(proxy.seen) <= requests
    reads = counters.time("storage.read_s").count - reads_before
    assert reads >= catalog.blocks.num_blocks * epoch
    wasted = ("retries", "reconnects", "hedges")
    assert requests == reads + sum(counters.count(f"storage.{name}") for name in wasted)
    assert counters.count("fetch.checksum_rereads") >= choose.injected["Flip"] // 2 > 0
    assert arena.peak_bytes <= ARENA_BYTES
    assert len(choose.injected) == 8

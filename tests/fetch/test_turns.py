"""Batches of what has come, against real files with reads that a test holds back."""

from __future__ import annotations

import asyncio

import pytest
from picture_sets import write_pictures
from steered_store import Steered

from storage_backends import Unavailable, open_store
from streamloader.fetch import Arena, Catalog, Prefetcher
from streamloader.monitor import Counters
from streamloader.order import ArrivalPlan, EpochOrder, OrderSpec

NUM = 60


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    path = tmp_path_factory.mktemp("turns") / "set"
    write_pictures(path, count=NUM)
    return path


async def run(
    dataset, deliver, *, before_read, arena_bytes=1 << 22, batch_size=8, counters=None, rank=0,
    world_size=1,
):  # fmt: skip
    """Runs one epoch by arrival; the arena must be empty again, however it ends."""
    async with open_store(str(dataset)) as store:
        catalog = await Catalog.open(Steered(store, before_read))
        spec = OrderSpec.choose(NUM, catalog.blocks.block_samples, seed=1, shuffle=True)
        order = EpochOrder(spec, 0)
        plan = ArrivalPlan(order, batch_size=batch_size, rank=rank, world_size=world_size)
        arena = Arena(arena_bytes)
        prefetcher = Prefetcher(catalog, arena, counters=counters or Counters())
        try:
            await prefetcher.run(plan, lambda fetched: deliver(fetched, arena))
        finally:
            prefetcher.close()
            assert arena.used_bytes == 0


def first_held():
    """Holds the first read of a block back until ``gate`` is set, however often it is tried."""
    gate, held = asyncio.Event(), []

    async def before_read(key, offset):
        if not held:
            held.append((key, offset))
        if (key, offset) == held[0]:
            await gate.wait()

    return gate, before_read


async def test_rows_are_the_samples_they_say_whatever_came_first(dataset):
    from picture_sets import picture

    seen, delays = [], iter([0.0, 0.004, 0.001, 0.008] * 100)

    async def before_read(key, offset):
        await asyncio.sleep(next(delays))

    async def deliver(fetched, arena):
        samples = fetched.plan.samples.tolist()
        for row, sample in zip(fetched.rows, samples, strict=True):
            start, length = row["image@offset"], row["image@length"]
            assert bytes(arena.array[start : start + length]) == picture(sample)
        assert fetched.rows["label"].tolist() == samples
        seen.extend(fetched.plan.samples[fetched.plan.valid].tolist())
        fetched.release()

    for rank in range(2):
        await run(dataset, deliver, before_read=before_read, rank=rank, world_size=2)
    assert sorted(seen) == list(range(NUM))


async def test_a_held_read_delays_only_the_batches_that_need_it(dataset):
    gate, before_read = first_held()
    batches = []

    async def deliver(fetched, arena):
        batches.append(fetched.plan.samples[fetched.plan.valid].tolist())
        fetched.release()
        if len(batches) == (NUM - 4) // 8:  # what is left needs the held block of 4
            gate.set()

    async with asyncio.timeout(60):
        await run(dataset, deliver, before_read=before_read)
    assert sorted(sample for batch in batches for sample in batch) == list(range(NUM))
    assert [len(batch) for batch in batches] == [8] * 7 + [4]


@pytest.mark.parametrize("batch_size", [1, 2, 8])
async def test_a_held_read_in_little_memory_ends_once_it_comes(dataset, batch_size):
    gate, before_read = first_held()
    counters, seen = Counters(), []

    async def deliver(fetched, arena):
        seen.extend(fetched.plan.samples[fetched.plan.valid].tolist())
        asyncio.get_running_loop().call_later(0.001, fetched.release)

    count = counters.add

    def add(name, number=1):
        count(name, number)
        if name == "fetch.waits_for_memory":
            gate.set()

    counters.add = add
    async with asyncio.timeout(60):
        await run(
            dataset,
            deliver,
            before_read=before_read,
            arena_bytes=60_000,
            batch_size=batch_size,
            counters=counters,
        )
    assert counters.count("fetch.waits_for_memory") > 0
    assert sorted(seen) == list(range(NUM))


async def test_a_failure_while_others_are_delivered_ends_the_run(dataset):
    gate, before_read = first_held()

    async def failing(key, offset):
        await before_read(key, offset)
        if gate.is_set():
            raise Unavailable("the store is gone", url="here")

    async def deliver(fetched, arena):
        fetched.release()
        gate.set()

    async with asyncio.timeout(60):
        with pytest.raises(Unavailable, match="the store is gone"):
            await run(dataset, deliver, before_read=failing)

"""The prefetch path against real files, with a store that fails or waits when told to."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from picture_sets import write_pictures
from steered_store import Steered

from storage_backends import Unavailable, open_store
from streamloader import ConfigError
from streamloader.fetch import Arena, Catalog, Prefetcher
from streamloader.monitor import Counters
from streamloader.order import EpochOrder, OrderSpec, RankPlan

NUM = 60


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    path = tmp_path_factory.mktemp("fetch") / "set"
    write_pictures(path, count=NUM)
    return path


async def nothing(key, offset):
    return None


async def run(
    dataset,
    deliver,
    *,
    arena_bytes=1 << 22,
    before_read=nothing,
    counters=None,
    shuffle=True,
    batch_size=8,
):
    """Runs one epoch and returns the arena, which must be empty again."""
    async with open_store(str(dataset)) as store:
        catalog = await Catalog.open(Steered(store, before_read))
        spec = OrderSpec.choose(NUM, catalog.blocks.block_samples, seed=1, shuffle=shuffle)
        plan = RankPlan(EpochOrder(spec, 0), batch_size=batch_size, rank=0, world_size=1)
        arena = Arena(arena_bytes)
        prefetcher = Prefetcher(catalog, arena, counters=counters or Counters())
        try:
            await prefetcher.run(plan, deliver)
        finally:
            prefetcher.close()
            assert arena.used_bytes == 0
        return arena


def stored_pictures(fetched, arena):
    return [
        bytes(arena.array[row["image@offset"] : row["image@offset"] + row["image@length"]])
        for row in fetched.rows
    ]


@pytest.mark.parametrize("shuffle", [True, False, "global"])
async def test_every_sample_of_the_plan_is_in_memory_with_its_columns(dataset, shuffle):
    from picture_sets import picture

    seen = []

    async def deliver(fetched):
        valid = fetched.plan.valid
        seen.extend(fetched.plan.samples[valid].tolist())
        assert fetched.rows["label"].tolist() == fetched.plan.samples.tolist()
        memory = arenas[0].array
        for row, sample in zip(fetched.rows, fetched.plan.samples.tolist(), strict=True):
            start, length = row["image@offset"], row["image@length"]
            assert bytes(memory[start : start + length]) == picture(sample)
        fetched.release()

    arenas = []
    original = Arena.__init__

    def remember(self, nbytes):
        original(self, nbytes)
        arenas.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Arena, "__init__", remember)
        await run(dataset, deliver, shuffle=shuffle)
    assert sorted(seen) == list(range(NUM))


async def test_memory_of_one_batch_is_enough_and_pieces_are_then_read_again(dataset):
    counters = Counters()
    seen = []

    async def deliver(fetched):
        seen.extend(fetched.plan.samples[fetched.plan.valid].tolist())
        fetched.release()

    small = await run(dataset, deliver, arena_bytes=24_000, counters=counters, batch_size=2)
    assert sorted(seen) == list(range(NUM))
    assert small.peak_bytes <= small.nbytes
    assert counters.count("fetch.evicted_pieces") > 0


async def test_memory_below_one_batch_is_refused_instead_of_hanging(dataset):
    async def deliver(fetched):
        fetched.release()

    with pytest.raises(ConfigError, match="memory_limit"):
        await asyncio.wait_for(run(dataset, deliver, arena_bytes=8192), 10)


async def test_reading_ahead_stops_when_the_memory_is_full(dataset):
    reads = []
    held = []
    full = asyncio.Event()

    async def count(key, offset):
        reads.append((key, offset))

    async def deliver(fetched):
        held.append(fetched)
        if len(held) == 1:
            full.set()
            await asyncio.Event().wait()

    stopped = asyncio.Event()

    class Watching(Counters):
        def add(self, name, value=1):
            super().add(name, value)
            if name == "fetch.waits_for_memory":
                stopped.set()

    task = asyncio.create_task(
        run(dataset, deliver, arena_bytes=60_000, before_read=count, counters=Watching())
    )
    await full.wait()
    await stopped.wait()
    assert len(reads) < 20
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_failed_read_ends_the_run_with_the_original_error(dataset):
    async def fail(key, offset):
        if key.endswith(".dts") and offset == 64:
            raise Unavailable("the test switched it off", url=key)

    async def deliver(fetched):
        fetched.release()

    with pytest.raises(Unavailable, match="switched it off"):
        await asyncio.wait_for(run(dataset, deliver, before_read=fail), 5)


async def test_cancelling_waits_until_no_read_touches_the_arena(dataset):
    waiting = asyncio.Event()
    ended = []

    async def wait(key, offset):
        if offset == 64:
            waiting.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(key)

    async def deliver(fetched):
        fetched.release()

    task = asyncio.create_task(run(dataset, deliver, before_read=wait))
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended


async def test_a_flipped_byte_is_read_again_and_then_told_by_sample(dataset, tmp_path):
    import shutil

    shutil.copytree(dataset, tmp_path / "set")
    shard = sorted((tmp_path / "set").glob("*.dts"))[0]
    data = bytearray(shard.read_bytes())
    data[64 + 500] ^= 1
    shard.write_bytes(data)
    counters = Counters()
    faults = {}

    async def deliver(fetched):
        for row, reason in fetched.faults.items():
            faults[int(fetched.plan.samples[row])] = reason
            assert fetched.rows["image@length"][row] == -1
        fetched.release()

    await run(tmp_path / "set", deliver, counters=counters)
    assert list(faults) == [0]
    assert counters.count("fetch.checksum_rereads") == 1


async def test_a_byte_that_was_wrong_only_once_costs_one_more_read(dataset):
    counters = Counters()
    flipped = []
    seen = []

    class Flipping(Steered):
        async def read_into(self, key, offset, buffer, etag=None):
            await super().read_into(key, offset, buffer, etag)
            if offset == 64 and not flipped:
                flipped.append(key)
                view = np.frombuffer(buffer, np.uint8)
                view[300] ^= 0x40

    async def deliver(fetched):
        assert not fetched.faults
        seen.extend(fetched.plan.samples[fetched.plan.valid].tolist())
        fetched.release()

    async with open_store(str(dataset)) as store:
        catalog = await Catalog.open(Flipping(store, nothing))
        spec = OrderSpec.choose(NUM, catalog.blocks.block_samples, seed=1, shuffle=False)
        plan = RankPlan(EpochOrder(spec, 0), batch_size=8, rank=0, world_size=1)
        prefetcher = Prefetcher(catalog, Arena(1 << 22), counters=counters)
        await prefetcher.run(plan, deliver)
        prefetcher.close()
    assert flipped
    assert sorted(seen) == list(range(NUM))
    assert counters.count("fetch.checksum_rereads") == 1


async def test_a_release_that_comes_after_the_end_of_a_run_frees_nothing(dataset):
    held = []
    delivered = asyncio.Event()

    async def deliver(fetched):
        held.append(fetched)
        delivered.set()

    async with open_store(str(dataset)) as store:
        catalog = await Catalog.open(store)
        spec = OrderSpec.choose(NUM, catalog.blocks.block_samples, seed=1, shuffle=False)
        plan = RankPlan(EpochOrder(spec, 0), batch_size=8, rank=0, world_size=1)
        arena = Arena(1 << 22)
        prefetcher = Prefetcher(catalog, arena, counters=Counters())
        task = asyncio.create_task(prefetcher.run(plan, deliver))
        await delivered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert arena.used_bytes == 0
        of_another_run = arena.allocate(1 << 20)
        faults = []
        asyncio.get_running_loop().set_exception_handler(lambda _, c: faults.append(c))
        held[0].release()
        await asyncio.sleep(0)
        prefetcher.close()
    assert not faults
    assert arena.used_bytes == 1 << 20
    assert of_another_run == 0

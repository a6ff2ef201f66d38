"""What is on its way into the cache is waited for, and not read a second time."""

from __future__ import annotations

import asyncio

import pytest
from picture_sets import write_pictures
from steered_store import Steered

from storage_backends import open_store
from streamloader.fetch import Arena, BlockCache, CacheOptions, Catalog
from streamloader.fetch.piece_loader import PieceLoader
from streamloader.fetch.underway import Underway
from streamloader.monitor import Counters


async def is_waiting(task: asyncio.Task[None]) -> bool:
    """After everything that could run has run."""
    for _ in range(5):
        await asyncio.sleep(0)
    return not task.done()


@pytest.mark.parametrize(
    ("other", "waits"),
    [
        ((0, (100, 50)), True),
        ((0, (149, 1)), True),
        ((0, (90, 11)), True),
        ((0, (0, 1_000)), True),
        ((0, (150, 50)), False),
        ((0, (50, 50)), False),
        ((1, (100, 50)), False),
    ],
)
async def test_only_ranges_that_overlap_wait_for_each_other(other, waits):
    underway = Underway()
    with underway.announced([(0, (100, 50)), (2, (0, 10))]):
        task = asyncio.create_task(underway.settled([other]))
        assert await is_waiting(task) == waits
    await task


async def test_a_failure_ends_the_wait_too():
    underway = Underway()
    task = None

    async def fail():
        nonlocal task
        with underway.announced([(0, (0, 10))]):
            task = asyncio.create_task(underway.settled([(0, (5, 10))]))
            assert await is_waiting(task)
            raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        await fail()
    await task


async def test_a_wait_that_is_cancelled_disturbs_no_other():
    underway = Underway()
    with underway.announced([(0, (0, 10))]):
        first = asyncio.create_task(underway.settled([(0, (0, 10))]))
        second = asyncio.create_task(underway.settled([(0, (0, 10))]))
        assert await is_waiting(first)
        first.cancel()
        assert await is_waiting(second)
    await second
    assert first.cancelled()


async def test_the_next_epoch_waits_for_parts_of_a_block_that_are_still_coming(tmp_path):
    write_pictures(tmp_path / "set", count=8)
    may_read, reading, reads = asyncio.Event(), asyncio.Event(), []

    async def hold(key, offset):
        if not key.endswith(".dts"):
            return
        reads.append((key, offset))
        if len(reads) == 3:  # the tail of the shard comes first
            reading.set()
        if len(reads) > 1:
            await may_read.wait()

    counters = Counters()
    async with (
        open_store(str(tmp_path / "set")) as store,
        BlockCache(CacheOptions.of(tmp_path / "cache", None), "f" * 64, counters) as cache,
    ):
        catalog = await Catalog.open(Steered(store, hold))
        arena = Arena(1 << 20)
        loader = PieceLoader(
            catalog,
            arena,
            counters=counters,
            selection=None,
            max_reads=8,
            verify=True,
            cache=cache,
        )
        bases = [arena.allocate(200_000) for _ in range(3)]
        try:
            parts = [
                asyncio.create_task(loader.load(0, 2, bases[0])),
                asyncio.create_task(loader.load(2, 2, bases[1])),
            ]
            await reading.wait()
            whole = asyncio.create_task(loader.load(0, 4, bases[2]))
            assert await is_waiting(whole)
            may_read.set()
            await asyncio.gather(*parts, whole)
        finally:
            loader.close()
    assert len(reads) == 3
    assert counters.count("cache.hits") == 1

"""``async for batch in loader``."""

from __future__ import annotations

import asyncio
import threading

import pytest
from picture_sets import NUM_PICTURES, write_pictures

from streamloader import CenterCrop, SampleError, StreamLoader


def loader(dataset, **options):
    wanted = {"batch_size": 8, "transform": CenterCrop(24), "device": "cpu"}
    return StreamLoader(str(dataset), **{**wanted, **options})


async def test_it_gives_the_batches_of_the_plain_loop_and_leaves_the_event_loop_free(pictures):
    turns = 0

    async def count():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    with loader(pictures, shuffle=True) as stream:
        counting = asyncio.create_task(count())
        seen = [batch["index"].tolist() async for batch in stream]
        counting.cancel()
        stream.set_epoch(0)
        assert seen == [batch["index"].tolist() for batch in stream]
    assert turns > len(seen)


async def test_a_cancelled_wait_loses_no_batch(pictures):
    with loader(pictures) as stream:
        batches = aiter(stream)
        waiting = asyncio.create_task(anext(batches))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert waiting.cancelled()
        rest = [n async for b in batches for n in b["index"][b["valid"]].tolist()]
    assert rest == list(range(NUM_PICTURES))


async def test_a_failure_reaches_the_waiting_coroutine(tmp_path, damage):
    write_pictures(tmp_path / "set", count=20)
    damage(tmp_path / "set", 3)
    with loader(tmp_path / "set") as stream, pytest.raises(SampleError, match="sample 3"):
        async for _ in stream:
            pass


async def test_closing_wakes_the_waiting_coroutine(pictures):
    started = asyncio.Event()
    go_on = threading.Event()

    def slow(batch):
        started_loop.call_soon_threadsafe(started.set)
        go_on.wait(20)
        return batch

    started_loop = asyncio.get_running_loop()
    stream = loader(pictures, batch_map=slow, num_workers=1)
    waiting = asyncio.create_task(anext(aiter(stream)))
    await started.wait()
    closing = asyncio.create_task(asyncio.to_thread(stream.close))
    with pytest.raises(Exception, match="ended by"):
        await waiting
    go_on.set()
    await closing

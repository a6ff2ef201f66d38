"""Threads, descriptors and memory when nobody closes anything."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from streamloader import ConfigError, RandomResizedCrop, StreamLoader


def loader(dataset, **options):
    wanted = {"batch_size": 8, "transform": RandomResizedCrop(24), "device": "cpu"}
    return StreamLoader(str(dataset), **{**wanted, **options})


def own_threads():
    return [t for t in threading.enumerate() if t.name.startswith("streamloader-")]


def test_a_loader_that_is_dropped_ends_its_threads(pictures):
    before = len(own_threads())
    stream = loader(pictures)
    next(iter(stream))
    assert len(own_threads()) > before
    del stream
    gc.collect()
    assert len(own_threads()) == before


def test_descriptors_and_threads_stay_flat_over_many_first_batches(pictures):
    with loader(pictures, shuffle=True) as stream:
        next(iter(stream))
        descriptors, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
        for _ in range(100):
            next(iter(stream))
        assert len(os.listdir("/proc/self/fd")) <= descriptors + 2
        # Those of a pool start when they are first of use; it has four or eight.
        assert threading.active_count() <= threads + 8


@pytest.mark.parametrize("feed", ["thread", "process"])
def test_the_interpreter_exits_at_once_with_a_loader_half_used(pictures, feed):
    script = f"""
        import atexit, logging, time
        from streamloader import RandomResizedCrop, StreamLoader
        # That Pillow stands in where the native decoder was not built is not this test's business.
        logging.getLogger("streamloader.decode").setLevel(logging.ERROR)
        stream = StreamLoader({str(pictures)!r}, batch_size=8, shuffle=True, device="cpu",
                              transform=RandomResizedCrop(24), feed={feed!r})
        for _ in range(3):
            next(iter(stream))
        batches = iter(stream)
        held = next(batches)
        main_ended = time.monotonic()
        # Runs after the interpreter has joined every thread that is not a daemon.
        atexit.register(lambda: print(time.monotonic() - main_ended, flush=True))
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert float(result.stdout) < 2


def test_a_blocked_consumer_is_woken_by_close_from_another_thread(pictures):
    stream = loader(pictures, batch_size=8)
    batches = iter(stream)
    held = [next(batches) for _ in range(3)]
    with ThreadPoolExecutor(1) as executor:
        executor.submit(stream.close).result(10)
    assert len(held) == 3
    with pytest.raises(Exception, match="ended"):
        next(batches)


def test_closing_from_another_thread_wakes_who_waits_for_a_batch(pictures):
    waits, go_on = threading.Event(), threading.Event()

    def slow(batch):
        waits.set()
        go_on.wait(20)
        return batch

    stream = loader(pictures, batch_map=slow, num_workers=1)
    with ThreadPoolExecutor(2) as executor:
        waiting = executor.submit(next, iter(stream))
        assert waits.wait(20)
        closing = executor.submit(stream.close)
        with pytest.raises(ConfigError, match="ended by"):
            waiting.result(20)
        go_on.set()
        closing.result(20)


def test_fifty_loaders_in_one_process_share_nothing_and_leave_nothing(pictures):
    before, descriptors = len(own_threads()), len(os.listdir("/proc/self/fd"))
    streams = [
        loader(pictures, shuffle=True, seed=seed, num_workers=1, prefetch_batches=1)
        for seed in range(50)
    ]
    iterators = [iter(stream) for stream in streams]
    firsts = [next(iterator)["index"].tolist() for iterator in iterators]
    assert len({tuple(first) for first in firsts}) > 40
    rest = [n for batch in iterators[49] for n in batch["index"][batch["valid"]].tolist()]
    assert sorted(firsts[49] + rest) == list(range(83))
    for stream in streams:
        stream.close()
    assert len(own_threads()) == before
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 2


@pytest.mark.parametrize("feed", ["thread", "process"])
def test_a_dataloader_with_forked_workers_runs_beside_a_loader(pictures, feed):
    with loader(pictures, shuffle=True, feed=feed) as stream:
        wanted = [batch["index"].tolist() for batch in stream]
        stream.set_epoch(0)
        batches = iter(stream)
        got = [next(batches)["index"].tolist()]  # its threads run when the others are forked
        for _ in range(2):
            theirs = torch.utils.data.DataLoader(
                range(64), batch_size=16, num_workers=2, multiprocessing_context="fork", timeout=60
            )
            for numbers, batch in zip(theirs, batches, strict=False):
                assert len(numbers) == 16
                got.append(batch["index"].tolist())
        got += [batch["index"].tolist() for batch in batches]
        assert got == wanted


def test_two_loaders_in_one_process_do_not_meet(pictures):
    with loader(pictures, shuffle=True) as one, loader(pictures, shuffle=True) as two:
        pairs = list(zip(one, two, strict=True))
    assert all(a["index"].tolist() == b["index"].tolist() for a, b in pairs)


def test_a_loader_works_inside_a_running_event_loop(pictures):
    import asyncio

    async def consume() -> int:
        with loader(pictures) as stream:
            return sum(int(batch["valid"].sum()) for batch in stream)

    assert asyncio.run(consume()) == 83


def test_the_exception_of_the_loop_body_is_kept(pictures):
    def train():
        with loader(pictures) as stream:
            return [1 / 0 for _ in stream]

    with pytest.raises(ZeroDivisionError):
        train()


def test_an_iterator_collected_inside_a_loaders_own_thread_ends_without_deadlock(pictures):
    stream = loader(pictures, shuffle=True)
    batches = iter(stream)
    next(batches)
    collected = threading.Event()

    def collect():
        nonlocal batches
        del batches
        collected.set()

    thread = threading.Thread(target=collect, name="streamloader-decode-of-a-test")
    thread.start()
    assert collected.wait(10)
    thread.join(10)
    assert sum(int(batch["valid"].sum()) for batch in stream) == 83
    stream.close()


def test_an_iterator_that_was_never_asked_for_a_batch_ends_too(pictures):
    stream = loader(pictures)
    for _ in range(10):
        iter(stream)
    stream.close()


@pytest.mark.slow
def test_memory_descriptors_and_threads_stay_flat_over_fifty_partial_epochs(pictures):
    def resident_mb():
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * 4096 / 1e6

    seen = []
    with loader(pictures, shuffle=True, num_workers=2) as stream:
        for number in range(50):
            for step, _ in enumerate(stream):
                if step == 1 + number % 5:
                    break
            gc.collect()
            seen.append((resident_mb(), len(os.listdir("/proc/self/fd")), threading.active_count()))
    settled, last = seen[10], seen[-1]
    assert last[0] <= settled[0] + 8
    assert last[1] <= settled[1]
    assert last[2] <= settled[2]


def test_a_forked_process_is_told_to_make_its_own_and_disturbs_nobody(pictures):
    script = f"""
        import gc, logging, os, sys
        from streamloader import ConfigError, RandomResizedCrop, StreamLoader
        logging.getLogger("streamloader.decode").setLevel(logging.ERROR)
        def make():
            return StreamLoader({str(pictures)!r}, batch_size=8, shuffle=True, device="cpu",
                                transform=RandomResizedCrop(24))
        stream = make()
        batches = iter(stream)
        held = next(batches)
        child = os.fork()
        if child == 0:
            for use in (lambda: next(batches), lambda: iter(stream)):
                try:
                    use()
                except ConfigError as error:
                    assert "forked process" in str(error), error
                else:
                    sys.exit("the parent's loader was used")
            with make() as own:
                assert sum(int(batch["valid"].sum()) for batch in own) == 83
            del batches, stream, held, use, own
            gc.collect()
            sys.exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        left = [number for batch in batches for number in batch["index"][batch["valid"]].tolist()]
        assert len(set(left)) == 83 - 8, len(left)
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr


def test_ctrl_c_ends_a_wait_for_storage_that_does_not_answer(pictures):
    script = f"""
        import asyncio
        from streamloader import RandomResizedCrop, StreamLoader
        stream = StreamLoader({str(pictures)!r}, batch_size=8, device="cpu",
                              transform=RandomResizedCrop(24))
        async def never(*arguments, **options):
            print("waits", flush=True)
            await asyncio.Event().wait()
        stream._engine.catalog.catalogs[0].store.read_into = never
        try:
            next(iter(stream))
        finally:
            stream.close()
            print("closed", flush=True)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "waits\n"
    process.send_signal(signal.SIGINT)
    told, errors = process.communicate(timeout=60)  # the stall timeout would be 120 s
    assert told.endswith("closed\n")
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert process.returncode == -signal.SIGINT

import asyncio
import threading

import pytest

from streamloader.fetch import LoopThread


def test_a_coroutine_runs_in_the_named_thread_even_inside_a_running_loop():
    async def name() -> str:
        return threading.current_thread().name

    async def caller() -> str:
        with LoopThread("test") as loop_thread:
            return loop_thread.run(name())

    assert asyncio.run(caller()) == "streamloader-test"


def test_closing_cancels_what_runs_and_waits_for_its_clean_up():
    cleaned = threading.Event()
    started = threading.Event()

    async def forever() -> None:
        try:
            started.set()
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    loop_thread = LoopThread("test").start()
    running = loop_thread.submit(forever())
    assert started.wait(5)
    loop_thread.close()
    loop_thread.close()
    assert cleaned.is_set()
    with pytest.raises(asyncio.CancelledError):
        running.result()


def test_stopping_waits_for_the_clean_up_even_of_what_has_hardly_begun():
    cleaned = []

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            cleaned.append(True)

    with LoopThread("test") as loop_thread:
        for _ in range(50):
            running = loop_thread.submit(forever())
            running.stop()
            with pytest.raises(asyncio.CancelledError):
                running.result()
        started = threading.Event()

        async def told() -> None:
            started.set()
            await forever()

        running = loop_thread.submit(told())
        assert started.wait(5)
        cleaned.clear()
        running.stop()
        assert cleaned == [True]


def test_a_closed_loop_thread_refuses_work():
    loop_thread = LoopThread("test").start()
    loop_thread.close()

    async def nothing() -> None:
        return None

    with pytest.raises(RuntimeError, match="closed"):
        loop_thread.run(nothing())


def test_an_exception_comes_back_with_its_type():
    async def fail() -> None:
        raise LookupError("gone")

    with LoopThread("test") as loop_thread, pytest.raises(LookupError, match="gone"):
        loop_thread.run(fail())

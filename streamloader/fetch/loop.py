"""An asyncio event loop that lives in a thread of its own.

The caller's thread may itself run an event loop (a notebook, a server), so nothing here
calls ``asyncio.run`` in it: coroutines are handed to this thread and awaited from outside.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Running(Generic[T]):
    """A coroutine that runs on a :class:`LoopThread`, seen from other threads."""

    def __init__(self, loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, T]) -> None:
        self._loop = loop
        self._coro = coro
        self._task: asyncio.Task[T] | None = None
        self._ended = threading.Event()
        loop.call_soon_threadsafe(self._start)

    def _start(self) -> None:
        self._task = self._loop.create_task(self._coro)
        self._task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[T]) -> None:
        if not task.cancelled():
            task.exception()  # looked at here, so that one nobody asks for is no warning
        self._ended.set()

    def result(self) -> T:
        """Waits for the end and gives the result, or raises what the coroutine raised."""
        self._ended.wait()
        assert self._task is not None
        return self._task.result()

    def stop(self) -> None:
        """Cancels the coroutine and waits for its clean-up; not from the loop's own thread."""
        self._loop.call_soon_threadsafe(self._cancel)
        self._ended.wait()

    def _cancel(self) -> None:
        # Scheduled behind _start, so the task is there.
        assert self._task is not None
        self._task.cancel()


class LoopThread:
    """Owns one event loop and the thread that runs it.

    Args:
        name: the thread is named ``streamloader-<name>``.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._main, name=f"streamloader-{name}", daemon=False
        )
        self._lock = threading.Lock()
        self._started = False
        self._closed = False

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def start(self) -> LoopThread:
        with self._lock:
            if self._closed:
                raise RuntimeError("this loop thread is closed")
            if not self._started:
                self._started = True
                self._thread.start()
        return self

    def submit(self, coro: Coroutine[Any, Any, T]) -> Running[T]:
        """Schedules a coroutine and returns at once."""
        with self._lock:
            if self._closed:
                coro.close()
                raise RuntimeError("this loop thread is closed")
            return Running(self._loop, coro)

    def run(self, coro: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine to its end and returns its result.

        An exception in the caller's thread while it waits (Ctrl-C) cancels the coroutine
        and waits for its clean-up before it goes on.
        """
        running = self.submit(coro)
        try:
            return running.result()
        except BaseException:
            running.stop()
            raise

    def close(self) -> None:
        """Cancels what still runs, waits for it, stops the loop and joins the thread."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if not self._started:
                self._loop.close()
                return
        self._loop.call_soon_threadsafe(self._loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> LoopThread:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._cancel_rest()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
        finally:
            asyncio.set_event_loop(None)
            self._loop.close()

    def _cancel_rest(self) -> None:
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))

"""The iterator of one epoch: waits for batches and hands them over."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from streamloader._closing import outside_own_threads
from streamloader._outbox import Closed
from streamloader._run import Run
from streamloader.batch import Batch
from streamloader.errors import ConfigError

if TYPE_CHECKING:
    from streamloader.loader import StreamLoader


class EpochIterator(Iterator[Batch], AsyncIterator[Batch]):
    """Batches of one run; a newer iterator of the same loader ends it.

    The loader knows it only weakly: once the training loop drops it, its run ends.
    """

    # The two classes are one mechanism in two lifetimes, so this one reads the loader's parts.
    # ruff: noqa: SLF001

    def __init__(self, loader: StreamLoader, run: Run) -> None:
        self._loader = loader
        self._run = run
        self._delivery = loader._delivery
        self._counters = loader._engine.counters
        self._state = loader._cursor
        self._lock = threading.Lock()
        self._ended = False
        self._exhausted = False

    def __next__(self) -> Batch:
        self._loader._engine.refuse_fork()
        if self._exhausted:
            raise StopIteration
        if self._ended:
            raise _refuse_stale(self._run.epoch)
        try:
            with self._timed("wait_s"):
                filled = self._run.take()
            self._loader._fresh = False
            if filled is None:
                self._exhausted = True
                self.end()
                raise StopIteration
            if self._run.is_planned:
                self._loader._start_following(self._run)
            with self._timed("transfer_s"):
                fields = self._delivery.deliver(self._run, filled)
        except Closed:
            raise _refuse_stale(self._run.epoch) from None
        except BaseException:
            self.end()
            raise
        self._state = self._run.state_after(self._state, filled)
        self._loader._cursor = self._state
        self._counters.add("batches")
        self._counters.add("samples", int(filled.plan.valid.sum()))
        return Batch(fields, self._loader._stamped(self._state))

    def __aiter__(self) -> AsyncIterator[Batch]:
        return self

    async def __anext__(self) -> Batch:
        """As ``next``, while the caller's event loop goes on."""
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        self._run.outbox.when_ready(lambda: loop.call_soon_threadsafe(ready.set))
        try:
            async with asyncio.timeout(self._run.settings.stall_timeout_s):
                await ready.wait()
        except TimeoutError:
            raise TimeoutError(f"no batch came: {self._run.describe_stall()}") from None
        try:
            return self.__next__()
        except StopIteration:
            raise StopAsyncIteration from None

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self._counters.observe(stage, time.perf_counter() - started)

    def end(self) -> None:
        """Stops what runs for this iterator; may be called twice."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
        self._run.stop()

    def __del__(
        self,
        # Bound here, since the module may be taken apart before the last iterator.
        is_finalizing: Callable[[], bool] = sys.is_finalizing,
        outside: Callable[[Callable[[], None]], None] = outside_own_threads,
    ) -> None:
        if not self._ended and not is_finalizing():  # at exit the engine has ended the run
            outside(self.end)


def _refuse_stale(epoch: int) -> ConfigError:
    """The error for an iterator that a newer one ended."""
    return ConfigError(
        f"this iterator of epoch {epoch} was ended by a newer iter(loader), or by close()"
    )

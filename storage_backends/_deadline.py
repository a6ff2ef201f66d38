"""Bounds of time for many operations at once, with one timer for all of them."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any


class Deadlines:
    """Cuts off what takes longer than ``timeout_s``; belongs to one event loop.

    A timer for each operation costs as much as making its request. All operations here may take
    equally long, so they are due in the order in which they began, and one timer is enough.

    Args:
        timeout_s: what every operation may take.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._running: dict[Deadline, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, now: float) -> Deadline:
        """An operation of the current task, to be run inside ``with``; ``now`` in loop's time."""
        task = asyncio.current_task()
        assert task is not None
        running = self._running
        deadline = Deadline(running, task, now + self._timeout_s)
        running[deadline] = None
        if self._timer is None:
            self._arm(deadline)
        return deadline

    def _arm(self, deadline: Deadline) -> None:
        self._timer = asyncio.get_running_loop().call_at(deadline.at, self._look)

    def _look(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        for deadline in self._running:
            if deadline.at > now:
                self._arm(deadline)
                return
            deadline.expire()


class Deadline:
    """When one operation has to be over; as ``asyncio.timeout``, TimeoutError if it is not."""

    __slots__ = ("_cancelling", "_passed", "_running", "_task", "at")

    def __init__(self, running: dict[Deadline, None], task: asyncio.Task[Any], at: float) -> None:
        self._running = running
        self._task = task
        self._cancelling = task.cancelling()
        self._passed = False
        self.at = at

    def expire(self) -> None:
        """Cancels the operation, once."""
        if not self._passed:
            self._passed = True
            self._task.cancel()

    def __enter__(self) -> None:
        """The operation begins."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        del self._running[self]
        if self._passed:
            alone = self._task.uncancel() <= self._cancelling
            if alone and kind is asyncio.CancelledError:
                raise TimeoutError from error

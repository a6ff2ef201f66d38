"""Hands finished batches from the workers to the consumer, in batch order."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Closed(Exception):
    """The outbox was closed while, or before, somebody waited for a batch."""


class Outbox(Generic[T]):
    """Batches arrive in any order and leave in the order of their numbers, from 0.

    Args:
        total: number of batches.
        on_wait: called in the consumer's thread when it is about to wait.
        on_ready: called with each batch, in order, before ``get`` gives it; must not block.
    """

    def __init__(
        self, total: int, *, on_wait: Callable[[], None], on_ready: Callable[[T], None]
    ) -> None:
        self._total = total
        self._on_wait = on_wait
        self._on_ready = on_ready
        self._changed = threading.Condition()
        self._items: dict[int, T] = {}
        self._next = 0
        self._ready_up_to = 0
        self._failure: BaseException | None = None
        self._closed = False
        self._waiting = False
        self._watchers: list[Callable[[], object]] = []

    @property
    def consumer_waits(self) -> bool:
        """Whether the consumer is blocked in ``get`` at this moment."""
        return self._waiting

    @property
    def next_number(self) -> int:
        """Number of the batch that the consumer gets next."""
        return self._next

    def put(self, number: int, item: T) -> bool:
        """Stores a batch; False if the outbox is closed and the caller keeps it."""
        with self._changed:
            if self._closed:
                return False
            self._items[number] = item
            while self._ready_up_to in self._items:
                self._on_ready(self._items[self._ready_up_to])
                self._ready_up_to += 1
            self._tell()
            return True

    def fail(self, error: BaseException) -> None:
        """The next ``get`` raises ``error``; only the first failure counts."""
        with self._changed:
            if self._failure is None:
                self._failure = error
            self._tell()

    def get(self, stall_timeout_s: float, describe: Callable[[], str]) -> T | None:
        """The next batch, or None after the last one.

        Raises:
            Closed: the outbox was closed.
            TimeoutError: nothing came for ``stall_timeout_s``; ``describe()`` says what is
                stuck.
            BaseException: what a room reported by ``fail``.
        """
        with self._changed:
            if not self._ready():
                self._wait(stall_timeout_s, describe)
            if self._failure is not None:
                raise self._failure
            if self._closed:
                raise Closed
            if self._next >= self._total:
                return None
            item = self._items.pop(self._next)
            self._next += 1
            return item

    def close(self) -> None:
        """Refuses everything from now on and wakes who waits."""
        with self._changed:
            self._closed = True
            self._items.clear()
            self._tell()

    def when_ready(self, callback: Callable[[], object]) -> None:
        """Calls ``callback`` once ``get`` would not wait: now, or later from any thread."""
        with self._changed:
            if not self._ready():
                self._watchers.append(callback)
                self._waiting = True
                self._on_wait()
                return
        callback()

    def _tell(self) -> None:
        self._changed.notify_all()
        if self._watchers and self._ready():
            watchers, self._watchers = self._watchers, []
            self._waiting = False
            for watcher in watchers:
                watcher()

    def _ready(self) -> bool:
        return (
            self._failure is not None
            or self._closed
            or self._next >= self._total
            or self._next < self._ready_up_to
        )

    def _wait(self, stall_timeout_s: float, describe: Callable[[], str]) -> None:
        self._waiting = True
        try:
            self._on_wait()
            deadline = time.monotonic() + stall_timeout_s
            while not self._ready():
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f"no batch came for {stall_timeout_s:g} s: {describe()}")
                self._changed.wait(left)
        finally:
            self._waiting = False

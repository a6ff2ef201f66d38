"""How a finaliser gives something back.

A finaliser runs in whatever thread drops the last reference, also inside a garbage collection that
interrupts a thread which holds one of our locks. So nothing on this way may take a lock.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class ReturnBox(Generic[T]):
    """Takes things back from finalisers; their owner collects them later, under its own lock.

    Args:
        notify: called after each return, in the returning thread. It must be cheap and must not
            take a lock that Python code holds: ``queue.SimpleQueue.put``, ``os.write`` to an
            eventfd and ``loop.call_soon_threadsafe`` are fine, ``threading.Event.set`` is not.
    """

    __slots__ = ("_closed", "_items", "_notify")

    def __init__(self, notify: Callable[[], None]) -> None:
        self._items: deque[T] = deque()
        self._notify = notify
        self._closed = False

    def put(self, item: T) -> None:
        """Gives ``item`` back. Safe in any thread and in a finaliser."""
        self._items.append(item)
        # Looked at after the append: whichever of put and close comes second lets the item go.
        if self._closed:
            self._items.clear()
        elif not sys.is_finalizing():
            self._notify()

    def take_all(self) -> list[T]:
        """What came back since the last call."""
        taken: list[T] = []
        while True:
            try:
                taken.append(self._items.popleft())
            except IndexError:
                return taken

    def close(self) -> None:
        """From now on whatever comes back is let go at once."""
        self._closed = True
        self._items.clear()

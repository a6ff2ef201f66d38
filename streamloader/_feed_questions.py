"""Questions to a feed process, and its answers, which come in any order or never."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

_ANSWER_TIMEOUT_S = 5.0


class Questions:
    """Any thread may ask, except the one that takes in the answers.

    Args:
        send: sends a message to the feed process.
    """

    def __init__(self, send: Callable[[object], None]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._open: dict[int, SimpleQueue[Any]] = {}
        self._last = 0

    def ask(self, question: Callable[[int], object]) -> Any:
        """The answer to the question of a number; None if none comes in time."""
        answer: SimpleQueue[Any] = SimpleQueue()
        with self._lock:
            self._last += 1
            number = self._last
            self._open[number] = answer
        self._send(question(number))
        try:
            return answer.get(timeout=_ANSWER_TIMEOUT_S)
        except Empty:
            return None
        finally:
            with self._lock:
                del self._open[number]

    def answered(self, number: int, value: Any) -> None:
        """An answer came."""
        with self._lock:
            if number in self._open:
                self._open[number].put(value)

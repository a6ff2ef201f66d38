"""How many requests run at once: more while that brings more bytes, fewer when throttled."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

_FIRST_LIMIT = 16
_GROWTH = 1.5
#: What a higher limit must bring, relative to the lower one, to be kept.
_WORTH = 1.05
_WINDOW_S = 0.25
#: Windows that pass before a limit that brought nothing is tried again, at least and at most.
_HOLD_WINDOWS = (8, 128)
_THROTTLE_S = 1.0


class Gate:
    """Admits requests, first come, first served; belongs to one event loop.

    The limit grows by half while a saturated window brings at least 5 % more bytes per second than
    the one before it, falls back when it does not, and is halved, at most once a second, when the
    server asks to slow down. What brought nothing is tried again after a hold that doubles.

    Args:
        most: bound of requests.
        most_bytes: bound of the bytes asked for; a single larger request is admitted alone.
        now: the loop's time.

    Attributes:
        limit: requests that may run at once, now.
        in_flight: requests that run.
        bytes_in_flight: bytes that they have asked for.
    """

    def __init__(self, most: int, most_bytes: int, now: Callable[[], float]) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._now = now
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.limit = min(_FIRST_LIMIT, most)
        self.in_flight = 0
        self.bytes_in_flight = 0
        self._window_from = now()
        self._window_bytes = 0
        self._saturated = False
        self._before: tuple[int, float] | None = None
        self._hold = 0
        self._next_hold = _HOLD_WINDOWS[0]
        self._throttled_at = float("-inf")

    def try_enter(self, nbytes: int) -> bool:
        """Admission without a wait, if there is any; True must be followed by one ``leave``."""
        if self._waiting or not self._admits(nbytes):
            return False
        self._admit(nbytes)
        return True

    async def enter(self, nbytes: int) -> None:
        """Admission; every return must be followed by one ``leave``."""
        if not self.try_enter(nbytes):
            await self.wait(nbytes)

    async def wait(self, nbytes: int) -> None:
        """Waits for the admission that ``try_enter`` has refused."""
        self._saturated = True
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((nbytes, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                # Admitted and cancelled at once.
                self.leave(nbytes, 0)
            elif (nbytes, turn) in self._waiting:
                self._waiting.remove((nbytes, turn))
            raise

    def leave(self, nbytes: int, received: int) -> None:
        """The request has ended, ``received`` bytes of its ``nbytes`` have come."""
        self.in_flight -= 1
        self.bytes_in_flight -= nbytes
        self._window_bytes += received
        elapsed = self._now() - self._window_from
        if elapsed >= _WINDOW_S:
            self._judge(self._window_bytes / elapsed)
        if self._waiting:
            self._wake()

    def throttled(self) -> None:
        """The server asked to slow down."""
        now = self._now()
        if now - self._throttled_at < _THROTTLE_S:
            return
        self._throttled_at = now
        self.limit = max(1, self.limit // 2)
        self._before = None
        self._hold = _HOLD_WINDOWS[0]

    def _judge(self, rate: float) -> None:
        """Adjusts the limit at the end of a window."""
        saturated, self._saturated = self._saturated, bool(self._waiting)
        self._window_from, self._window_bytes = self._now(), 0
        if not saturated:
            self._before = None
            return
        if self._before is not None:
            lower, its_rate = self._before
            self._before = None
            if rate < its_rate * _WORTH:
                self.limit = lower
                self._hold = self._next_hold
                self._next_hold = min(2 * self._next_hold, _HOLD_WINDOWS[1])
                return
            self._next_hold = _HOLD_WINDOWS[0]
        if self._hold:
            self._hold -= 1
        elif self.limit < self._most:
            self._before = (self.limit, rate)
            self.limit = min(self._most, max(self.limit + 1, int(self.limit * _GROWTH)))

    def _admits(self, nbytes: int) -> bool:
        fits = self.bytes_in_flight + nbytes <= self._most_bytes or not self.in_flight
        return self.in_flight < self.limit and fits

    def _admit(self, nbytes: int) -> None:
        self.in_flight += 1
        self.bytes_in_flight += nbytes

    def _wake(self) -> None:
        while self._waiting and self._admits(self._waiting[0][0]):
            nbytes, turn = self._waiting.popleft()
            if not turn.done():
                self._admit(nbytes)
                turn.set_result(None)

"""Connections to one server that are kept for the next request, and watched while they work."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from operator import attrgetter

from storage_backends.http_connection import Broken, Connection
from storage_backends.http_dial import Origin, dial

#: Longest silence before a head or within a body, after which the request is made again.
SILENCE_S = 10.0
#: A body must come at this rate, or at a quarter of the mean of those that come beside it.
SLOWEST_BYTES_PER_S = 64 * 2**10
RATE_WINDOW_S = 5.0
_TICK_S = 0.025
#: Servers close what is idle for longer, S3 after some 20 s.
_IDLE_S = 15.0
_now = time.monotonic
_touched = attrgetter("touched")


class Pool:
    """Idle and working connections to one server; belongs to one event loop.

    Args:
        origin: the server.
        tls: for https.
        slow_after_s: asked on every tick; an exchange that is silent for longer is called slow.
    """

    def __init__(
        self, origin: Origin, tls: ssl.SSLContext | None, slow_after_s: Callable[[], float]
    ) -> None:
        self._origin = origin
        self._tls = tls
        self._slow_after_s = slow_after_s
        self._loop = asyncio.get_running_loop()
        self._idle: list[Connection] = []
        self._working: set[Connection] = set()
        self._window_from = 0.0
        self._window_finished = 0
        self._window_start: dict[Connection, tuple[float, int]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._ended = False

    def take_idle(self) -> Connection | None:
        """The connection that was used last and is fit for another exchange."""
        while self._idle:
            connection = self._idle.pop()
            fresh = _now() - connection.touched < _IDLE_S
            if fresh and connection.is_clean():
                self._watch(connection)
                return connection
            connection.abort()
        return None

    async def dial(self) -> Connection:
        """A fresh connection. Raises OSError, TimeoutError or Broken."""
        connection = await dial(self._origin, self._tls)
        if self._ended:
            connection.abort()
            raise Broken("ConnectionLost", "the store was closed")
        self._watch(connection)
        return connection

    def give_back(self, connection: Connection) -> None:
        """Ends the watch; keeps the connection if it is fit for another exchange."""
        self._working.discard(connection)
        self._window_finished += connection.received
        if connection.usable and not self._ended:
            self._idle.append(connection)
        else:
            connection.abort()

    def close(self) -> None:
        """Closes every connection."""
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        every = [*self._idle, *self._working]
        self._idle.clear()
        self._working.clear()
        for connection in every:
            connection.abort()

    def _watch(self, connection: Connection) -> None:
        self._working.add(connection)
        if self._timer is None:
            self._begin_window()
            self._timer = self._loop.call_later(_TICK_S, self._tick)

    def _tick(self) -> None:
        """Looks at every exchange: silence ends it, a short silence calls it slow."""
        now = _now()
        slow_after_s = self._slow_after_s()
        quiet = [c for c in self._working if c.running and now - c.touched >= slow_after_s]
        # Second requests are few: the longest silence has the first choice.
        quiet.sort(key=_touched)
        for connection in quiet:
            if now - connection.touched >= SILENCE_S:
                connection.fail(_too_quiet(connection))
            else:
                connection.call_slow()
        if now - self._window_from >= RATE_WINDOW_S:
            self._end_dripping(now - self._window_from)
            self._begin_window()
        self._timer = self._loop.call_later(_TICK_S, self._tick) if self._working else None

    def _begin_window(self) -> None:
        self._window_from = _now()
        self._window_finished = 0
        self._window_start = {
            connection: (connection.began, connection.received)
            for connection in self._working
            if connection.running
        }

    def _end_dripping(self, seconds: float) -> None:
        """Ends what came at a fraction of the rate of the others, all through a window.

        Where all are slow, it is the network, and asking again would only make it worse.
        """
        gained: dict[Connection, int] = {}
        total = self._window_finished
        for connection in self._working:
            if connection.running:
                began, before = self._window_start.get(connection, (None, 0))
                whole = began == connection.began
                total += connection.received - (before if whole else 0)
                if whole:
                    gained[connection] = connection.received - before
        others = len(self._working) - 1
        for connection, nbytes in gained.items():
            rate, beside = nbytes / seconds, (total - nbytes) / seconds
            if rate < SLOWEST_BYTES_PER_S and (not others or rate < beside / others / 4):
                connection.fail(_too_slow(connection, rate))


def _too_quiet(connection: Connection) -> Broken:
    return Broken(
        "ReadTimeout", f"no byte for {SILENCE_S:g} s", answered=connection.head is not None
    )


def _too_slow(connection: Connection, rate: float) -> Broken:
    why = f"{rate / 1024:.1f} KiB/s for {RATE_WINDOW_S:g} s"
    return Broken("TooSlow", why, answered=connection.head is not None)

"""Reads objects over HTTP into the caller's memory: parts, attempts, hedged second requests."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from storage_backends._cancellation import all_or_none
from storage_backends._retry import Fault, RetryPolicy
from storage_backends.errors import Throttled
from storage_backends.http_connection import Broken, Connection, Progress
from storage_backends.http_dial import Origin
from storage_backends.http_faults import Refusal, broken_fault, dial_fault, refusal_fault
from storage_backends.http_gate import Gate
from storage_backends.http_head import ResponseHead
from storage_backends.http_hedge import Hedge
from storage_backends.http_part import Part, Version, WholeObject
from storage_backends.http_pool import Pool
from storage_backends.refusals import Place
from storage_backends.store import Counters

#: A larger read is split into parts of about this size, which are read side by side.
PART_BYTES = 8 * 2**20
_MAX_BYTES_IN_FLIGHT = 256 * 2**20

T = TypeVar("T")


class Source(Protocol):
    """Where objects are and what a request for one looks like."""

    def origin(self, key: str) -> Origin:
        """The server that has an object; another one after a redirection."""

    @property
    def tls(self) -> ssl.SSLContext | None:
        """How its certificate is checked."""

    async def prepare(self, place: Place) -> None:
        """Called before every attempt: renews credentials whose time is nearly over."""

    def request(self, method: str, key: str) -> str:
        """Request line and headers, without the empty line."""

    async def mend(self, refusal: Refusal) -> bool:
        """After a refusal: changes what can be changed; True if the request may go well now."""


class HttpReader:
    """Belongs to one event loop.

    Args:
        source: what to ask for.
        policy: repeats attempts.
        counters: gets ``storage.requests``, ``storage.bytes_read``, ``storage.reconnects``,
            ``storage.hedges`` and ``storage.hedges_won``.
        max_connections: bound of requests at once.
    """

    def __init__(
        self, source: Source, policy: RetryPolicy, counters: Counters, max_connections: int
    ) -> None:
        loop = asyncio.get_running_loop()
        self._source = source
        self._policy = policy
        self._counters = counters
        self._now = loop.time
        self._hedge = Hedge()
        self._gate = Gate(max_connections, _MAX_BYTES_IN_FLIGHT, loop.time)
        self._pools: dict[Origin, Pool] = {}

    async def read_into(
        self, place: Place, key: str, target: memoryview, offset: int, etag: str | None
    ) -> None:
        """Fills ``target``; as ``Store.read_into``."""
        start = self._now()
        version = Version(etag)
        count = max(1, round(len(target) / PART_BYTES))
        if count == 1:
            await self._repeat(Part(place, key, target, offset, version))
        else:
            size = -(-len(target) // count)
            parts = [
                Part(place, key, target[at : at + size], offset + at, version)
                for at in range(0, len(target), size)
            ]
            await all_or_none([self._repeat(part) for part in parts])
        self._counters.observe("storage.read_s", self._now() - start)

    async def read(self, place: Place, key: str, max_bytes: int) -> bytes:
        """The whole of a small object; as ``Store.read``."""
        whole = WholeObject(place, key, max_bytes)
        await self._repeat(whole)
        return bytes(whole.target)

    async def head(self, place: Place, key: str) -> ResponseHead:
        """The head of the answer to HEAD, under the retry policy. Raises StorageError."""

        part = Part(place, key, memoryview(bytearray()), 0, Version(None))

        async def follow(connection: Connection) -> ResponseHead:
            request = f"{self._source.request('HEAD', key)}\r\n"
            connection.send(request.encode(), lambda _: None, without_body=True)
            await _ended(connection)
            await self._judge(connection, part)
            assert connection.head is not None
            return connection.head

        async def attempt() -> ResponseHead:
            await self._source.prepare(place)
            return await self._exchange(part, follow)

        return await self._policy.run(attempt, place.url)

    async def close(self) -> None:
        """Closes every connection."""
        pools, self._pools = list(self._pools.values()), {}
        for pool in pools:
            await pool.close()

    async def _repeat(self, part: Part) -> None:
        await self._policy.run(lambda: self._attempt(part), part.place.url)

    async def _attempt(self, part: Part) -> None:
        """Reads what is missing. Raises Fault."""
        await self._source.prepare(part.place)
        missing, before = part.missing, part.done
        await self._gate.enter(missing)
        try:
            await self._read(part, hedged=True)
        except Fault as fault:
            if isinstance(fault.error, Throttled):
                self._gate.throttled()
            raise
        finally:
            self._gate.leave(missing, part.done - before)
            self._counters.add("storage.bytes_read", part.done - before)

    async def _read(self, part: Part, *, hedged: bool) -> None:
        """One request for what is missing, and a second one if the first is slow.

        That second one is not ``hedged``, and counted here, where it is sure to be sent.
        """
        if not hedged:
            self._counters.add("storage.hedges")
        request = f"{self._source.request('GET', part.key)}{part.lines()}\r\n".encode()

        async def follow(connection: Connection) -> None:
            connection.send(request, part.accept)
            await self._follow(connection, part, hedged=hedged)

        await self._exchange(part, follow)

    async def _exchange(
        self, part: Part, follow: Callable[[Connection], Coroutine[Any, Any, T]]
    ) -> T:
        """Runs ``follow`` on a connection. Raises Fault.

        An idle connection may be closed by the server at the very moment of its use, which says
        nothing about the server: the request goes out again at once.
        """
        place = part.place
        while True:
            pool = self._pool(part.key)
            self._counters.add("storage.requests")
            connection = await _connect(pool, place)
            stale = connection.reused
            try:
                return await follow(connection)
            except Broken as broken:
                if not (stale and broken.code == "ConnectionLost" and not broken.answered):
                    raise broken_fault(broken, place, part.done, part.wanted) from broken
                self._counters.add("storage.reconnects")
            finally:
                pool.give_back(connection)

    def _pool(self, key: str) -> Pool:
        """The connections to the server that the source names now."""
        origin = self._source.origin(key)
        pool = self._pools.get(origin)
        if pool is None:
            pool = Pool(origin, self._source.tls, lambda: self._hedge.after_s)
            self._pools[origin] = pool
        return pool

    async def _follow(self, connection: Connection, part: Part, *, hedged: bool) -> None:
        """Waits for the answer to what was sent. Raises Broken or Fault."""
        won = False
        try:
            while await connection.wait() is Progress.SLOW:
                # How much is missing of a whole object is known from its first answer only.
                unfinished = part.missing > connection.received
                if hedged and unfinished and self._hedge.may_send():
                    won = await self._race(connection, part)
                    break
        finally:
            part.done = part.wanted if won else part.done + connection.received
        quiet_s = max(connection.quiet_s, self._now() - connection.touched)
        self._hedge.learn(quiet_s)
        if not won:
            await self._judge(connection, part)

    async def _judge(self, connection: Connection, part: Part) -> None:
        """Raises Fault if the answer is a refusal."""
        self._policy.note_answer()
        head = connection.head
        assert head is not None
        if head.status in (200, 206):
            return
        fault = part.sharper(refusal_fault(head, connection.text, part.place))
        if await self._source.mend(Refusal(part.key, head, connection.text, fault)):
            fault.transient = True
        raise fault

    async def _race(self, slow: Connection, part: Part) -> bool:
        """Asks for the rest a second time, into memory of its own; True if that was faster.

        Raises:
            Broken, Fault: both have failed.
        """
        start = part.done + slow.received
        memory = memoryview(bytearray(part.wanted - start))
        second = Part(part.place, part.key, memory, part.offset + start, part.version)
        first = asyncio.ensure_future(_ended(slow))
        rival = asyncio.ensure_future(self._read(second, hedged=False))
        try:
            await asyncio.wait([first, rival], return_when=asyncio.FIRST_COMPLETED)
            if not _succeeded(first) and not _succeeded(rival):
                # One has failed, and leaves it to the other.
                await asyncio.wait([first, rival])
            won = _succeeded(rival) and not _succeeded(first)
        finally:
            if not _succeeded(first):
                slow.abort()
            first.cancel()
            rival.cancel()
            await asyncio.gather(first, rival, return_exceptions=True)
        if won:
            self._counters.add("storage.hedges_won")
            part.target[start:] = memory
        else:
            first.result()
        return won


async def _connect(pool: Pool, place: Place) -> Connection:
    connection = pool.take_idle()
    if connection is not None:
        return connection
    try:
        return await pool.dial()
    except OSError as error:
        raise dial_fault(error, place) from error
    except Broken as broken:
        raise broken_fault(broken, place, 0, 0) from broken


async def _ended(connection: Connection) -> None:
    while await connection.wait() is Progress.SLOW:
        continue


def _succeeded(task: asyncio.Future[None]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None

"""Reads objects over HTTP into the caller's memory: parts, attempts, hedged second requests."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Coroutine
from typing import Any, Protocol

from storage_backends._cancellation import all_or_none
from storage_backends._retry import Fault, RetryPolicy
from storage_backends.errors import Throttled
from storage_backends.http_connection import Accept, Broken, Connection, Progress
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
#: Parts begin where the whole does within a page: some processors copy several times slower to
#: certain distances from the start of a page.
_PAGE_BYTES = 4096
_MAX_BYTES_IN_FLIGHT = 256 * 2**20
_now = time.monotonic
#: Looking up a member of an enumeration costs ten times a global name.
_SLOW = Progress.SLOW


class Source(Protocol):
    """Where objects are and what a request for one looks like."""

    def origin(self, key: str) -> Origin:
        """The server that has an object; another one after a redirection."""

    def tls(self, origin: Origin) -> ssl.SSLContext | None:
        """How the certificate of a server is checked; None for one without."""

    def is_ready(self) -> bool:
        """Nothing has to be prepared for a request that begins now."""

    async def prepare(self, place: Place) -> None:
        """Renews credentials whose time is nearly over. Raises Fault."""

    def request(self, method: str, key: str) -> bytes:
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
        self._source = source
        self._policy = policy
        self._counters = counters
        self._hedge = Hedge()
        self._gate = Gate(max_connections, _MAX_BYTES_IN_FLIGHT, _now)
        self._pools: dict[Origin, Pool] = {}
        self._latest: tuple[Origin, Pool] | None = None

    async def read_into(
        self, place: Place, key: str, target: memoryview, offset: int, etag: str | None
    ) -> None:
        """Fills ``target``; as ``Store.read_into``."""
        start = _now()
        version = Version(etag)
        nbytes = len(target)
        count = round(nbytes / PART_BYTES)
        if count <= 1:
            await self._repeat(Part(place, key, target, offset, version))
        else:
            size = -(-nbytes // (count * _PAGE_BYTES)) * _PAGE_BYTES
            parts = [
                Part(place, key, target[at : at + size], offset + at, version)
                for at in range(0, nbytes, size)
            ]
            await all_or_none([self._repeat(part) for part in parts])
        self._counters.observe("storage.read_s", _now() - start)

    async def read(self, place: Place, key: str, max_bytes: int) -> bytes:
        """The whole of a small object; as ``Store.read``."""
        whole = WholeObject(place, key, max_bytes)
        await self._repeat(whole)
        return bytes(whole.target)

    async def head(self, place: Place, key: str) -> ResponseHead:
        """The head of the answer to HEAD, under the retry policy. Raises StorageError."""
        part = Part(place, key, memoryview(bytearray()), 0, Version(None))
        return await self._policy.run(self._head, place.url, part)

    async def close(self) -> None:
        """Closes every connection."""
        pools, self._pools, self._latest = list(self._pools.values()), {}, None
        for pool in pools:
            pool.close()

    def _repeat(self, part: Part) -> Coroutine[Any, Any, None]:
        return self._policy.run(self._attempt, part.place.url, part)

    async def _attempt(self, part: Part) -> None:
        """Reads what is missing. Raises Fault."""
        if not self._source.is_ready():
            await self._source.prepare(part.place)
        before = part.done
        missing = part.wanted - before
        gate = self._gate
        if not gate.try_enter(missing):
            await gate.wait(missing)
        try:
            await self._exchange(part, self._request(part), part.accept, hedged=True)
        except Fault as fault:
            if isinstance(fault.error, Throttled):
                gate.throttled()
            raise
        finally:
            got = part.done - before
            gate.leave(missing, got)
            self._counters.add("storage.bytes_read", got)

    def _request(self, part: Part) -> bytes:
        return b"%b%b\r\n" % (self._source.request("GET", part.key), part.lines())

    async def _read_again(self, part: Part) -> None:
        """The second request for the rest of another part. Raises Fault."""
        # Counted here, where it is sure to be sent. Its answer may be one of the slow ones too.
        self._counters.add("storage.hedges")
        await self._exchange(part, self._request(part), part.accept, hedged=True)

    async def _head(self, part: Part) -> ResponseHead:
        """One request for the head of an object. Raises Fault."""
        await self._source.prepare(part.place)
        request = b"%b\r\n" % self._source.request("HEAD", part.key)
        head = await self._exchange(part, request, None, hedged=False)
        assert head is not None
        return head

    async def _exchange(
        self, part: Part, request: bytes, accept: Accept | None, *, hedged: bool
    ) -> ResponseHead | None:
        """Sends a request and follows its answer; one without ``accept`` is for the head alone.

        An idle connection may be closed by the server at the very moment of its use, which says
        nothing about the server: the request goes out again at once. Raises Fault.

        Returns:
            The head of the answer; None where the answer to a second request was faster.
        """
        while True:
            pool = self._pool(part.key)
            self._counters.add("storage.requests")
            connection = pool.take_idle() or await _connect(pool, part.place)
            stale = connection.reused
            won = False
            try:
                connection.send(request, accept)
                try:
                    while await connection.wait() is _SLOW and connection.running:
                        if hedged and self._is_worth_asking_again(connection, part):
                            won = await self._race(connection, part)
                            break
                finally:
                    part.done = part.wanted if won else part.done + connection.received
                if connection.failure is not None and not won:
                    raise connection.failure
            except Broken as broken:
                self._note_broken(broken, part, stale=stale)
            else:
                self._note_answer(connection)
                head = connection.head
                if won or head is None or head.status in (200, 206):
                    return None if won else head
                raise await self._refusal(head, connection.text, part)
            finally:
                pool.give_back(connection)

    def _note_broken(self, broken: Broken, part: Part, *, stale: bool) -> None:
        """Returns if the request may go out again at once. Raises Fault."""
        if not (stale and broken.code == "ConnectionLost" and not broken.answered):
            raise broken_fault(broken, part.place, part.done, part.wanted) from broken
        self._counters.add("storage.reconnects")

    def _pool(self, key: str) -> Pool:
        """The connections to the server that the source names now."""
        origin = self._source.origin(key)
        if self._latest is not None and self._latest[0] is origin:
            return self._latest[1]
        pool = self._pools.get(origin)
        if pool is None:
            pool = Pool(origin, self._source.tls(origin), lambda: self._hedge.after_s)
            self._pools[origin] = pool
        self._latest = (origin, pool)
        return pool

    def _is_worth_asking_again(self, connection: Connection, part: Part) -> bool:
        # How much is missing of a whole object is known from its first answer only.
        unfinished = part.missing > connection.received
        return unfinished and self._hedge.may_send(_now() - connection.touched)

    def _note_answer(self, connection: Connection) -> None:
        self._hedge.learn(max(connection.quiet_s, _now() - connection.touched))
        self._policy.note_answer()

    async def _refusal(self, head: ResponseHead, text: bytes, part: Part) -> Fault:
        """The fault of a refusal; a transient one if its reason could be mended."""
        fault = part.sharper(refusal_fault(head, text, part.place))
        if await self._source.mend(Refusal(part.key, head, text, fault)):
            fault.transient = True
        return fault

    async def _race(self, slow: Connection, part: Part) -> bool:
        """Asks for the rest a second time, into memory of its own; True if that was faster.

        Raises:
            Broken, Fault: both have failed.
        """
        start = part.done + slow.received
        memory = memoryview(bytearray(part.wanted - start))
        second = Part(part.place, part.key, memory, part.offset + start, part.version)
        first = asyncio.ensure_future(_ended(slow))
        rival = asyncio.ensure_future(self._read_again(second))
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
    try:
        return await pool.dial()
    except OSError as error:
        raise dial_fault(error, place) from error
    except Broken as broken:
        raise broken_fault(broken, place, 0, 0) from broken


async def _ended(connection: Connection) -> None:
    """Waits for the whole answer. Raises Broken or Fault."""
    while await connection.wait() is _SLOW and connection.running:
        continue
    if connection.failure is not None:
        raise connection.failure


def _succeeded(task: asyncio.Future[None]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None

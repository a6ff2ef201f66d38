"""A proxy between a client and a real S3 server that goes wrong on demand.

Faults are taken in order, one per request, ``None`` for a request that goes well; when there are
none left, every request goes well. Or a function chooses for each request, by a seed of its own.
Signatures stay valid, since the Host header passes through. What the connection itself is like
(latency, bandwidth) holds for every request.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from loopback_server import END, LoopbackServer


@dataclass(frozen=True, slots=True)
class Answer:
    """Answers by itself; the server does not see the request."""

    status: int
    code: str = "Injected"
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Break:
    """Lets ``after_bytes`` of the body through, then breaks the connection.

    A negative number breaks it before the head of the answer, which the server has given.
    """

    after_bytes: int
    reset: bool = False


@dataclass(frozen=True, slots=True)
class Stall:
    """Lets ``after_bytes`` of the body through, then sends nothing until the client leaves."""

    after_bytes: int


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Replaces headers of the answer and cuts its body to ``body_bytes``, consistently."""

    headers: dict[str, str] = field(default_factory=dict)
    body_bytes: int | None = None
    status: int | None = None


@dataclass(frozen=True, slots=True)
class After:
    """Passes the request on once ``action`` is done."""

    action: Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Drip:
    """Sends the body in pieces of ``chunk_bytes``, one per ``pause_s``."""

    chunk_bytes: int
    pause_s: float


@dataclass(frozen=True, slots=True)
class Flip:
    """Flips a bit of one byte of the body, counted from its start, or not if it is shorter."""

    at: int


@dataclass(frozen=True, slots=True)
class SlowStart:
    """Sends the first byte ``seconds`` late."""

    seconds: float


@dataclass(frozen=True, slots=True)
class RefuseBody:
    """Resets the connection once ``after_bytes`` of the request's body, or all of it, came in.

    The server does not see the request.
    """

    after_bytes: int


@dataclass(frozen=True, slots=True)
class IgnoreRange:
    """Asks the server for the whole object, whatever the client asked for."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A request as it came in: the target is what stood on the request line."""

    method: str
    target: str
    headers: dict[str, str]


Fault = (
    Answer | Break | Stall | Rewrite | After | Drip | Flip | SlowStart | RefuseBody | IgnoreRange
)


class FaultProxy(LoopbackServer):
    """Use inside ``async with``.

    Args:
        upstream: URL of the real server.
        latency_s: what every answer is late by.
        bytes_per_s: bound of the rate of every connection; None leaves it as it is.
        port: to listen at; a free one if 0.

    Attributes:
        url: the endpoint to give to the client.
        seen: the requests since the last plan.
        stalls_ended: set when a client has left a stalled body.
    """

    def __init__(
        self,
        upstream: str,
        *,
        latency_s: float = 0.0,
        bytes_per_s: float | None = None,
        port: int = 0,
    ) -> None:
        super().__init__(port=port)
        self._latency_s = latency_s
        self._bytes_per_s = bytes_per_s
        self._choose: Callable[[Seen], Fault | None] | None = None
        host, _, port = upstream.removeprefix("http://").partition(":")
        self._upstream = (host, int(port))
        self._faults: deque[Fault | None] = deque()
        self.stalls_ended = asyncio.Event()
        self.seen: list[Seen] = []

    def plan(self, faults: Iterable[Fault | None]) -> None:
        """Forgets what was seen, and goes wrong in this way from now on."""
        self._faults = deque(faults)
        self._choose = None
        self.seen.clear()

    def plan_by(self, choose: Callable[[Seen], Fault | None]) -> None:
        """Forgets what was seen; from now on ``choose`` says how each request goes."""
        self._choose = choose
        self.seen.clear()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await self._exchange(reader, writer):
            pass

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Handles one request; False if the connection must end."""
        head = await reader.readuntil(END)
        request, headers = _parse(head)
        method, target, _ = request.split(" ", 2)
        self.seen.append(Seen(method, target, headers))
        if self._choose is not None:
            fault = self._choose(self.seen[-1])
        else:
            fault = self._faults.popleft() if self._faults else None
        if headers.get("expect", "").lower() == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue" + END)
        body_bytes = int(headers.get("content-length", 0))
        if isinstance(fault, RefuseBody):
            await reader.readexactly(min(fault.after_bytes, body_bytes))
            _reset(writer)
            return False
        body = await reader.readexactly(body_bytes)
        if isinstance(fault, Answer):
            writer.write(_answer(fault, with_body=method != "HEAD"))
            await writer.drain()
            return True
        if isinstance(fault, After):
            await fault.action()
        if isinstance(fault, IgnoreRange):
            head = re.sub(rb"\r\n[Rr]ange:[^\r]*", b"", head)
        late_s = fault.seconds if isinstance(fault, SlowStart) else 0.0
        if late_s + self._latency_s:
            await asyncio.sleep(late_s + self._latency_s)
        answer_head, answer_body = await self._ask(head, body, method)
        if isinstance(fault, Flip) and fault.at < len(answer_body):
            changed = bytearray(answer_body)
            changed[fault.at] ^= 1
            answer_body = bytes(changed)
        if isinstance(fault, Drip):
            writer.write(answer_head)
            await _send_slowly(writer, answer_body, fault.chunk_bytes, fault.pause_s)
            return True
        if isinstance(fault, Rewrite):
            answer_head, answer_body = _rewritten(fault, answer_head, answer_body)
        if not isinstance(fault, Break | Stall):
            if self._bytes_per_s is not None:
                writer.write(answer_head)
                chunk = max(1, int(self._bytes_per_s / 50))
                await _send_slowly(writer, answer_body, chunk, 1 / 50)
                return True
            writer.write(answer_head + answer_body)
            await writer.drain()
            return True
        if fault.after_bytes >= 0:
            writer.write(answer_head + answer_body[: fault.after_bytes])
            await writer.drain()
        if isinstance(fault, Stall):
            await reader.read(1)
            self.stalls_ended.set()
        elif fault.reset:
            _reset(writer)
        return False

    async def _ask(self, head: bytes, body: bytes, method: str) -> tuple[bytes, bytes]:
        reader, writer = await asyncio.open_connection(*self._upstream, limit=2**20)
        try:
            lines = [
                line
                for line in head[: -len(END)].split(b"\r\n")
                if not line.lower().startswith(b"expect:")
            ]
            writer.write(b"\r\n".join(lines) + END + body)
            answer = await reader.readuntil(END)
            _, headers = _parse(answer)
            length = 0 if method == "HEAD" else int(headers.get("content-length", 0))
            return answer, await reader.readexactly(length)
        finally:
            writer.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Ends the connection with a reset instead of an end of file."""
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _send_slowly(
    writer: asyncio.StreamWriter, body: bytes, chunk_bytes: int, pause_s: float
) -> None:
    for at in range(0, len(body), chunk_bytes):
        writer.write(body[at : at + chunk_bytes])
        await writer.drain()
        await asyncio.sleep(pause_s)


def _parse(head: bytes) -> tuple[str, dict[str, str]]:
    first, *lines = head[: -len(END)].decode("latin-1").split("\r\n")
    pairs = (line.split(":", 1) for line in lines)
    return first, {name.lower(): value.strip() for name, value in pairs}


def _answer(fault: Answer, *, with_body: bool) -> bytes:
    body = f"<Error><Code>{fault.code}</Code><Message>injected</Message></Error>".encode()
    lines = [f"HTTP/1.1 {fault.status} Injected", f"Content-Length: {len(body) * with_body}"]
    lines += [f"{name}: {value}" for name, value in fault.headers.items()]
    return "\r\n".join(lines).encode() + END + (body if with_body else b"")


def _rewritten(fault: Rewrite, head: bytes, body: bytes) -> tuple[bytes, bytes]:
    body = body[: fault.body_bytes]
    first, headers = _parse(head)
    if fault.status is not None:
        first = f"HTTP/1.1 {fault.status} Rewritten"
    headers |= {"content-length": str(len(body))} | fault.headers
    lines = [first, *(f"{name}: {value}" for name, value in headers.items() if value)]
    return "\r\n".join(lines).encode("latin-1") + END, body

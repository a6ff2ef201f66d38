"""A proxy between a client and a real S3 server that goes wrong on demand.

Faults are taken in order, one per request, ``None`` for a request that goes well; when there are
none left, every request goes well. Signatures stay valid, since the Host header passes through.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

_END = b"\r\n\r\n"


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
class Seen:
    """A request as it came in: the target is what stood on the request line."""

    method: str
    target: str
    headers: dict[str, str]


Fault = Answer | Break | Stall | Rewrite | After


class FaultProxy:
    """Use inside ``async with``.

    Attributes:
        url: the endpoint to give to the client.
        seen: the requests since the last plan.
        stalls_ended: set when a client has left a stalled body.
    """

    def __init__(self, upstream: str) -> None:
        host, _, port = upstream.removeprefix("http://").partition(":")
        self._upstream = (host, int(port))
        self._faults: deque[Fault | None] = deque()
        self._clients: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.stalls_ended = asyncio.Event()
        self.seen: list[Seen] = []
        self.url = ""

    def plan(self, faults: Iterable[Fault | None]) -> None:
        """Forgets what was seen, and goes wrong in this way from now on."""
        self._faults = deque(faults)
        self.seen.clear()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=2**20)
        self.url = "http://127.0.0.1:{1}".format(*self._server.sockets[0].getsockname())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._clients:
            task.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._clients.add(task)
        task.add_done_callback(self._clients.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._exchange(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Handles one request; False if the connection must end."""
        head = await reader.readuntil(_END)
        request, headers = _parse(head)
        method, target, _ = request.split(" ", 2)
        self.seen.append(Seen(method, target, headers))
        fault = self._faults.popleft() if self._faults else None
        if headers.get("expect", "").lower() == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue" + _END)
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        if isinstance(fault, Answer):
            writer.write(_answer(fault, with_body=method != "HEAD"))
            await writer.drain()
            return True
        if isinstance(fault, After):
            await fault.action()
        answer_head, answer_body = await self._ask(head, body, method)
        if isinstance(fault, Rewrite):
            answer_head, answer_body = _rewritten(fault, answer_head, answer_body)
        if not isinstance(fault, Break | Stall):
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
            linger = struct.pack("ii", 1, 0)
            connection = writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()
        return False

    async def _ask(self, head: bytes, body: bytes, method: str) -> tuple[bytes, bytes]:
        reader, writer = await asyncio.open_connection(*self._upstream, limit=2**20)
        try:
            lines = [
                line
                for line in head[: -len(_END)].split(b"\r\n")
                if not line.lower().startswith(b"expect:")
            ]
            writer.write(b"\r\n".join(lines) + _END + body)
            answer = await reader.readuntil(_END)
            _, headers = _parse(answer)
            length = 0 if method == "HEAD" else int(headers.get("content-length", 0))
            return answer, await reader.readexactly(length)
        finally:
            writer.close()


def _parse(head: bytes) -> tuple[str, dict[str, str]]:
    first, *lines = head[: -len(_END)].decode("latin-1").split("\r\n")
    pairs = (line.split(":", 1) for line in lines)
    return first, {name.lower(): value.strip() for name, value in pairs}


def _answer(fault: Answer, *, with_body: bool) -> bytes:
    body = f"<Error><Code>{fault.code}</Code><Message>injected</Message></Error>".encode()
    lines = [f"HTTP/1.1 {fault.status} Injected", f"Content-Length: {len(body) * with_body}"]
    lines += [f"{name}: {value}" for name, value in fault.headers.items()]
    return "\r\n".join(lines).encode() + _END + (body if with_body else b"")


def _rewritten(fault: Rewrite, head: bytes, body: bytes) -> tuple[bytes, bytes]:
    body = body[: fault.body_bytes]
    first, headers = _parse(head)
    if fault.status is not None:
        first = f"HTTP/1.1 {fault.status} Rewritten"
    headers |= {"content-length": str(len(body))} | fault.headers
    lines = [first, *(f"{name}: {value}" for name, value in headers.items() if value)]
    return "\r\n".join(lines).encode("latin-1") + _END, body

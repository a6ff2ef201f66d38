"""An HTTP server that says exactly what a test tells it to say, byte for byte."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

_END = b"\r\n\r\n"


class ScriptedServer:
    """Use inside ``async with``; answers are given in order, the last one again and again.

    Args:
        answers: raw answers; one that ends with ``HANG_UP`` closes the connection after it.
        greeting: sent to each of the first ``greetings`` connections before it asked anything.

    Attributes:
        url: of the server.
        requests: raw heads, in order.
        connections: how many were made.
    """

    HANG_UP = b"\x00HANG UP"

    def __init__(
        self,
        answers: Iterable[bytes | Callable[[bytes], bytes]],
        *,
        greeting: bytes = b"",
        greetings: int = 0,
        host: str = "127.0.0.1",
    ) -> None:
        self._answers = list(answers)
        self._greeting = greeting
        self._greetings = greetings
        self._host = host
        self._clients: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.requests: list[bytes] = []
        self.connections = 0
        self.url = ""

    @property
    def port(self) -> int:
        assert self._server is not None
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, self._host, 0)
        host = f"[{self._host}]" if ":" in self._host else self._host
        self.url = f"http://{host}:{self.port}"
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

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._clients.add(task)
        task.add_done_callback(self._clients.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            if self.connections <= self._greetings:
                writer.write(self._greeting)
            while True:
                head = await reader.readuntil(_END)
                self.requests.append(head)
                answer = self._answers[0] if len(self._answers) == 1 else self._answers.pop(0)
                told = answer(head) if callable(answer) else answer
                writer.write(told.removesuffix(self.HANG_UP))
                await writer.drain()
                if told.endswith(self.HANG_UP):
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()


def ranged(content: bytes, *, more: str = "", etag: str = '"one"') -> Callable[[bytes], bytes]:
    """Answers a ranged GET of ``content`` as it should be answered, with ``more`` header lines."""

    def answer(head: bytes) -> bytes:
        text = head.decode("latin-1").lower()
        first, last = text.split("range: bytes=")[1].split("\r\n")[0].split("-")
        body = content[int(first) : int(last) + 1]
        return (
            f"HTTP/1.1 206 Partial Content\r\nContent-Length: {len(body)}\r\nETag: {etag}\r\n"
            f"Content-Range: bytes {first}-{last}/{len(content)}\r\n{more}\r\n"
        ).encode() + body

    return answer

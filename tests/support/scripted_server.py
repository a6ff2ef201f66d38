"""An HTTP server that says exactly what a test tells it to say, byte for byte."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from loopback_server import END, LoopbackServer


class ScriptedServer(LoopbackServer):
    """Use inside ``async with``; answers are given in order, the last one again and again.

    Args:
        answers: raw answers; one that ends with ``HANG_UP`` closes the connection after it.
        greeting: sent to each of the first ``greetings`` connections before it asked anything.

    Attributes:
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
        super().__init__(host)
        self._answers = list(answers)
        self._greeting = greeting
        self._greetings = greetings
        self.requests: list[bytes] = []
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.connections <= self._greetings:
            writer.write(self._greeting)
        while True:
            head = await reader.readuntil(END)
            self.requests.append(head)
            answer = self._answers[0] if len(self._answers) == 1 else self._answers.pop(0)
            told = answer(head) if callable(answer) else answer
            writer.write(told.removesuffix(self.HANG_UP))
            await writer.drain()
            if told.endswith(self.HANG_UP):
                return


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

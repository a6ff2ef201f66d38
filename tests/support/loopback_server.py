"""What the servers of tests share: they open on loopback, and close with all that they serve."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

END = b"\r\n\r\n"


class LoopbackServer(ABC):
    """Use inside ``async with``; what is said on a connection is ``serve``'s.

    Args:
        host: address to listen at.
        port: to listen at; a free one if 0.

    Attributes:
        url: of the server.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self._host = host
        self._wanted_port = port
        self._clients: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.url = ""

    @property
    def port(self) -> int:
        assert self._server is not None
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    @abstractmethod
    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection; may end by its loss."""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(
            self._accept, self._host, self._wanted_port, limit=2**20
        )
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
        await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve_one(reader, writer))
        self._clients.add(task)
        task.add_done_callback(self._clients.discard)

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self.serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

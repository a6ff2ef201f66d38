"""Sockets of the event loop: what is received and sent in turns, plain and over TLS."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from nginx_server import make_certificate

from storage_backends.http_connection import Connection
from storage_backends.http_dial import _await_ready, _connect, _secure, tls_context
from storage_backends.http_socket import LoopSocket

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
LARGE = np.random.default_rng(0).bytes(3 * 2**20 + 5)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    make_certificate(folder)
    return folder


class Received:
    """What a socket has given; reads when the loop says so."""

    def __init__(self) -> None:
        self.memory = memoryview(bytearray(len(LARGE) + 100))
        self.done = 0
        self.turns: list[int] = []
        self.ended = asyncio.Event()
        self.failed: OSError | None = None
        self.socket: LoopSocket | None = None

    def on_readable(self) -> None:
        assert self.socket is not None
        while True:
            nbytes = self.socket.receive_into(self.memory[self.done :])
            if nbytes == 0:
                self.socket.release()
                self.ended.set()
            if not nbytes:
                return
            self.done += nbytes
            self.turns.append(nbytes)
            if not self.socket.has_more():
                return

    def on_failed(self, error: OSError) -> None:
        self.failed = error
        self.ended.set()


@asynccontextmanager
async def connected(talk: Talk, certificate: Path | None) -> AsyncIterator[Received]:
    context = None
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate / "tls.crt", certificate / "tls.key")
    server = await asyncio.start_server(talk, "127.0.0.1", 0, ssl=context)
    async with server:
        peer = await _connect("127.0.0.1", server.sockets[0].getsockname()[1])
        if certificate is not None:
            tls = tls_context(str(certificate / "tls.crt"), verify=True)
            peer = await _secure(peer, tls, "127.0.0.1")
        found = Received()
        found.socket = LoopSocket(
            asyncio.get_running_loop(), peer, found.on_readable, found.on_failed
        )
        try:
            yield found
        finally:
            found.socket.close()


@pytest.mark.parametrize("over_tls", [False, True], ids=["plain", "tls"])
async def test_all_that_came_is_received_and_then_the_end(
    over_tls: bool, certificate: Path
) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(LARGE)
        await writer.drain()
        writer.close()

    async with connected(talk, certificate if over_tls else None) as found:
        await asyncio.wait_for(found.ended.wait(), 20)
        assert found.failed is None
        assert found.memory[: found.done] == LARGE
        if over_tls:
            # Others have their turn between.
            assert max(found.turns) < 2**20 + 2**15


@pytest.mark.parametrize("over_tls", [False, True], ids=["plain", "tls"])
async def test_what_there_is_no_room_for_is_sent_by_and_by(
    over_tls: bool, certificate: Path
) -> None:
    got = asyncio.get_running_loop().create_future()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.set_result(await reader.readexactly(len(LARGE)))
        writer.close()

    async with connected(talk, certificate if over_tls else None) as found:
        assert found.socket is not None
        found.socket.send(LARGE)
        assert await asyncio.wait_for(got, 20) == LARGE
        await asyncio.wait_for(found.ended.wait(), 20)
        assert found.failed is None


async def test_a_certificate_for_another_name_is_refused(certificate: Path) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "tls.crt", certificate / "tls.key")
    async with await asyncio.start_server(talk, "127.0.0.1", 0, ssl=context) as server:
        peer = await _connect("127.0.0.1", server.sockets[0].getsockname()[1])
        tls = tls_context(str(certificate / "tls.crt"), verify=True)
        with pytest.raises(ssl.SSLCertVerificationError):
            await _secure(peer, tls, "example.org")


async def test_unread_bytes_are_seen_before_the_loop_calls() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(5))
        await writer.drain()

    async with connected(talk, None) as found:
        assert found.socket is not None
        assert not found.socket.has_unread()
        found.socket.send(b"hello")
        # Nothing else may receive it: the loop is told to look away.
        peer = found.socket.release()
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(10):
            await _await_ready(peer.fileno(), loop.add_reader, loop.remove_reader)
        assert found.socket.has_unread()
        assert peer.recv(10) == b"hello"
        assert not found.socket.has_unread()


@pytest.mark.parametrize(
    ("more", "body", "stays"),
    [
        (b"", b"hello", True),
        (b"Connection: close\r\n", b"hello", False),
        (b"Connection: close\r\n", b"hello, and what nobody asked for", False),
    ],
)
async def test_a_connection_that_is_over_is_closed_and_the_loop_looks_away(
    more: bytes, body: bytes, stays: bool
) -> None:
    loop = asyncio.get_running_loop()
    near, far = socket.socketpair()
    near.setblocking(False)
    memory = memoryview(bytearray(5))
    with far:
        connection = Connection(loop, near)
        connection.send(b"GET / HTTP/1.1\r\n\r\n", lambda head: memory)
        number = near.fileno()
        far.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n" + more + b"\r\n" + body)
        await asyncio.wait_for(connection.wait(), 10)
        assert memory == b"hello"
        assert connection.failure is None
        assert connection.usable == stays
        assert (near.fileno() == number) == stays
        # True where the loop had it still.
        assert loop.remove_reader(number) == stays
        connection.abort()
        assert near.fileno() == -1

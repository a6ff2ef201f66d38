"""The native reader before servers that answer wrongly, early, slowly, or elsewhere."""

from __future__ import annotations

import asyncio
import base64
import time
from typing import Any

import pytest
from scripted_server import ScriptedServer, ranged

from storage_backends import (
    AccessDenied,
    Changed,
    Misconfigured,
    NotFound,
    StorageError,
    Unavailable,
    open_store,
)

CONTENT = bytes(range(256)) * 64
QUICK = {"download_retry": 2, "download_timeout": 5.0}


async def read(server: ScriptedServer, counts: Any = None, **options: Any) -> bytes:
    buffer = bytearray(1_000)
    async with open_store(server.url, counts, **{**QUICK, **options}) as store:
        await store.read_into("a", 300, buffer)
    return bytes(buffer)


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 206 OK\r\n" + b"".join(b"X-%d: %s\r\n" % (n, b"y" * 90) for n in range(1_100)),
        b"HTTP/1.1 206 OK\r\nX: " + b"y" * 100_000 + b"\r\n",
        b"HTTP/1.1 206 OK\r\nContent-Length: 1000\r\nContent-Length: 2000\r\n",
        b"HTTP/1.1 206 OK\r\nContent-Length: 1000\r\nTransfer-Encoding: chunked\r\n",
        b"HTTP/1.1 206 OK\r\nTransfer-Encoding: gzip\r\n",
        b"HTTP/1.1 206 OK\r\nContent-Length: +1000\r\n",
        b"HTTP/1.1 206 OK\r\nContent-Length : 1000\r\n",
        b"HTTP/1.1 206 OK\r\nContent-Length: 1000\r\n folded\r\n",
        b"HTTP/1.1 206 OK\r\nContent-Length: 1000\r\nNo colon\r\n",
        b"HTTP/1.1 206 OK\r\nContent-Range: bytes 300-1299/16384\r\n",
        b"HTTP/1.1 206 OK\r\nContent-Length: 1000\r\nContent-Range: bytes 300-1299\r\n",
        b"HTTP/2 206\r\nContent-Length: 1000\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 103 Early Hints\r\n\r\n" * 9 + b"HTTP/1.1 206 OK\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n",
    ],
    ids=lambda head: repr(head[:70]),
)
async def test_a_head_that_makes_no_sense_is_an_error_that_says_so(head: bytes) -> None:
    async with ScriptedServer([head + b"\r\n" + CONTENT[300:1300]]) as server:
        start = time.monotonic()
        with pytest.raises(StorageError) as caught:
            await read(server)
        assert time.monotonic() - start < 4
        assert server.url.removeprefix("http://") in str(caught.value)
        assert "\n" not in str(caught.value)


async def test_interim_answers_are_passed_over() -> None:
    def answer(head: bytes) -> bytes:
        hints = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n"
        return hints + ranged(CONTENT)(head)

    async with ScriptedServer([answer]) as server:
        assert await read(server) == CONTENT[300:1300]


async def test_an_answer_that_comes_before_the_question_is_not_taken(counts: Any) -> None:
    forged = ranged(b"\xff" * len(CONTENT))(b"Range: bytes=300-1299\r\n")
    async with ScriptedServer([ranged(CONTENT)], greeting=forged, greetings=1) as server:
        async with open_store(server.url, counts, **QUICK) as store:
            buffer = bytearray(1_000)
            await store.read_into("a", 300, buffer)
            first = bytes(buffer)
            await store.read_into("a", 300, buffer)
        # A forged answer that fits the question is seen only if it comes before it.
        assert buffer == CONTENT[300:1300]
        assert first in (CONTENT[300:1300], b"\xff" * 1_000)


async def test_bytes_after_a_body_end_the_connection_and_not_the_read(counts: Any) -> None:
    def answer(head: bytes) -> bytes:
        return ranged(CONTENT)(head) + ranged(b"\xff" * len(CONTENT))(head)

    async with ScriptedServer([answer]) as server:
        async with open_store(server.url, counts, **QUICK) as store:
            for _ in range(5):
                buffer = bytearray(1_000)
                await store.read_into("a", 300, buffer)
                assert buffer == CONTENT[300:1300]
        assert server.connections == 5
    assert counts.totals["storage.retries"] == 0


@pytest.mark.parametrize("more", ["Connection: close\r\n", "Connection: Upgrade, Close\r\n", ""])
async def test_a_connection_is_used_again_unless_the_server_says_no(more: str) -> None:
    async with ScriptedServer([ranged(CONTENT, more=more)]) as server:
        async with open_store(server.url, **QUICK) as store:
            for _ in range(3):
                await store.read_into("a", 300, bytearray(1_000))
        assert server.connections == (3 if more else 1)


async def test_a_connection_that_was_closed_while_idle_costs_no_attempt(counts: Any) -> None:
    def answer(head: bytes) -> bytes:
        return ranged(CONTENT)(head) + ScriptedServer.HANG_UP

    buffers = [bytearray(1_000) for _ in range(20)]
    async with (
        ScriptedServer([answer]) as server,
        open_store(server.url, counts, **QUICK) as store,
    ):
        for buffer in buffers:
            await store.read_into("a", 300, buffer)
    assert all(buffer == CONTENT[300:1300] for buffer in buffers)
    assert counts.totals["storage.retries"] == 0
    requests = 20 + counts.totals["storage.reconnects"]
    assert counts.totals["storage.requests"] == requests


@pytest.mark.parametrize("chunked", [True, False])
async def test_a_refusal_keeps_the_connection(chunked: bool) -> None:
    text = b"<Error><Code>NoSuchKey</Code><Message>it is not there</Message></Error>"
    if chunked:
        framing, body = b"Transfer-Encoding: chunked", b"%x\r\n%s\r\n0\r\n\r\n" % (len(text), text)
    else:
        framing, body = b"Content-Length: %d" % len(text), text
    refusal = b"HTTP/1.1 404 Not Found\r\n%s\r\n\r\n%s" % (framing, body)
    async with ScriptedServer([refusal, ranged(CONTENT)]) as server:
        async with open_store(server.url, **QUICK) as store:
            with pytest.raises(NotFound) as caught:
                await store.read_into("a", 300, bytearray(1_000))
            await store.read_into("a", 300, bytearray(1_000))
        assert (caught.value.code, server.connections) == ("NoSuchKey", 1)


async def test_an_endless_refusal_is_cut_off() -> None:
    refusal = b"HTTP/1.1 403 Forbidden\r\n\r\n" + b"x" * 10_000_000
    async with ScriptedServer([refusal]) as server:
        with pytest.raises(AccessDenied):
            await read(server)


async def test_another_version_is_never_mixed_in() -> None:
    def half(head: bytes) -> bytes:
        return ranged(CONTENT)(head)[:-400] + ScriptedServer.HANG_UP

    async with ScriptedServer([half, ranged(CONTENT[::-1], etag='"two"')]) as server:
        with pytest.raises(Changed):
            await read(server)
        assert b'If-Match: "one"' in server.requests[1]


async def test_an_object_of_another_length_is_another_version_where_there_is_no_etag() -> None:
    def bare(content: bytes, cut: int = 0) -> Any:
        def answer(head: bytes) -> bytes:
            whole = ranged(content)(head).replace(b'ETag: "one"\r\n', b"")
            return whole[: len(whole) - cut] + (ScriptedServer.HANG_UP if cut else b"")

        return answer

    async with ScriptedServer([bare(CONTENT, 400), bare(CONTENT * 2)]) as server:
        with pytest.raises(Changed):
            await read(server)


async def test_a_weak_etag_is_compared_here_since_it_never_matches_there() -> None:
    async with ScriptedServer([ranged(CONTENT, etag='W/"one"')]) as server:
        async with open_store(server.url, **QUICK) as store:
            await store.read_into("a", 300, bytearray(1_000), etag='W/"one"')
            with pytest.raises(Changed):
                await store.read_into("a", 300, bytearray(1_000), etag='W/"two"')
        assert not [head for head in server.requests if b"If-Match" in head]


async def test_a_name_with_several_addresses_is_reached_at_the_one_that_answers() -> None:
    # localhost is ::1 as well, where nothing listens.
    async with ScriptedServer([ranged(CONTENT)]) as server:
        server.url = f"http://localhost:{server.port}"
        assert await read(server) == CONTENT[300:1300]


async def test_an_ipv6_address_is_reached() -> None:
    async with ScriptedServer([ranged(CONTENT)], host="::1") as server:
        assert await read(server) == CONTENT[300:1300]
        assert f"Host: [::1]:{server.port}\r\n".encode() in server.requests[0]


async def test_a_proxy_of_the_environment_is_used_with_its_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with ScriptedServer([ranged(CONTENT)]) as proxy:
        monkeypatch.setenv("http_proxy", f"http://user:pass%20word@127.0.0.1:{proxy.port}")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        buffer = bytearray(1_000)
        async with open_store("http://far.example:8080/x", **QUICK) as store:
            await store.read_into("a b", 300, buffer)
        assert buffer == CONTENT[300:1300]
        head = proxy.requests[0]
        assert head.startswith(b"GET http://far.example:8080/x/a%20b HTTP/1.1\r\n")
        assert b"\r\nHost: far.example:8080\r\n" in head
        secret = base64.b64encode(b"user:pass word")
        assert b"\r\nProxy-Authorization: Basic " + secret + b"\r\n" in head


async def test_a_host_that_no_proxy_names_is_reached_directly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    async with ScriptedServer([ranged(CONTENT)]) as server:
        assert await read(server) == CONTENT[300:1300]


async def test_a_proxy_of_another_kind_is_refused_without_its_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("http_proxy", "socks5://user:hush@127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    async with open_store("http://far.example/x") as store:
        with pytest.raises(Misconfigured, match="HTTP_PROXY") as caught:
            await store.read("a")
    assert "hush" not in str(caught.value)


async def test_redirections_are_followed_and_remembered() -> None:
    async with ScriptedServer([ranged(CONTENT)]) as there:
        moved = f"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: {there.url}/b?x=1\r\n\r\n"
        async with ScriptedServer([moved.encode()]) as here, open_store(here.url) as store:
            for _ in range(2):
                buffer = bytearray(1_000)
                await store.read_into("a", 300, buffer)
                assert buffer == CONTENT[300:1300]
        assert len(here.requests) == 1
        assert there.requests[0].startswith(b"GET /b?x=1 HTTP/1.1\r\n")


@pytest.mark.parametrize("where", ["/a", "ftp://host/a", "http://user:pass@host/a", "http://h/a b"])
async def test_a_redirection_that_leads_nowhere_is_an_error(where: str) -> None:
    moved = f"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: {where}\r\n\r\n"
    async with ScriptedServer([moved.encode()]) as server:
        with pytest.raises(StorageError):
            await read(server, download_retry=9)
        assert len(server.requests) <= 7


async def test_a_body_that_drips_is_asked_for_again_where_it_stopped(
    monkeypatch: pytest.MonkeyPatch, counts: Any
) -> None:
    monkeypatch.setattr("storage_backends.http_pool.RATE_WINDOW_S", 0.3)
    dripping = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                answer = ranged(CONTENT)(await reader.readuntil(b"\r\n\r\n"))
                if dripping.is_set():
                    writer.write(answer)
                    continue
                dripping.set()
                for byte in range(len(answer)):
                    writer.write(answer[byte : byte + 1])
                    await writer.drain()
                    await asyncio.sleep(0.01)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with open_store(f"http://127.0.0.1:{port}", counts, **QUICK) as store:
        buffer = bytearray(10_000)
        start = time.monotonic()
        await store.read_into("a", 0, buffer)
        assert time.monotonic() - start < 4
    assert buffer == CONTENT[:10_000]
    assert counts.totals["storage.retries"] == 1
    assert counts.totals["storage.bytes_read"] == 10_000
    server.close()


async def test_reads_end_when_their_store_is_closed() -> None:
    async with ScriptedServer([b"HTTP/1.1 206"]) as server:
        store = open_store(server.url, **QUICK)
        await store.__aenter__()
        pending = asyncio.create_task(store.read_into("a", 0, bytearray(10)))
        while not server.requests:
            await asyncio.wait([pending], timeout=0.005)
        pending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pending
        await store.close()


async def test_uvloop_reads_the_same() -> None:
    uvloop = pytest.importorskip("uvloop", reason="extra 'fast'")

    async def work() -> bytes:
        async with ScriptedServer([ranged(CONTENT)]) as server:
            return await read(server)

    found = await asyncio.to_thread(uvloop.run, work())
    assert found == CONTENT[300:1300]


async def test_unavailable_names_the_server_and_the_reason() -> None:
    async with open_store("http://127.0.0.1:9/x", download_retry=2) as store:
        with pytest.raises(Unavailable, match="connection refused") as caught:
            await store.read("a")
    assert caught.value.code == "ECONNREFUSED"
    assert "127.0.0.1:9" in str(caught.value)

"""Static files of a real web server as a store: http, https, and what it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from nginx_server import NginxServer, find_nginx

from storage_backends import (
    Changed,
    Misconfigured,
    NotFound,
    StorageError,
    Truncated,
    Unavailable,
    open_store,
)
from tests.storage_backends.failing_calls import CALLS

CONTENT = bytes(range(256)) * 1_000
KEYS = [
    "a",
    "deep/er/a",
    "a b",
    "a%20b",
    "猫.jpg",
    "a=b&c",
    "a+b?c#d",
    "{x}[y]*'~!$",
    "tab\tnew\nline",
]


@pytest.fixture(scope="module")
def nginx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NginxServer]:
    if find_nginx() is None:
        pytest.skip("no nginx; on Debian: apt install nginx-light")
    root = tmp_path_factory.mktemp("www")
    for key in KEYS:
        file = root / "set" / key
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(CONTENT)
    (root / "set" / "empty").touch()
    with NginxServer(root) as server:
        yield server


def replace(nginx: NginxServer, content: bytes) -> None:
    (nginx.root / "set/changing").write_bytes(content)


async def test_files_are_read_whole_and_in_ranges(nginx: NginxServer) -> None:
    async with open_store(f"{nginx.url}/set") as store:
        await store.check()
        for key in KEYS:
            info = await store.info(key)
            assert (info.key, info.size) == (key, len(CONTENT))
            assert await store.read(key) == CONTENT
            buffer = bytearray(1_000)
            await store.read_into(key, 4_321, buffer, etag=info.etag)
            assert buffer == CONTENT[4_321:5_321]
        assert await store.read("empty") == b""


async def test_what_is_not_there_or_too_short_or_too_large_is_told(nginx: NginxServer) -> None:
    async with open_store(f"{nginx.url}/set") as store:
        for call in (store.info, store.read):
            with pytest.raises(NotFound, match="/set/no"):
                await call("no")
        with pytest.raises(Truncated):
            await store.read_into("a", len(CONTENT) - 5, bytearray(10))
        with pytest.raises(Truncated):
            await store.read_into("a", len(CONTENT), bytearray(10))
        with pytest.raises(StorageError, match=str(len(CONTENT))):
            await store.read("a", max_bytes=10)


async def test_a_file_that_was_replaced_is_another_one(nginx: NginxServer) -> None:
    replace(nginx, b"one")
    async with open_store(f"{nginx.url}/set") as store:
        info = await store.info("changing")
        replace(nginx, b"other")
        with pytest.raises(Changed):
            await store.read_into("changing", 0, bytearray(3), etag=info.etag)


async def test_a_web_server_lists_and_takes_nothing(nginx: NginxServer) -> None:
    async with open_store(f"{nginx.url}/set") as store:
        for call in ("list", "put", "put_if_absent", "open_writer", "delete"):
            with pytest.raises(Misconfigured, match="for reading"):
                await CALLS[call](store)


async def test_ipv6(nginx: NginxServer) -> None:
    async with open_store(f"http://[::1]:{nginx.port}/set") as store:
        assert await store.read("a") == CONTENT


async def test_a_certificate_that_nobody_trusts_is_refused_at_once(
    nginx: NginxServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(f"{nginx.tls_url}/set") as store:
        with pytest.raises(Unavailable, match="not trusted") as caught:
            await store.read("a")
    assert caught.value.code == "SSLError"
    async with open_store(f"{nginx.tls_url}/set", verify_tls=False) as store:
        assert await store.read("a") == CONTENT
    monkeypatch.setenv("SSL_CERT_FILE", str(nginx.certificate))
    async with open_store(f"{nginx.tls_url}/set") as store:
        buffer = bytearray(len(CONTENT))
        await store.read_into("a", 0, buffer)
        assert buffer == CONTENT


async def test_a_certificate_of_another_host_is_refused(
    nginx: NginxServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(nginx.certificate))
    async with open_store(f"{nginx.tls_url}/set".replace("127.0.0.1", "127.0.0.2")) as store:
        with pytest.raises(Unavailable, match="not trusted.*127.0.0.2"):
            await store.read("a")


async def test_options_of_s3_are_refused_by_name() -> None:
    with pytest.raises(Misconfigured, match="'region'"):
        open_store("https://host/x", region="us-east-1")
    with pytest.raises(Misconfigured, match="native"):
        open_store("https://host/x", reader="obstore")


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        return
    finally:
        writer.close()


async def test_https_goes_through_the_tunnel_of_a_proxy(
    nginx: NginxServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads: list[bytes] = []
    answers = [b"HTTP/1.1 200 Connection established\r\nContent-Length: 7\r\n\r\n"]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answers[0])
        if b" 200 " not in answers[0]:
            writer.close()
            return
        port = int(nginx.tls_url.rpartition(":")[2])
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pump(reader, there_writer), pump(there_reader, writer))

    proxy = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = proxy.sockets[0].getsockname()[1]
    monkeypatch.setenv("https_proxy", f"http://u:p@127.0.0.1:{port}")
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("SSL_CERT_FILE", str(nginx.certificate))
    async with open_store("https://localhost/set") as store:
        assert await store.read("a") == CONTENT
        buffer = bytearray(len(CONTENT))
        await store.read_into("a", 0, buffer)
        assert buffer == CONTENT
    assert len(heads) == 1
    assert heads[0].startswith(b"CONNECT localhost:443 HTTP/1.1\r\nHost: localhost:443\r\n")
    assert b"Proxy-Authorization: Basic dTpw\r\n" in heads[0]

    answers[0] = b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n"
    async with open_store("https://localhost/set", download_retry=2) as store:
        with pytest.raises(Unavailable, match="answered 407.*check the proxy"):
            await store.read("a")
    proxy.close()

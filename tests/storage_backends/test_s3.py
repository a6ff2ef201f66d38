"""What only S3 can get wrong: dead endpoints, uploads, keys on the wire."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from storage_backends import Misconfigured, NotFound, Store, Unavailable, open_store
from tests.storage_backends.failing_calls import failures
from tests.storage_backends.fault_proxy import Answer, FaultProxy

pytestmark = pytest.mark.s3

HOSTILE = json.loads((Path(__file__).parents[1] / "hostile/s3_keys.json").read_text())
KEYS = [entry["key"] for entry in HOSTILE]
PART = 5 * 2**20


async def keys(store: Store) -> list[str]:
    return [info.key async for info in store.list()]


@pytest.mark.parametrize(
    ("endpoint", "code"),
    [("http://127.0.0.1:9", "ECONNREFUSED"), ("http://host.invalid", "DNSFailure")],
)
async def test_a_dead_endpoint_is_named(endpoint: str, code: str) -> None:
    options = {"endpoint_url": endpoint, "anonymous": True, "download_retry": 1}
    for error in (await failures("s3://bucket/x", options)).values():
        assert type(error) is Unavailable
        assert error.code == code
        assert endpoint in str(error)


async def test_a_dead_endpoint_is_given_up_within_ten_seconds() -> None:
    start = time.monotonic()
    await failures("s3://b", {"endpoint_url": "http://127.0.0.1:9", "anonymous": True}, ["read"])
    assert time.monotonic() - start < 10


def uploads(s3_server: Any, bucket: str) -> list[Any]:
    found: list[Any] = s3_server._admin._client.list_multipart_uploads(Bucket=bucket).get(
        "Uploads", []
    )
    return found


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError])
async def test_an_abandoned_upload_leaves_no_parts_behind(
    s3_bucket: Any, s3_server: Any, error: type[BaseException]
) -> None:
    async def write(store: Store) -> None:
        async with store.open_writer("a") as writer:
            await writer.write(bytes(2 * PART + 1))
            assert uploads(s3_server, s3_bucket.name)
            raise error

    async with open_store(s3_bucket.url, part_bytes=PART, **s3_bucket.storage_options) as store:
        with pytest.raises(error):
            await write(store)
        assert await keys(store) == []
    assert uploads(s3_server, s3_bucket.name) == []


async def test_an_upload_cancelled_at_its_start_leaves_nothing_behind(
    s3_bucket: Any, s3_server: Any
) -> None:
    async def write(store: Store) -> None:
        async with store.open_writer("a") as writer:
            await writer.write(bytes(2 * PART))

    async with FaultProxy(s3_server.endpoint_url) as proxy:
        options = {**s3_bucket.storage_options, "endpoint_url": proxy.url, "part_bytes": PART}
        async with open_store(s3_bucket.url, **options) as store:
            await store.check()
            proxy.plan([])
            task = asyncio.create_task(write(store))
            while not proxy.seen:
                await asyncio.wait([task], timeout=0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
    assert uploads(s3_server, s3_bucket.name) == []


async def test_what_fits_in_a_part_is_one_plain_request(s3_place: Any, s3_server: Any) -> None:
    async with FaultProxy(s3_server.endpoint_url) as proxy:
        options = {**s3_place.options, "endpoint_url": proxy.url, "part_bytes": PART}
        async with open_store(s3_place.url, **options) as store, store.open_writer("a") as writer:
            await writer.write(bytes(PART))
        assert [seen.method for seen in proxy.seen] == ["PUT"]


async def test_keys_are_encoded_once_on_the_wire(s3_server: Any) -> None:
    async with FaultProxy(s3_server.endpoint_url) as proxy:
        options = {**s3_server.storage_options, "endpoint_url": proxy.url}
        async with open_store("s3://bucket", **options) as store:
            for key in KEYS:
                proxy.plan([Answer(404, "NoSuchKey")])
                with pytest.raises(NotFound):
                    await store.read(key)
                assert proxy.seen[0].target == "/bucket/" + quote(key, safe="/~")


async def test_keys_that_are_not_unicode_are_refused(s3_place: Any) -> None:
    async with open_store(s3_place.url, **s3_place.options) as store:
        with pytest.raises(Misconfigured, match="not valid Unicode"):
            await store.put("caf\udce9", b"x")
        with pytest.raises(Misconfigured, match="empty key"):
            await store.read("")


async def test_concurrent_first_uses_make_one_client(
    s3_place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from storage_backends import s3_engine

    made = []
    original = s3_engine.S3Engine._make_client

    async def make(self: Any, *args: Any) -> Any:
        made.append(self)
        return await original(self, *args)

    monkeypatch.setattr(s3_engine.S3Engine, "_make_client", make)
    async with open_store(s3_place.url, **s3_place.options) as store:
        await asyncio.gather(*(store.put(f"{number}", b"x") for number in range(8)))
    assert len(made) == 1

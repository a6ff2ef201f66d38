"""What only S3 can get wrong: identities, endpoints, uploads, keys on the wire."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from storage_backends import (
    AccessDenied,
    Misconfigured,
    NotFound,
    StorageError,
    Store,
    Unavailable,
    open_store,
)
from tests.storage_backends.fault_proxy import Answer, FaultProxy

pytestmark = pytest.mark.s3

KEYS = json.loads((Path(__file__).parents[1] / "hostile/s3_keys.json").read_text())
PART = 5 * 2**20


async def listing(store: Store) -> list[str]:
    return [info.key async for info in store.list()]


CALLS: dict[str, Callable[[Store], Awaitable[object]]] = {
    "check": lambda store: store.check(),
    "info": lambda store: store.info("a"),
    "read": lambda store: store.read("a"),
    "read_into": lambda store: store.read_into("a", 0, bytearray(1)),
    "list": listing,
    "put": lambda store: store.put("a", b"x"),
    "put_if_absent": lambda store: store.put_if_absent("a", b"x"),
    "delete": lambda store: store.delete("a"),
}


WRITES = ("put", "put_if_absent", "delete")


async def failures(
    url: str, options: dict[str, Any], calls: Iterable[str] = tuple(CALLS)
) -> dict[str, StorageError]:
    """What each call raises; none may show the secret key, or take more than one line."""
    found = {}
    secret = options.get("aws_secret_access_key")
    async with open_store(url, **options) as store:
        for call in calls:
            with pytest.raises(StorageError) as caught:
                await CALLS[call](store)
            shown = "".join(traceback.format_exception(caught.value))
            assert not secret or secret not in shown
            assert "\n" not in str(caught.value)
            found[call] = caught.value
    return found


async def test_a_missing_bucket_is_named(s3_server: Any) -> None:
    calls = [call for call in CALLS if call != "delete"]
    errors = await failures("s3://no-such-bucket/x", s3_server.storage_options, calls)
    for error in errors.values():
        assert type(error) is NotFound
        assert (error.code, error.status) == ("NoSuchBucket", 404)
        assert "no bucket 'no-such-bucket'" in str(error)
        assert s3_server.endpoint_url in str(error)


@pytest.mark.parametrize(
    ("wrong", "code", "message"),
    [
        ({"aws_access_key_id": "NOBODY"}, "InvalidAccessKeyId", "does not know the access key id"),
        ({"aws_secret_access_key": "wrong!"}, "SignatureDoesNotMatch", "secret key does not fit"),
    ],
    ids=["key id", "secret"],
)
async def test_wrong_keys_are_told_apart(
    wrong: dict[str, str], code: str, message: str, s3_place: Any
) -> None:
    errors = await failures(s3_place.url, {**s3_place.options, **wrong})
    for error in errors.values():
        assert type(error) is AccessDenied
        assert (error.code, error.status) == (code, 403)
        assert message in str(error)
        assert "credentials from the storage options" in str(error)


async def test_a_reader_may_not_write(s3_server: Any, s3_place: Any) -> None:
    errors = await failures(s3_place.url, s3_server.readonly_storage_options, WRITES)
    for error in errors.values():
        assert type(error) is AccessDenied
        assert "no permission to write" in str(error)
    async with open_store(s3_place.url, **s3_server.readonly_storage_options) as store:
        await store.check()
        assert await listing(store) == []


async def test_anonymous_access_to_what_is_not_public_is_denied(s3_place: Any) -> None:
    options = {"endpoint_url": s3_place.options["endpoint_url"], "anonymous": True}
    errors = await failures(s3_place.url, options)
    for call, error in errors.items():
        assert type(error) is AccessDenied
        assert "anonymous" in str(error)
        assert ("write" if call in WRITES else "read") in str(error)


async def test_without_credentials_the_message_says_how_to_give_them(s3_place: Any) -> None:
    options = {"endpoint_url": s3_place.options["endpoint_url"]}
    error = (await failures(s3_place.url, options, ["read"]))["read"]
    assert type(error) is AccessDenied
    assert "aws_access_key_id" in str(error)
    assert "anonymous=True" in str(error)


@pytest.mark.parametrize(
    ("endpoint", "code"),
    [("http://127.0.0.1:9", "ECONNREFUSED"), ("http://host.invalid", "DNSFailure")],
)
async def test_a_dead_endpoint_is_given_up_within_ten_seconds(endpoint: str, code: str) -> None:
    options = {"endpoint_url": endpoint, "anonymous": True}
    start = time.monotonic()
    error = (await failures("s3://bucket/x", options, ["read"]))["read"]
    assert time.monotonic() - start < 10
    assert type(error) is Unavailable
    assert error.code == code
    assert endpoint in str(error)


async def test_a_missing_profile_is_a_wrong_configuration() -> None:
    error = (await failures("s3://bucket", {"profile": "nobody"}, ["read"]))["read"]
    assert type(error) is Misconfigured
    assert "nobody" in str(error)


def write_profile(tmp_path: Path, options: dict[str, Any], **more: str) -> None:
    lines = {name: options[name] for name in ("aws_access_key_id", "aws_secret_access_key")}
    text = "\n".join(f"{name} = {value}" for name, value in (lines | more).items())
    (tmp_path / "aws-credentials").write_text(f"[train]\n{text}\n")


async def test_profile_endpoint_and_region_of_the_configuration_files_are_used(
    s3_place: Any, tmp_path: Path
) -> None:
    write_profile(tmp_path, s3_place.options)
    endpoint = s3_place.options["endpoint_url"]
    (tmp_path / "aws-config").write_text(
        f"[profile train]\nregion = us-east-1\nservices = here\n"
        f"[services here]\ns3 =\n  endpoint_url = {endpoint}\n"
    )
    async with open_store(s3_place.url, profile="train") as store:
        await store.put("a", b"x")
        with pytest.raises(NotFound, match=endpoint):
            await store.read("b")


async def test_an_endpoint_of_the_environment_is_used(
    s3_place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = dict(s3_place.options)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", options.pop("endpoint_url"))
    async with open_store(s3_place.url, **options) as store:
        await store.put("a", b"x")
        assert await store.read("a") == b"x"


async def test_a_password_in_the_endpoint_of_the_environment_is_refused_and_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://user:hush@127.0.0.1:9")
    error = (await failures("s3://bucket", {"anonymous": True}, ["read"]))["read"]
    assert type(error) is Misconfigured
    assert "hush" not in str(error)


async def test_rewritten_credentials_are_read_anew_when_the_old_ones_have_expired(
    s3_place: Any, tmp_path: Path, counts: Any
) -> None:
    async with FaultProxy(s3_place.options["endpoint_url"]) as proxy:
        write_profile(tmp_path, {"aws_access_key_id": "OLD", "aws_secret_access_key": "old"})
        async with open_store(
            s3_place.url, counts, profile="train", endpoint_url=proxy.url
        ) as store:
            expired = Answer(400, "ExpiredToken")
            proxy.plan([expired] * 5)
            with pytest.raises(AccessDenied, match="have expired"):
                await store.put("a", b"x")
            assert len(proxy.seen) == 1
            write_profile(tmp_path, s3_place.options)
            proxy.plan([expired] * 3)
            await asyncio.gather(*(store.put(f"a{number}", b"x") for number in range(3)))
            assert counts.totals["storage.retries"] == 3


def uploads(s3_server: Any, bucket: str) -> list[Any]:
    found: list[Any] = s3_server._admin.list_multipart_uploads(Bucket=bucket).get("Uploads", [])
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
        assert await listing(store) == []
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


@pytest.mark.parametrize("key", [entry["key"] for entry in KEYS], ids=lambda key: repr(key[:24]))
async def test_keys_are_encoded_once_on_the_wire(key: str, s3_server: Any) -> None:
    async with FaultProxy(s3_server.endpoint_url) as proxy:
        options = {**s3_server.storage_options, "endpoint_url": proxy.url}
        async with open_store("s3://bucket", **options) as store:
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
    from storage_backends import s3_connection

    made = []
    original = s3_connection.S3Connection._make_client

    async def make(self: Any, *args: Any) -> Any:
        made.append(self)
        return await original(self, *args)

    monkeypatch.setattr(s3_connection.S3Connection, "_make_client", make)
    async with open_store(s3_place.url, **s3_place.options) as store:
        await asyncio.gather(*(store.put(f"{number}", b"x") for number in range(8)))
    assert len(made) == 1


async def test_the_log_of_this_package_holds_no_secret(
    s3_place: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "storage_backends"):
        async with FaultProxy(s3_place.options["endpoint_url"]) as proxy:
            options = {**s3_place.options, "endpoint_url": proxy.url}
            async with open_store(s3_place.url, **options) as store:
                proxy.plan([Answer(503, "SlowDown")])
                await store.put("a", b"x")
    own = [r.getMessage() for r in caplog.records if r.name.startswith("storage_backends")]
    assert own
    assert not [text for text in own if s3_place.options["aws_secret_access_key"] in text]

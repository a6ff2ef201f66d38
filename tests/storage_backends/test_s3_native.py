"""The native reader at a real S3 server: what it mends by itself, and how it splits a read."""

from __future__ import annotations

import asyncio
import datetime
import types
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage_backends import AccessDenied, Changed, Misconfigured, open_store
from tests.storage_backends.fault_proxy import (
    After,
    Answer,
    Break,
    Fault,
    FaultProxy,
    Seen,
    SlowStart,
    Stall,
)

pytestmark = pytest.mark.s3

CONTENT = b"0123456789" * 1_000


async def put(place: Any, content: bytes = CONTENT) -> None:
    async with open_store(place.url, **place.options) as store:
        await store.put("a", content)


def scopes(proxy: FaultProxy) -> list[str]:
    """Date and region that each request was signed for."""
    return [seen.headers["authorization"].split("/", 1)[1].split("/s3/")[0] for seen in proxy.seen]


@pytest.mark.parametrize("hours", [-2, 30], ids=["slow", "fast"])
async def test_a_wrong_clock_is_corrected_once(
    hours: int, s3_place: Any, counts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(s3_place)
    import time

    wrong = types.SimpleNamespace(
        time=lambda: time.time() + hours * 3600,
        monotonic=time.monotonic,
        strftime=time.strftime,
        gmtime=time.gmtime,
    )
    monkeypatch.setattr("storage_backends.sigv4.time", wrong)
    monkeypatch.setattr("storage_backends.s3_clock.time", wrong)
    async with open_store(s3_place.url, counts, **s3_place.options) as store:
        assert await store.read("a") == CONTENT
        await store.read_into("a", 0, bytearray(100))
    assert counts.totals["storage.retries"] == 1


@pytest.mark.parametrize("hours", [-2, 30], ids=["slow", "fast"])
async def test_a_wrong_clock_is_corrected_for_listings_and_writes_too(
    hours: int, s3_place: Any, counts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    import botocore.auth

    wrong = types.SimpleNamespace(time=lambda: time.time() + hours * 3600)
    right = botocore.auth.get_current_datetime
    shift = datetime.timedelta(hours=hours)
    monkeypatch.setattr("storage_backends.s3_clock.time", wrong)
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda: right() + shift)
    async with open_store(s3_place.url, counts, **s3_place.options) as store:
        await store.put("a", CONTENT)
        assert [info.key async for info in store.list()] == ["a"]
    assert counts.totals["storage.retries"] == 1


async def test_a_clock_that_is_right_already_is_no_reason_to_ask_again(s3_place: Any) -> None:
    await put(s3_place)
    now = format_datetime(datetime.datetime.now(datetime.UTC), usegmt=True)
    async with FaultProxy(s3_place.options["endpoint_url"]) as proxy:
        options = {**s3_place.options, "endpoint_url": proxy.url}
        async with open_store(s3_place.url, **options) as store:
            proxy.plan([Answer(403, "RequestTimeTooSkewed", {"Date": now})] * 5)
            with pytest.raises(AccessDenied, match="clock"):
                await store.read("a")
            assert len(proxy.seen) == 1


@pytest.mark.parametrize(
    "answer",
    [
        Answer(301, "PermanentRedirect", {"x-amz-bucket-region": "eu-west-1"}),
        Answer(400, "AuthorizationHeaderMalformed", {"x-amz-bucket-region": "eu-west-1"}),
    ],
    ids=str,
)
async def test_a_bucket_of_another_region_is_followed_there(answer: Answer, s3_place: Any) -> None:
    await put(s3_place)
    async with FaultProxy(s3_place.options["endpoint_url"]) as proxy:
        options = {**s3_place.options, "endpoint_url": proxy.url}
        async with open_store(s3_place.url, **options) as store:
            proxy.plan([answer])
            assert await store.read("a") == CONTENT
            await store.read_into("a", 0, bytearray(10))
            assert [scope.split("/")[1] for scope in scopes(proxy)] == [
                "us-east-1",
                "eu-west-1",
                "eu-west-1",
            ]
            proxy.plan([answer])
            with pytest.raises(Misconfigured, match="another region"):
                await store.read("a")


async def test_expired_credentials_are_read_anew_for_reads_too(
    s3_place: Any, tmp_path: Path, counts: Any
) -> None:
    await put(s3_place)
    keys = ("aws_access_key_id", "aws_secret_access_key")

    def write_profile(**values: str) -> None:
        text = "".join(f"{name} = {values[name]}\n" for name in keys)
        (tmp_path / "aws-credentials").write_text(f"[train]\n{text}")

    def refuse_the_old(seen: Seen) -> Fault | None:
        old = "Credential=old/" in seen.headers["authorization"]
        return Answer(403, "ExpiredToken") if old else None

    write_profile(**dict.fromkeys(keys, "old"))
    async with FaultProxy(s3_place.options["endpoint_url"]) as proxy:
        options = {"endpoint_url": proxy.url, "profile": "train"}
        async with open_store(s3_place.url, counts, **options) as store:
            proxy.plan_by(refuse_the_old)
            with pytest.raises(AccessDenied, match="have expired"):
                await store.read("a")
            assert len(proxy.seen) == 1
            write_profile(**{name: s3_place.options[name] for name in keys})
            proxy.plan_by(refuse_the_old)
            found = await asyncio.gather(*(store.read("a") for _ in range(4)))
            assert found == [CONTENT] * 4


async def test_refusals_name_object_region_endpoint_and_identity(s3_place: Any) -> None:
    await put(s3_place)
    async with FaultProxy(s3_place.options["endpoint_url"]) as proxy:
        options = {**s3_place.options, "endpoint_url": proxy.url}
        async with open_store(s3_place.url, **options) as store:
            for status, code in ((403, "AccessDenied"), (404, "NoSuchKey"), (416, "InvalidRange")):
                proxy.plan([Answer(status, code)])
                with pytest.raises(Exception) as caught:
                    await store.read_into("a", 0, bytearray(10))
                said = str(caught.value)
                for part in (f"{s3_place.url}/a", "us-east-1", proxy.url, "storage options"):
                    assert part in said
                assert s3_place.options["aws_secret_access_key"] not in said


async def test_a_large_read_is_split_into_parts_of_one_version(
    s3_place: Any, counts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage_backends.http_reader.PART_BYTES", 2**20)
    content = np.random.default_rng(0).bytes(5 * 2**20 + 12_345)
    await put(s3_place, content)
    async with FaultProxy(s3_place.options["endpoint_url"]) as proxy:
        options = {**s3_place.options, "endpoint_url": proxy.url}
        async with open_store(s3_place.url, counts, **options) as store:
            await store.check()
            proxy.plan([None, Break(1_000), Answer(503, "SlowDown")])
            buffer = bytearray(len(content) - 10)
            await store.read_into("a", 10, buffer)
            assert buffer == content[10:]
            assert len(proxy.seen) == 7
            assert counts.totals["storage.bytes_read"] == len(buffer)
            assert len(counts.times["storage.read_s"]) == 1

            # A second request, made while the object is being replaced, would find the old one.
            monkeypatch.setattr("storage_backends.http_hedge.Hedge.may_send", lambda *_: False)
            async with open_store(s3_place.url, **s3_place.options) as direct:
                again = After(lambda: direct.put("a", content[::-1]))
                proxy.plan([None, None, None, again])
                with pytest.raises(Changed):
                    await store.read_into("a", 10, buffer)


async def test_a_slow_answer_is_asked_for_a_second_time_and_the_first_answer_wins(
    s3_place: Any, counts: Any
) -> None:
    content = np.random.default_rng(0).bytes(300_000)
    await put(s3_place, content)
    async with FaultProxy(s3_place.options["endpoint_url"]) as proxy:
        options = {**s3_place.options, "endpoint_url": proxy.url}
        async with open_store(s3_place.url, counts, **options) as store:
            for _ in range(40):
                await store.read_into("a", 0, bytearray(100))
            proxy.plan([Stall(100_000), None])
            buffer = bytearray(len(content))
            async with asyncio.timeout(4):
                await store.read_into("a", 0, buffer)
            assert buffer == content
            assert counts.totals["storage.hedges"] == counts.totals["storage.hedges_won"] == 1
            assert counts.totals["storage.retries"] == 0
            second = proxy.seen[1].headers["range"]
            assert int(second.removeprefix("bytes=").split("-")[0]) > 0
            async with asyncio.timeout(5):
                await proxy.stalls_ended.wait()


async def test_a_second_request_whose_answer_is_slow_too_is_followed_by_a_third(
    s3_place: Any, counts: Any
) -> None:
    content = np.random.default_rng(0).bytes(300_000)
    await put(s3_place, content)
    async with FaultProxy(s3_place.options["endpoint_url"]) as proxy:
        options = {**s3_place.options, "endpoint_url": proxy.url}
        async with open_store(s3_place.url, counts, **options) as store:
            for _ in range(4):
                await store.read_into("a", 0, bytearray(100))
            proxy.plan([Stall(100_000), Stall(20_000), None])
            buffer = bytearray(len(content))
            async with asyncio.timeout(4):
                await store.read_into("a", 0, buffer)
            assert buffer == content
            assert counts.totals["storage.hedges"] == 2
            assert counts.totals["storage.retries"] == 0
            async with asyncio.timeout(5):
                await proxy.stalls_ended.wait()


async def test_a_whole_object_whose_first_answer_is_slow_is_waited_for(
    s3_place: Any, counts: Any
) -> None:
    await put(s3_place)
    async with FaultProxy(s3_place.options["endpoint_url"]) as proxy:
        options = {**s3_place.options, "endpoint_url": proxy.url}
        async with open_store(s3_place.url, counts, **options) as store:
            for _ in range(40):
                await store.read_into("a", 0, bytearray(100))
            proxy.plan([SlowStart(1.0)])
            assert await store.read("a") == CONTENT
            assert len(proxy.seen) == 1

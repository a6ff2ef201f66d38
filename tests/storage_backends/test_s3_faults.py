"""A real S3 server behind a proxy that goes wrong: what is repeated, resumed, and given up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from storage_backends import (
    AccessDenied,
    Changed,
    Misconfigured,
    NotFound,
    StorageError,
    Store,
    Throttled,
    Truncated,
    Unavailable,
    open_store,
)
from tests.storage_backends.fault_proxy import (
    After,
    Answer,
    Break,
    Fault,
    FaultProxy,
    Rewrite,
    Stall,
)

pytestmark = pytest.mark.s3

CONTENT = bytes(range(256)) * 4096
SLOW_DOWN = Answer(503, "SlowDown")


@dataclass(frozen=True, slots=True)
class Scene:
    store: Store
    proxy: FaultProxy
    counts: Any

    def plan(self, *faults: Fault | None) -> None:
        self.proxy.plan(faults)
        self.counts.totals.clear()

    @property
    def retries(self) -> int:
        found: int = self.counts.totals["storage.retries"]
        return found

    @property
    def ranges(self) -> list[str]:
        return [seen.headers.get("range", "") for seen in self.proxy.seen]


@pytest.fixture(params=["native", "aiobotocore"])
async def scene(request: pytest.FixtureRequest, s3_place: Any, counts: Any) -> AsyncIterator[Scene]:
    s3_place.options["reader"] = request.param
    async with FaultProxy(s3_place.options["endpoint_url"]) as proxy:
        options = {**s3_place.options, "endpoint_url": proxy.url, "download_retry": 4}
        async with open_store(s3_place.url, counts, **options) as store:
            await store.put("a", CONTENT)
            yield Scene(store, proxy, counts)


async def read_all(store: Store) -> bytes:
    buffer = bytearray(len(CONTENT) - 100)
    await store.read_into("a", 100, buffer)
    return bytes(buffer)


@pytest.mark.parametrize(
    "fault",
    [
        SLOW_DOWN,
        Answer(429, "TooManyRequests"),
        Answer(500, "InternalError"),
        Answer(502),
        Answer(504),
        Answer(408),
        Answer(400, "RequestTimeout"),
        Break(-1),
        Break(-1, reset=True),
    ],
    ids=str,
)
async def test_passing_trouble_is_repeated_and_counted(scene: Scene, fault: Fault) -> None:
    scene.plan(fault, fault)
    assert await read_all(scene.store) == CONTENT[100:]
    assert scene.retries == 2
    assert scene.counts.totals["storage.requests"] == len(scene.proxy.seen) == 3
    assert scene.counts.totals["storage.bytes_read"] == len(CONTENT) - 100


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Answer(400, "InvalidRequest"), StorageError),
        (Answer(400, "ExpiredToken"), AccessDenied),
        (Answer(401, "Unauthorized"), AccessDenied),
        (Answer(403, "AccessDenied"), AccessDenied),
        (Answer(403, "RequestTimeTooSkewed"), AccessDenied),
        (Answer(404, "NoSuchKey"), NotFound),
        (Answer(404, "NoSuchBucket"), NotFound),
        (Answer(412, "PreconditionFailed"), Changed),
        (Answer(416, "InvalidRange"), Truncated),
        (Answer(400, "AuthorizationHeaderMalformed"), Misconfigured),
        (Answer(501, "NotImplemented"), StorageError),
    ],
    ids=str,
)
async def test_refusals_are_final_at_once(
    scene: Scene, fault: Answer, kind: type[StorageError]
) -> None:
    scene.plan(fault)
    with pytest.raises(kind) as caught:
        await read_all(scene.store)
    assert type(caught.value) is kind
    assert caught.value.status == fault.status
    assert scene.retries == 0
    assert caught.value.__cause__ is not None


async def test_a_server_that_keeps_asking_to_slow_down_is_given_up(scene: Scene) -> None:
    scene.plan(*[SLOW_DOWN] * 10)
    with pytest.raises(Throttled, match="slow down") as caught:
        await read_all(scene.store)
    assert (caught.value.code, caught.value.status) == ("SlowDown", 503)
    assert "tried 4 times" in caught.value.__notes__[0]
    assert len(scene.proxy.seen) == 4


async def test_retry_after_is_honoured(scene: Scene) -> None:
    scene.plan(Answer(503, "SlowDown", {"Retry-After": "1"}))
    start = time.monotonic()
    assert await read_all(scene.store) == CONTENT[100:]
    assert time.monotonic() - start >= 1


async def test_a_retry_after_beyond_the_deadline_is_given_up_at_once(scene: Scene) -> None:
    scene.plan(Answer(503, "SlowDown", {"Retry-After": "3600"}))
    with pytest.raises(Throttled):
        await read_all(scene.store)
    assert len(scene.proxy.seen) == 1


async def test_a_body_that_ends_early_is_resumed_where_it_broke(scene: Scene) -> None:
    scene.plan(Break(1_000), Break(500_000))
    assert await read_all(scene.store) == CONTENT[100:]
    last = len(CONTENT) - 1
    assert scene.ranges == [
        f"bytes=100-{last}",
        f"bytes=1100-{last}",
        f"bytes=501100-{last}",
    ]
    assert scene.counts.totals["storage.bytes_read"] == len(CONTENT) - 100


async def test_a_body_that_is_reset_is_resumed(scene: Scene) -> None:
    scene.plan(Break(300_000, reset=True))
    assert await read_all(scene.store) == CONTENT[100:]
    assert scene.retries == 1


async def test_a_whole_object_is_resumed_too(scene: Scene) -> None:
    scene.plan(Break(1_000))
    assert await scene.store.read("a") == CONTENT
    assert scene.ranges == ["", f"bytes=1000-{len(CONTENT) - 1}"]


async def test_a_body_that_keeps_breaking_is_truncated(scene: Scene) -> None:
    scene.plan(*[Break(10)] * 10)
    with pytest.raises(Truncated, match=r"40 of \d+ bytes"):
        await read_all(scene.store)


async def test_the_versions_of_an_overwritten_object_are_never_mixed(
    scene: Scene, s3_place: Any
) -> None:
    async with open_store(s3_place.url, **s3_place.options) as direct:
        scene.plan(Break(1_000), After(lambda: direct.put("a", CONTENT[::-1])))
        with pytest.raises(Changed):
            await read_all(scene.store)


async def test_silence_in_a_body_ends_the_attempt_and_is_resumed(
    scene: Scene, s3_place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage_backends.http_pool.SILENCE_S", 0.3)
    monkeypatch.setattr("storage_backends.s3_engine._READ_TIMEOUT_S", 0.3)
    options = {**s3_place.options, "endpoint_url": scene.proxy.url}
    async with open_store(s3_place.url, scene.counts, **options) as store:
        scene.plan(Stall(1_000))
        assert await read_all(store) == CONTENT[100:]
    assert scene.ranges[1].startswith("bytes=1100-")


async def test_the_timeout_bounds_the_whole_read(scene: Scene, s3_place: Any) -> None:
    options = {**s3_place.options, "endpoint_url": scene.proxy.url, "download_timeout": 0.5}
    async with open_store(s3_place.url, **options) as store:
        scene.plan(Stall(1_000))
        start = time.monotonic()
        with pytest.raises(Unavailable, match="download_timeout"):
            await read_all(store)
        assert time.monotonic() - start < 3


@pytest.mark.parametrize(
    "fault",
    [
        Rewrite({"content-range": "bytes 0-99/1048576"}),
        Rewrite({"content-range": ""}),
        Rewrite({"content-range": f"bytes 100-999/{len(CONTENT)}"}, body_bytes=900),
        Rewrite(body_bytes=900),
        Rewrite({"content-range": ""}, status=200),
    ],
    ids=["wrong start", "no range", "consistently short", "short", "whole instead of range"],
)
async def test_an_answer_to_another_question_is_not_taken(scene: Scene, fault: Fault) -> None:
    scene.plan(fault)
    assert await read_all(scene.store) == CONTENT[100:]
    assert scene.retries == 1
    scene.plan(*[fault] * 10)
    with pytest.raises(Unavailable, match="answered"):
        await read_all(scene.store)


async def test_the_whole_body_is_taken_where_the_whole_was_asked_for(scene: Scene) -> None:
    scene.plan(Rewrite({"content-range": ""}, status=200))
    buffer = bytearray(len(CONTENT))
    await scene.store.read_into("a", 0, buffer)
    assert buffer == CONTENT
    assert scene.retries == 0


async def test_another_etag_is_noticed_on_a_server_that_ignores_if_match(scene: Scene) -> None:
    etag = (await scene.store.info("a")).etag
    scene.plan(Rewrite({"etag": '"other"'}))
    with pytest.raises(Changed):
        await scene.store.read_into("a", 0, bytearray(10), etag=etag)


async def test_writes_are_repeated_with_their_whole_body(scene: Scene) -> None:
    scene.plan(SLOW_DOWN, Break(-1))
    await scene.store.put("b", CONTENT)
    assert scene.retries == 2
    assert await scene.store.read("b") == CONTENT


async def test_a_claim_whose_answer_got_lost_is_known_as_ours(scene: Scene) -> None:
    scene.plan(Break(-1))
    assert await scene.store.put_if_absent("claim", b"mine") is True
    scene.plan(Break(-1))
    assert await scene.store.put_if_absent("claim", b"other, longer") is False
    scene.plan(Break(-1))
    assert await scene.store.put_if_absent("claim", b"yours") is False
    assert await scene.store.read("claim") == b"mine"


async def test_an_upload_whose_completion_got_lost_is_complete(scene: Scene) -> None:
    content = CONTENT * 9
    scene.plan(None, None, None, Break(-1))
    async with scene.store.open_writer("b") as writer:
        await writer.write(content)
    assert [seen.method for seen in scene.proxy.seen[:5]] == ["POST", "PUT", "PUT", "POST", "POST"]
    assert await scene.store.read("b") == content


async def test_a_part_that_fails_for_good_fails_the_writer_and_leaves_nothing(
    scene: Scene, s3_server: Any
) -> None:
    scene.plan(None, Answer(403, "AccessDenied"))

    async def write() -> None:
        async with scene.store.open_writer("b") as writer:
            for _ in range(40):
                await writer.write(CONTENT)

    with pytest.raises(AccessDenied):
        await write()
    with pytest.raises(NotFound):
        await scene.store.info("b")
    assert scene.proxy.seen[-2].method in ("DELETE", "HEAD")
    assert any(seen.method == "DELETE" and "uploadId" in seen.target for seen in scene.proxy.seen)


async def test_a_cancelled_read_closes_its_connection(scene: Scene) -> None:
    scene.plan(Stall(1_000))
    buffer = bytearray(len(CONTENT))
    read = asyncio.create_task(scene.store.read_into("a", 0, buffer))
    while not buffer.rstrip(b"\0"):
        await asyncio.wait([read], timeout=0.005)
    read.cancel()
    with pytest.raises(asyncio.CancelledError):
        await read
    async with asyncio.timeout(5):
        await scene.proxy.stalls_ended.wait()
    assert buffer[1_000:] == bytes(len(CONTENT) - 1_000)

"""Conversions into a real S3 server, and out of it, behind a proxy that goes wrong."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage_backends import Store, open_store
from streamloader.convert import append, convert
from tests.storage_backends.fault_proxy import (
    Answer,
    Break,
    Fault,
    FaultProxy,
    RefuseBody,
    Seen,
)

pytestmark = pytest.mark.s3

Contents = Callable[[Path], dict[str, bytes]]
Jpeg = Callable[..., bytes]

#: Each is one that a server or network shows in passing. The server has done what a request asked
#: for where its answer breaks, and has not where the request is refused or its body breaks.
FAULTS: tuple[Fault, ...] = (
    Answer(503, "SlowDown"),
    Answer(500, "InternalError"),
    Break(-1),
    Break(-1, reset=True),
    RefuseBody(after_bytes=0),
    RefuseBody(after_bytes=100_000),
)


SIZES: dict[str, Any] = {"shard_bytes": "14mb", "jobs": 2}


class Trouble:
    """Goes wrong with every other request of each kind, in all ways in turn."""

    def __init__(self, first: int) -> None:
        self._faults = itertools.cycle(FAULTS[first:] + FAULTS[:first])
        self._spared: set[str] = set()
        self.met: Counter[str] = Counter()

    def __call__(self, seen: Seen) -> Fault | None:
        kind = _kind(seen)
        if kind == "explain":
            return None
        if kind in self._spared:
            self._spared.remove(kind)
            return None
        self._spared.add(kind)
        self.met[kind] += 1
        return next(self._faults)


def _kind(seen: Seen) -> str:
    query = seen.target.partition("?")[2]
    if "max-keys=1&" in query:
        # Only explains the refusal before it, and is not repeated.
        return "explain"
    if seen.method == "POST":
        return "begin" if "uploads" in query else "complete"
    if seen.method == "PUT":
        return "part" if "partNumber" in query else "put"
    return seen.method.lower()


@pytest.fixture
def large_pictures(class_tree: Path, jpeg: Jpeg) -> Path:
    """Enough bytes that shards need several parts each."""
    for number in range(16):
        (class_tree / "ant" / f"large{number}.jpg").write_bytes(jpeg(number, 1600, 1200))
    return class_tree


def _options(bucket: Any, endpoint: str) -> dict[str, Any]:
    # More attempts than faults could ever follow on each other here; short enough to fail a test.
    return {
        **bucket.storage_options,
        "endpoint_url": endpoint,
        "part_bytes": 5 << 20,
        "download_retry": 30,
    }


async def _objects(url: str, options: dict[str, Any]) -> tuple[dict[str, bytes], list[str]]:
    """Every object, and the keys of the uploads that have not ended."""
    async with open_store(url, **options) as store:
        found = {info.key: await store.read(info.key) async for info in store.list()}
        return found, await _uploads(store)


async def _uploads(store: Store) -> list[str]:
    return [write.key async for write in store.unfinished()]


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, len(FAULTS)))]
)
async def test_a_conversion_through_faults_gives_the_bytes_of_an_undisturbed_one(
    large_pictures: Path, tmp_path: Path, contents: Contents, s3_bucket: Any, first: int
) -> None:
    convert(large_pictures, tmp_path / "whole", **SIZES)
    trouble = Trouble(first)
    url = f"{s3_bucket.url}/set"
    async with FaultProxy(s3_bucket.storage_options["endpoint_url"]) as proxy:
        proxy.plan_by(trouble)
        options = _options(s3_bucket, proxy.url)
        report = await asyncio.to_thread(
            convert, large_pictures, url, storage_options=options, **SIZES
        )
        # A request on a connection that was reset meanwhile is counted, and never came here.
        unseen = report.requests - len(proxy.seen)
        assert report.retries == sum(trouble.met.values()) + unseen
        assert 0 <= unseen < len(proxy.seen) / 10
    found, uploads = await _objects(url, s3_bucket.storage_options)
    assert found == contents(tmp_path / "whole")
    assert uploads == []
    assert {"begin", "part", "complete", "put"} <= trouble.met.keys()


async def test_an_addition_from_a_bucket_through_faults_loses_nothing(
    large_pictures: Path, tmp_path: Path, contents: Contents, s3_bucket: Any, upload: Any
) -> None:
    convert(large_pictures, tmp_path / "whole", **SIZES)
    append(large_pictures, tmp_path / "whole", **SIZES)
    await asyncio.to_thread(
        upload, large_pictures, f"{s3_bucket.url}/pictures", s3_bucket.storage_options
    )
    url, trouble = f"{s3_bucket.url}/set", Trouble(0)
    async with FaultProxy(s3_bucket.storage_options["endpoint_url"]) as proxy:
        proxy.plan_by(trouble)
        options = _options(s3_bucket, proxy.url)
        for verb in (convert, append):
            report = await asyncio.to_thread(
                verb, f"{s3_bucket.url}/pictures", url, storage_options=options, **SIZES
            )
            assert (report.samples, report.rejected) == (76, ())
    found, uploads = await _objects(url, s3_bucket.storage_options)
    assert found == contents(tmp_path / "whole")
    assert uploads == []
    assert {"get", "part", "put"} <= trouble.met.keys()

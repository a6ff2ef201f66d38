"""What every backend must do, on a folder and on a real S3 server alike."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import mmap
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage_backends import (
    AccessDenied,
    Changed,
    Misconfigured,
    NotFound,
    StorageError,
    Store,
    Truncated,
    open_store,
)
from tests.storage_backends.failing_calls import READS, WRITES, failures
from tests.storage_backends.local_places import as_ordinary_user, folder_for_everyone

CONTENT = bytes(np.random.default_rng(0).integers(0, 256, 100_000, dtype=np.uint8))
BIG = 6 * 2**20 + 17
HOSTILE_KEYS = [
    "train/a b.jpg",
    "train/a%20b.jpg",
    "train/猫.jpg",
    "train/cafe\u0301.jpg",
    "train/caf\u00e9.jpg",
    "train/a=b&c.jpg",
    "train/a;b,c:d@e.jpg",
    "train/a+b?c#d.jpg",
    "train/{x}[y]*'\"~!$.jpg",
    "train/tab\tnew\nline.jpg",
]


async def keys(store: Store, prefix: str = "") -> list[str]:
    return [info.key async for info in store.list(prefix)]


def big_content() -> bytes:
    return np.random.default_rng(1).bytes(BIG)


@pytest.mark.parametrize(
    "make",
    [
        bytearray,
        lambda n: memoryview(bytearray(n)),
        lambda n: np.zeros(n, np.uint8),
        lambda n: np.zeros((n // 8, 2), np.float32),
        lambda n: mmap.mmap(-1, n),
    ],
    ids=["bytearray", "memoryview", "numpy", "numpy-2d-float", "mmap"],
)
async def test_a_range_fills_any_kind_of_writable_buffer(
    store: Store, make: Callable[[int], Any]
) -> None:
    await store.put("a", CONTENT)
    buffer = make(4096)
    await store.read_into("a", 1234, buffer)
    assert memoryview(buffer).tobytes() == CONTENT[1234 : 1234 + 4096]


async def test_a_range_fills_only_its_own_part_of_a_larger_buffer(store: Store) -> None:
    await store.put("a", CONTENT)
    slab = np.full(300, 7, np.uint8)
    await store.read_into("a", 50, slab[100:200])
    assert bytes(slab[100:200]) == CONTENT[50:150]
    assert (slab[:100] == 7).all()
    assert (slab[200:] == 7).all()


async def test_the_whole_object_and_its_last_byte_can_be_read(store: Store) -> None:
    await store.put("a", CONTENT)
    whole, last = bytearray(len(CONTENT)), bytearray(1)
    await store.read_into("a", 0, whole)
    await store.read_into("a", len(CONTENT) - 1, last)
    assert whole == CONTENT
    assert last == CONTENT[-1:]


@pytest.mark.parametrize("offset", [len(CONTENT) - 5, len(CONTENT), len(CONTENT) + 10_000])
async def test_a_range_beyond_the_end_is_truncated(store: Store, offset: int) -> None:
    await store.put("a", CONTENT)
    with pytest.raises(Truncated, match="a"):
        await store.read_into("a", offset, bytearray(10))


async def test_an_empty_range_and_an_empty_object_are_fine(store: Store) -> None:
    await store.put("empty", b"")
    await store.read_into("empty", 0, bytearray())
    assert await store.read("empty") == b""
    assert (await store.info("empty")).size == 0


@pytest.mark.parametrize("buffer", [b"read-only", np.zeros((4, 4))[:, ::2]], ids=["const", "gaps"])
async def test_a_buffer_that_cannot_be_filled_is_refused(store: Store, buffer: Any) -> None:
    with pytest.raises(Misconfigured, match="buffer"):
        await store.read_into("a", 0, buffer)


async def test_a_negative_offset_is_refused(store: Store) -> None:
    with pytest.raises(Misconfigured, match="-1"):
        await store.read_into("a", -1, bytearray(1))


async def test_info_gives_size_and_an_etag_that_changes_with_the_content(store: Store) -> None:
    await store.put("a", b"one")
    first = await store.info("a")
    assert (first.key, first.size) == ("a", 3)
    assert first == await store.info("a")
    await store.put("a", b"two")
    assert (await store.info("a")).etag != first.etag


async def test_a_listing_tells_what_info_tells(store: Store) -> None:
    for name, size in (("a", 1), ("b/c", 70_000), ("d", 0)):
        await store.put(name, bytes(size))
    listed = [info async for info in store.list()]
    assert listed == [await store.info(name) for name in ("a", "b/c", "d")]
    assert [info.size for info in listed] == [1, 70_000, 0]
    await store.read_into("b/c", 0, bytearray(70_000), etag=listed[1].etag)


async def replace_by_put(store: Store) -> None:
    await store.put("a", b"two")


async def replace_by_writer(store: Store) -> None:
    async with store.open_writer("a") as writer:
        await writer.write(b"two")


async def replace_by_claim(store: Store) -> None:
    await store.delete("a")
    assert await store.put_if_absent("a", b"two")


@pytest.mark.parametrize("replace", [replace_by_put, replace_by_writer, replace_by_claim])
async def test_reads_with_an_outdated_etag_raise_changed(
    store: Store, replace: Callable[[Store], Awaitable[None]]
) -> None:
    await store.put("a", b"one")
    etag = (await store.info("a")).etag
    buffer = bytearray(3)
    await store.read_into("a", 0, buffer, etag=etag)
    assert buffer == b"one"
    await replace(store)
    with pytest.raises(Changed, match="a") as caught:
        await store.read_into("a", 0, buffer, etag=etag)
    assert caught.value.url.endswith("/a")
    await store.read_into("a", 0, buffer)
    assert buffer == b"two"
    await store.delete("a")
    with pytest.raises(NotFound):
        await store.read_into("a", 0, buffer, etag=etag)


async def test_a_missing_object_is_not_found_by_every_call(store: Store) -> None:
    await store.put("other", b"")
    for call in (store.info("no"), store.read("no"), store.read_into("no", 0, bytearray(1))):
        with pytest.raises(NotFound, match="no") as caught:
            await call
        assert caught.value.url.endswith("/no")
        assert caught.value.code in ("NoSuchKey", "ENOENT")


async def test_a_place_that_does_not_exist_is_not_found_by_reading(
    backend: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url, options = str(tmp_path / "no-such-place"), {}
    if backend != "local":
        place = request.getfixturevalue("place")
        url, options = f"{place.url.partition('://')[0]}://no-such-place", place.options
    for error in (await failures(url, options, READS.keys() - {"check"})).values():
        assert type(error) is NotFound
        assert error.code in ("NoSuchBucket", "ENOENT")
        assert "no-such-place" in str(error)


async def test_where_one_may_only_read_every_write_is_denied(
    backend: str, request: pytest.FixtureRequest
) -> None:
    if backend.startswith("cloud"):
        pytest.skip("the permissions of that cloud are not to be had here")
    with ExitStack() as stack:
        if backend != "local":
            place = request.getfixturevalue("place")
            url, options = place.url, place.options
            readonly = request.getfixturevalue("s3_server").readonly_storage_options
            reading = {**options, **readonly}
        else:
            folder = stack.enter_context(folder_for_everyone())
            url, options, reading = str(folder), {}, {}
        async with open_store(url, **options) as store:
            await store.put("a", b"x")
        if backend == "local":
            folder.chmod(0o555)
            stack.enter_context(as_ordinary_user())
        errors = await failures(url, reading, WRITES)
        async with open_store(url, **reading) as store:
            for call in READS.values():
                await call(store)
            left = await keys(store)
    for error in errors.values():
        assert type(error) is AccessDenied
        assert error.code in ("AccessDenied", "EACCES")
        assert "no permission" in str(error)
        assert error.url.endswith("/a")
    assert left == ["a"]


async def test_read_refuses_an_object_above_the_limit_before_reading_it(
    store: Store, counts: Any
) -> None:
    await store.put("a", CONTENT)
    assert await store.read("a", max_bytes=len(CONTENT)) == CONTENT
    before = counts.totals["storage.bytes_read"]
    with pytest.raises(StorageError, match=str(len(CONTENT))):
        await store.read("a", max_bytes=len(CONTENT) - 1)
    assert counts.totals["storage.bytes_read"] == before


async def test_listings_are_in_the_order_of_utf8_bytes(store: Store) -> None:
    names = ["a/c", "a-b", "a0", "a.b", "B", "a/b/c", "é", "猫", "z", "\U0001f431", "\uffee"]
    for name in names:
        await store.put(name, b"x")
    assert await keys(store) == sorted(names, key=str.encode)


async def test_a_prefix_is_a_string_prefix(store: Store) -> None:
    for name in ("train/a", "train/b/c", "train2/a", "test/a", "tr"):
        await store.put(name, b"x")
    assert await keys(store, "train/") == ["train/a", "train/b/c"]
    assert await keys(store, "train") == ["train/a", "train/b/c", "train2/a"]
    assert await keys(store, "train/b") == ["train/b/c"]
    assert await keys(store, "nothing") == []


async def test_a_listing_does_not_leave_its_own_prefix(store: Store, place: Any) -> None:
    await store.put("train/a", b"x")
    await store.put("train_extra/a", b"x")
    async with open_store(f"{place.url}/train/", **place.options) as below:
        assert below.url == f"{place.url}/train"
        assert await keys(below) == ["a"]


async def put_numbered(store: Store, number: int) -> list[str]:
    names = [f"{n:05}" for n in range(number)]
    slots = asyncio.Semaphore(16)

    async def put(name: str) -> None:
        async with slots:
            await store.put(name, b"x")

    await asyncio.gather(*map(put, names))
    return names


async def test_listings_of_many_pages_are_complete(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage_backends.s3._PAGE_KEYS", 7)
    names = await put_numbered(store, 50)
    assert await keys(store) == names


@pytest.mark.slow
async def test_listings_of_more_than_a_thousand_objects_are_complete(store: Store) -> None:
    names = await put_numbered(store, 1_100)
    assert await keys(store) == names


@pytest.mark.parametrize("size", [0, 1, 5 * 2**20, BIG], ids=["0", "1", "5MiB", "6MiB+17"])
async def test_a_writer_stores_what_was_written(place: Any, counts: Any, size: int) -> None:
    content = big_content()[:size]
    options = {**place.options, **({"part_bytes": 5 * 2**20} if place.options else {})}
    async with open_store(place.url, counts, **options) as store:
        async with store.open_writer("deep/er/a") as writer:
            for start in range(0, size, 300_001):
                await writer.write(content[start : start + 300_001])
        assert writer.bytes_written == size
        assert await store.read("deep/er/a") == content
        assert counts.totals["storage.bytes_written"] == size


async def test_what_is_being_written_is_not_visible_before_the_end(store: Store) -> None:
    await store.put("a", b"old")
    async with store.open_writer("a") as writer:
        await writer.write(b"new")
        assert await store.read("a") == b"old"
        assert await keys(store) == ["a"]
    assert await store.read("a") == b"new"


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError])
async def test_a_writer_left_by_an_exception_changes_nothing(
    store: Store, error: type[BaseException]
) -> None:
    await store.put("a", b"old")

    async def write() -> None:
        async with store.open_writer("a") as writer:
            await writer.write(b"half")
            raise error

    with pytest.raises(error):
        await write()
    assert await store.read("a") == b"old"
    assert await keys(store) == ["a"]


async def test_a_writer_takes_a_copy_of_what_it_is_given(store: Store) -> None:
    reused = bytearray(b"one")
    async with store.open_writer("a") as writer:
        await writer.write(reused)
        reused[:] = b"two"
        await writer.write(reused)
    assert await store.read("a") == b"onetwo"


async def test_pieces_are_written_as_if_they_were_one(store: Store) -> None:
    content = big_content()
    # More pieces than a system call takes, empty ones and a large one among them.
    cuts = [0, 0, *range(7, 40_000, 17), 2 * 2**20, len(content)]
    pieces = [memoryview(content)[a:b] for a, b in itertools.pairwise(cuts)]
    async with store.open_writer("a") as writer:
        await writer.write(b"first")
        await writer.write_all(pieces)
        await writer.write_all([])
        await writer.write_all([bytearray(b"la"), b"st"])
        assert writer.bytes_written == len(content) + 9
    assert await store.read("a") == b"first" + content + b"last"


async def test_an_unfinished_write_is_listed_and_discarded(place: Any, backend: str) -> None:
    if backend.startswith("cloud"):
        pytest.skip("obstore cannot list the uploads that were begun")
    options = {**place.options, **({"part_bytes": 5 * 2**20} if place.options else {})}
    async with open_store(place.url, **options) as store:
        await store.put("done", b"x")
        assert [write.key async for write in store.unfinished()] == []
        writer = store.open_writer("deep/a")
        with contextlib.suppress(StorageError):
            async with writer:
                # Two full parts: the first is sent when the second begins.
                await writer.write(big_content()[: 5 * 2**20])
                await writer.write(big_content())
                (found,) = [write async for write in store.unfinished()]
                assert found.key.startswith("deep/")
                await store.discard(found)
                await store.discard(found)
                assert [write.key async for write in store.unfinished()] == []
                raise StorageError("enough", url=place.url)
        assert await keys(store) == ["done"]


async def test_a_writer_outside_its_block_is_refused(store: Store) -> None:
    writer = store.open_writer("a")
    with pytest.raises(StorageError, match="async with"):
        await writer.write(b"x")


async def test_put_replaces_and_delete_removes(store: Store) -> None:
    await store.put("a", b"one")
    await store.put("a", memoryview(b"two"))
    assert await store.read("a") == b"two"
    await store.delete("a")
    with pytest.raises(NotFound):
        await store.read("a")
    await store.delete("a")
    await store.delete("never/there")


async def test_put_if_absent_leaves_what_is_there(store: Store) -> None:
    assert await store.put_if_absent("a", b"one") is True
    assert await store.put_if_absent("a", b"two") is False
    assert await store.read("a") == b"one"
    assert await keys(store) == ["a"]


async def test_racing_writers_of_one_key_leave_one_of_their_contents(store: Store) -> None:
    contents = [bytes([number]) * 100_000 for number in range(6)]
    await asyncio.gather(*(store.put("a", content) for content in contents))
    assert await store.read("a") in contents
    assert await keys(store) == ["a"]


@pytest.mark.parametrize("strided", [memoryview(b"abcd")[::2], np.zeros((4, 4))[:, ::2]])
async def test_memory_with_gaps_is_not_written(store: Store, strided: Any) -> None:
    async with store.open_writer("a") as writer:
        with pytest.raises(Misconfigured, match="contiguous"):
            await writer.write(strided)
    for call in (store.put, store.put_if_absent):
        with pytest.raises(Misconfigured, match="contiguous"):
            await call("a", strided)


async def test_an_array_of_any_type_is_written_as_its_bytes(store: Store) -> None:
    array = np.arange(6, dtype="<f4").reshape(2, 3)
    await store.put("a", array)
    assert await store.put_if_absent("b", array)
    async with store.open_writer("c") as writer:
        await writer.write(array)
    assert writer.bytes_written == 24
    for key in "abc":
        assert await store.read(key) == array.tobytes()


async def test_one_of_many_racing_claims_wins(store: Store) -> None:
    claims = [f"claim {number}".encode() for number in range(4)]
    won = await asyncio.gather(*(store.put_if_absent("a", claim) for claim in claims))
    assert won.count(True) == 1
    assert await store.read("a") == claims[won.index(True)]


async def test_a_cancelled_read_leaves_the_buffer_alone_afterwards(store: Store) -> None:
    content = big_content()[: 2 * 2**20]
    await store.put("a", content)
    for turns in range(8):
        buffer = bytearray(len(content))
        read = asyncio.create_task(store.read_into("a", 0, buffer))
        for _ in range(turns):
            await asyncio.wait([read], timeout=0.001)
        read.cancel()
        await asyncio.wait([read])
        seen = bytes(buffer)
        await store.read("a")
        assert buffer == seen


async def test_reads_run_concurrently_and_are_counted(store: Store, counts: Any) -> None:
    await store.put("a", CONTENT)
    counts.totals.clear()
    buffers = [bytearray(100) for _ in range(50)]
    await asyncio.gather(
        *(store.read_into("a", 100 * n, buffer) for n, buffer in enumerate(buffers))
    )
    assert b"".join(buffers) == CONTENT[:5_000]
    assert counts.totals["storage.requests"] == 50
    assert counts.totals["storage.bytes_read"] == 5_000
    assert counts.totals["storage.retries"] == 0
    assert len(counts.times["storage.read_s"]) == 50


async def test_hostile_keys_survive_byte_for_byte(store: Store, backend: str) -> None:
    # obstore takes no control characters.
    hostile = [key for key in HOSTILE_KEYS if "obstore" not in backend or "\n" not in key]
    for key in hostile:
        await store.put(key, key.encode())
    assert await keys(store, "train/") == sorted(hostile, key=str.encode)
    for key in hostile:
        assert await store.read(key) == key.encode()
        assert (await store.info(key)).key == key
        await store.delete(key)
    assert await keys(store) == []


async def test_check_accepts_a_usable_place(store: Store) -> None:
    await store.check()


async def test_a_store_is_used_inside_its_block_only(place: Any) -> None:
    store = open_store(place.url, **place.options)
    with pytest.raises(StorageError, match="async with"):
        await store.read("a")
    async with store:
        await store.put("a", b"x")
    with pytest.raises(StorageError, match="closed"):
        await store.read("a")
    await store.close()


def test_a_store_is_refused_in_another_event_loop(place: Any) -> None:
    store = open_store(place.url, **place.options)
    with asyncio.Runner() as first, asyncio.Runner() as second:
        first.run(store.__aenter__())
        with pytest.raises(StorageError, match="event loop"):
            second.run(store.info("a"))
        first.run(store.close())

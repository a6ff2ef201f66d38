"""What only a folder can get wrong."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

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
from tests.storage_backends.local_places import as_ordinary_user, folder_for_everyone


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "objects"
    made.mkdir()
    return made


@pytest.fixture
async def store(folder: Path, counts: Any) -> AsyncIterator[Store]:
    async with open_store(folder, counts) as opened:
        yield opened


async def keys(store: Store) -> list[str]:
    return [info.key async for info in store.list()]


@pytest.mark.parametrize(
    "key", ["/etc/passwd", "../x", "a/../../x", "a/..", "./a", "a//b", "a/", "", "a\0b"]
)
async def test_keys_that_are_no_path_below_the_folder_are_refused(store: Store, key: str) -> None:
    for call in (store.info(key), store.put(key, b"x"), store.delete(key)):
        with pytest.raises(Misconfigured):
            await call
    with pytest.raises(Misconfigured):
        store.open_writer(key)


async def test_names_that_are_not_utf8_are_kept(store: Store, folder: Path) -> None:
    name = b"caf\xe9.jpg"
    (folder / os.fsdecode(name)).write_bytes(b"x")
    (key,) = await keys(store)
    assert os.fsencode(key) == name
    assert await store.read(key) == b"x"
    with pytest.raises(NotFound) as caught:
        await store.read(key + "2")
    assert str(caught.value).encode()


async def test_links_to_files_count_and_loops_end(store: Store, folder: Path) -> None:
    (folder / "real").mkdir()
    (folder / "real/a").write_bytes(b"x")
    (folder / "real/up").symlink_to("..")
    (folder / "real/self").symlink_to("self")
    (folder / "link").symlink_to("real/a")
    (folder / "again").symlink_to("real")
    (folder / "dead").symlink_to("nowhere")
    assert await keys(store) == ["again/a", "link", "real/a"]
    assert await store.read("link") == b"x"
    for key in ("dead", "real/self"):
        with pytest.raises(NotFound):
            await store.read(key)


async def test_what_is_no_regular_file_is_neither_listed_nor_opened(
    store: Store, folder: Path
) -> None:
    os.mkfifo(folder / "fifo")
    (folder / "sub").mkdir()
    assert await keys(store) == []
    for key in ("fifo", "sub"):
        for call in (store.read(key), store.read_into(key, 0, bytearray(1)), store.info(key)):
            with pytest.raises(NotFound, match=key):
                await call


async def test_a_missing_folder_is_not_found_by_listing_and_made_by_writing(
    tmp_path: Path,
) -> None:
    async with open_store(tmp_path / "not/yet") as store:
        with pytest.raises(NotFound, match="not/yet"):
            await keys(store)
        await store.check()
        await store.put("a", b"x")
        assert await keys(store) == ["a"]


async def test_check_names_what_makes_a_place_unusable(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file", tmp_path / "file/below"):
        async with open_store(path) as store:
            with pytest.raises(NotFound, match="not a folder"):
                await store.check()
            with pytest.raises(StorageError):
                await store.put("a", b"x")


@pytest.mark.parametrize(
    ("number", "kind", "message"),
    [
        (errno.ENOSPC, Unavailable, "no space left"),
        (errno.EDQUOT, Unavailable, "quota"),
        (errno.EROFS, AccessDenied, "read-only"),
        (errno.EACCES, AccessDenied, "no permission"),
        (errno.EIO, Unavailable, "disk failed"),
        (errno.EXDEV, Unavailable, "link"),
    ],
)
async def test_trouble_of_the_disk_is_said_in_one_sentence_and_leaves_nothing(
    store: Store,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    kind: type[StorageError],
    message: str,
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("storage_backends.local_new_file.os.fsync", fail)
    with pytest.raises(kind, match=message) as caught:
        await store.put("a", b"x")
    assert caught.value.code == errno.errorcode[number]
    assert isinstance(caught.value.__cause__, OSError)
    with pytest.raises(kind, match=message):
        async with store.open_writer("b") as writer:
            await writer.write(b"x")
    assert os.listdir(folder) == []


async def test_permission_is_enforced_and_said() -> None:
    with folder_for_everyone() as folder:
        (folder / "a").write_bytes(b"x")
        (folder / "a").chmod(0)
        (folder / "closed").mkdir(mode=0)
        async with open_store(folder) as store:
            for call in (store.read("a"), store.read_into("a", 0, bytearray(1))):
                with as_ordinary_user(), pytest.raises(AccessDenied, match="no permission"):
                    await call
            with as_ordinary_user(), pytest.raises(AccessDenied, match="no permission"):
                await keys(store)
        for path, doing in ((folder / "closed", "read"), (folder / "new", "make folders in")):
            async with open_store(path) as store:
                folder.chmod(0o555)
                with as_ordinary_user(), pytest.raises(AccessDenied, match=doing):
                    await store.check()


async def test_files_whose_writing_never_ended_are_not_listed(store: Store, folder: Path) -> None:
    await store.open_writer("a").__aenter__()
    assert len(os.listdir(folder)) == 1
    assert await keys(store) == []


async def test_claims_work_without_hard_links(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: Any) -> None:
        raise OSError(errno.EPERM, "no hard links here")

    monkeypatch.setattr("storage_backends.local_new_file.os.link", unsupported)
    claims = [b"%d" % number for number in range(8)]
    won = await asyncio.gather(*(store.put_if_absent("a", claim) for claim in claims))
    assert won.count(True) == 1
    assert await store.read("a") == claims[won.index(True)]
    assert os.listdir(folder) == ["a"]


@pytest.mark.parametrize("cached", [0, 1, 999, 1000])
async def test_what_the_page_cache_lacks_is_read_in_a_thread(
    store: Store, monkeypatch: pytest.MonkeyPatch, cached: int
) -> None:
    content = bytes(number % 251 for number in range(1000))
    await store.put("a", content)
    preadv = os.preadv
    threads = []

    def partly(fd: int, buffers: Any, offset: int, flags: int = 0) -> int:
        if not flags:
            threads.append(threading.current_thread().name)
            return preadv(fd, buffers, offset)
        if not cached:
            raise BlockingIOError(errno.EAGAIN, "not in the page cache")
        return preadv(fd, [buffers[0][:cached]], offset)

    monkeypatch.setattr("storage_backends.local_files.os.preadv", partly)
    buffer = bytearray(1000)
    await store.read_into("a", 0, buffer)
    assert bytes(buffer) == content
    assert len(threads) == (cached < 1000)
    assert all("storage-local" in name for name in threads)


async def test_a_file_system_that_cannot_say_what_is_cached_is_asked_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.put("a", b"content")
    preadv = os.preadv
    asked = []

    def unable(fd: int, buffers: Any, offset: int, flags: int = 0) -> int:
        if flags:
            asked.append(offset)
            raise OSError(errno.EOPNOTSUPP, "not supported here")
        return preadv(fd, buffers, offset)

    monkeypatch.setattr("storage_backends.local_files.os.preadv", unable)
    for _ in range(2):
        buffer = bytearray(7)
        await store.read_into("a", 0, buffer)
        assert bytes(buffer) == b"content"
    assert len(asked) == 1


async def test_a_running_read_is_awaited_before_its_cancellation_is_raised(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.put("a", bytes(32 * 2**20))
    entered, release = threading.Event(), threading.Event()
    preadv = os.preadv
    steps = []

    def slow(fd: int, buffers: Any, offset: int) -> int:
        entered.set()
        assert release.wait(10)
        steps.append(offset)
        return preadv(fd, buffers, offset)

    monkeypatch.setattr("storage_backends.local_files.os.preadv", slow)
    buffer = bytearray(b"\1") * (32 * 2**20)
    read = asyncio.create_task(store.read_into("a", 0, buffer))
    while not entered.is_set():
        await asyncio.wait([read], timeout=0.001)
    read.cancel()
    await asyncio.wait([read], timeout=0.05)
    assert not read.done()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await read
    # The step that was running is finished, the others are not begun.
    assert steps == [0]
    assert buffer[8 * 2**20 :] == b"\1" * (24 * 2**20)


async def test_descriptors_are_bounded_and_closed(folder: Path) -> None:
    for number in range(200):
        (folder / f"{number:03}").write_bytes(b"x")
    before = len(os.listdir("/proc/self/fd"))
    async with open_store(folder) as store:
        for number in range(200):
            await store.read_into(f"{number:03}", 0, bytearray(1))
        assert len(os.listdir("/proc/self/fd")) <= before + 64
    assert len(os.listdir("/proc/self/fd")) <= before


async def test_threads_end_with_the_store(folder: Path) -> None:
    async with open_store(folder) as store:
        await store.put("a", b"x")
        assert [t for t in threading.enumerate() if t.name.startswith("storage-local")]
    assert not [t for t in threading.enumerate() if t.name.startswith("storage-local")]


async def test_a_replaced_file_is_read_anew(store: Store) -> None:
    for content in (b"one", b"two", b"six"):
        await store.put("a", content)
        buffer = bytearray(3)
        await store.read_into("a", 0, buffer)
        assert buffer == content


@pytest.mark.parametrize("short", [None, 1000])
async def test_no_call_is_so_long_that_pages_for_it_are_dear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short: int | None
) -> None:
    content = os.urandom(5 * 2**20)
    longest: list[int] = []
    writev = os.writev

    def note(fd: int, pieces: list[memoryview]) -> int:
        longest.append(sum(map(len, pieces)))
        return writev(fd, pieces if short is None else [b"".join(pieces)[:short]])

    monkeypatch.setattr(os, "writev", note)
    async with open_store(tmp_path) as store, store.open_writer("large") as writer:
        cuts = [0, 64, 100, 100, 3 * 2**20, 3 * 2**20 + 2000, len(content)]
        await writer.write_all([content[a:b] for a, b in itertools.pairwise(cuts)])
    assert max(longest) == 2**20
    assert (tmp_path / "large").read_bytes() == content

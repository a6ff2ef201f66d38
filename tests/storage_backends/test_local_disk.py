"""Disks that are full, may only be read, or allow no longer file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.storage_backends.local_places import run_on_small_disk

TRY_ALL = """
import asyncio, json, os, subprocess, sys
from storage_backends import StorageError, open_store

TOO_MUCH = bytes(3 * 2**20)

async def write(store, key, data):
    async with store.open_writer(key) as writer:
        for start in range(0, len(data), 2**19):
            await writer.write(data[start : start + 2**19])

CALLS = {
    "put": lambda store: store.put("kept", TOO_MUCH),
    "put_if_absent": lambda store: store.put_if_absent("new", TOO_MUCH),
    "open_writer": lambda store: write(store, "kept", TOO_MUCH),
    "delete": lambda store: store.delete("kept"),
}

async def errors(store, calls):
    found = {}
    for name in calls:
        try:
            await CALLS[name](store)
        except StorageError as error:
            found[name] = [type(error).__name__, error.code, str(error), error.url]
    return found
"""

FULL = (
    TRY_ALL
    + """
async def main(folder):
    async with open_store(folder) as store:
        await store.put("kept", b"kept")
        found = await errors(store, ["put", "put_if_absent", "open_writer"])
        left = sorted(os.listdir(folder))
        await store.put("small", b"there is room for it")
        print(json.dumps([found, left, (await store.read("kept")).decode()]))

asyncio.run(main(sys.argv[1]))
"""
)

READ_ONLY = (
    TRY_ALL
    + """
async def main(folder):
    async with open_store(folder) as store:
        await store.put("kept", b"kept")
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
        found = await errors(store, CALLS)
        await store.check()
        listed = [info.key async for info in store.list()]
        print(json.dumps([found, listed, (await store.read("kept")).decode()]))

asyncio.run(main(sys.argv[1]))
"""
)

LIMITED = (
    """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
"""
    + FULL
)


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    folder = tmp_path / "disk"
    folder.mkdir()
    return folder


def check_errors(found: dict[str, Any], disk: Path, kind: str, code: str, message: str) -> None:
    for call, (name, number, text, url) in found.items():
        assert (name, number) == (kind, code), call
        assert message in text
        assert "\n" not in text
        assert url.startswith(str(disk))
        assert url in text


def test_a_full_disk_is_named_and_keeps_what_it_had(disk: Path) -> None:
    found, left, kept = json.loads(run_on_small_disk(FULL, disk))
    assert list(found) == ["put", "put_if_absent", "open_writer"]
    check_errors(found, disk, "Unavailable", "ENOSPC", "no space left on the disk of")
    assert (left, kept) == (["kept"], "kept")


def test_a_read_only_disk_is_read_and_every_write_says_so(disk: Path) -> None:
    found, listed, kept = json.loads(run_on_small_disk(READ_ONLY, disk))
    assert list(found) == ["put", "put_if_absent", "open_writer", "delete"]
    check_errors(found, disk, "AccessDenied", "EROFS", "is on a read-only file system")
    assert (listed, kept) == (["kept"], "kept")


def test_a_limit_of_file_sizes_is_named_and_keeps_what_there_was(disk: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(disk)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found, left, kept = json.loads(done.stdout)
    assert list(found) == ["put", "put_if_absent", "open_writer"]
    check_errors(found, disk, "Unavailable", "EFBIG", "is too large for its file system")
    assert (left, kept) == (["kept"], "kept")

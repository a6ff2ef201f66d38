"""Conversions into a real S3 server that are killed at random requests, and go on."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage_backends import open_store
from streamloader.convert import convert
from streamloader.fetch import LoopThread

pytestmark = [pytest.mark.s3, pytest.mark.slow, pytest.mark.timeout(900)]

KILLS = 20
OPTIONS: dict[str, Any] = {"shard_bytes": "14mb", "resume": True}


def run_and_kill(
    source: Path, url: str, storage: dict[str, Any], call: int, *, after: bool
) -> bool:
    """Convert in a process of its own that is killed at a request; False if it ended before."""
    program = (
        "import os, signal\n"
        "from storage_backends.s3_requests import S3Requests\n"
        "from streamloader.convert import convert\n"
        "real, calls = S3Requests.call, 0\n"
        "async def call(self, *args, **options):\n"
        "    global calls\n"
        "    calls += 1\n"
        f"    mine = calls == {call}\n"
        f"    if mine and not {after}:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    answer = await real(self, *args, **options)\n"
        "    if mine:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return answer\n"
        "S3Requests.call = call\n"
        f"convert({str(source)!r}, {url!r}, storage_options={storage!r}, **{OPTIONS!r})\n"
    )
    done = subprocess.run([sys.executable, "-c", program], timeout=300, check=False)
    assert done.returncode in (0, -signal.SIGKILL)
    return done.returncode != 0


def contents_of(url: str, storage: dict[str, Any], *, remove: bool = False) -> dict[str, bytes]:
    """Every object; and no upload may be left."""

    async def read() -> dict[str, bytes]:
        async with open_store(url, **storage) as store:
            found = {info.key: await store.read(info.key) async for info in store.list()}
            assert [write.key async for write in store.unfinished()] == []
            for key in found if remove else ():
                await store.delete(key)
            return found

    with LoopThread("test-loop") as loop:
        return loop.run(read())


def test_twenty_kills_leave_the_bytes_of_an_undisturbed_conversion(
    class_tree: Path,
    tmp_path: Path,
    contents: Callable[[Path], dict[str, bytes]],
    s3_bucket: Any,
    jpeg: Callable[..., bytes],
) -> None:
    for number in range(30):
        (class_tree / "ant" / f"large{number}.jpg").write_bytes(jpeg(number, 1600, 1200))
    (class_tree / "bee" / "07.jpg").write_bytes(b"not a picture")
    convert(class_tree, tmp_path / "whole", **OPTIONS)
    whole = contents(tmp_path / "whole")
    url = f"{s3_bucket.url}/set"
    storage = {**s3_bucket.storage_options, "part_bytes": 5 << 20}
    rng, kills = random.Random(8), 0
    while kills < KILLS:
        call, after = rng.randint(1, 45), rng.random() < 0.5
        if run_and_kill(class_tree, url, storage, call, after=after):
            kills += 1
        else:
            assert contents_of(url, storage, remove=True) == whole
    convert(class_tree, url, storage_options=storage, **OPTIONS)
    assert contents_of(url, storage) == whole

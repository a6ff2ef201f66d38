"""What broken conversions left is removed, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from storage_backends import AccessDenied, UnfinishedWrite, open_store
from storage_backends.s3 import S3Store
from streamloader.convert import append, clean, convert, describe, verify
from streamloader.errors import ConfigError
from streamloader.fetch import LoopThread

Contents = Callable[[Path], dict[str, bytes]]


def killed(verb: str, source: Path, dest: str, calls: int, **options: Any) -> None:
    """Run a conversion in a process of its own that is killed while it writes a shard."""
    script = (
        "import os, signal\n"
        "from streamloader.convert.upload import ShardUpload\n"
        f"from streamloader.convert import {verb}\n"
        "real, calls = ShardUpload.flush, []\n"
        "async def flush(self):\n"
        "    await real(self)\n"
        "    calls.append(1)\n"
        f"    if len(calls) == {calls}:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "ShardUpload.flush = flush\n"
        f"{verb}({str(source)!r}, {dest!r}, **{options!r})\n"
    )
    done = subprocess.run([sys.executable, "-c", script], timeout=100, check=False)
    assert done.returncode == -signal.SIGKILL


def test_an_unfinished_conversion_goes_without_trace(class_tree: Path, tmp_path: Path) -> None:
    dest = tmp_path / "out"
    killed("convert", class_tree, str(dest), 8, shard_bytes="4kb", jobs=1)
    (dest / "notes.txt").write_text("mine")
    (dest / "00099.dts").write_text("mine too")
    left = {path.name for path in dest.iterdir()}
    assert "unfinished.plan" in left
    assert any(name.startswith(".unfinished-") for name in left)
    told = clean(dest, dry_run=True)
    assert {path.name for path in dest.iterdir()} == left
    report = clean(dest)
    assert report.rests == told.rests
    assert {path.name for path in dest.iterdir()} == {"notes.txt", "00099.dts"}


def test_a_published_data_set_and_its_revisions_stay(
    class_tree: Path, tmp_path: Path, contents: Contents
) -> None:
    dest = tmp_path / "out"
    convert(class_tree, dest, shard_bytes="8kb")
    append(class_tree, dest)
    before = contents(dest)
    killed("append", class_tree, str(dest), 8, shard_bytes="4kb", jobs=1)
    assert contents(dest) != before
    clean(dest)
    assert contents(dest) == before
    assert clean(dest).rests == ()
    assert verify(dest, sha256=True).ok
    assert append(class_tree, dest).revision == 3


def test_a_data_set_that_lost_its_pointer_is_left_alone(
    class_tree: Path, tmp_path: Path, contents: Contents
) -> None:
    convert(class_tree, tmp_path / "out")
    (tmp_path / "out" / "latest.json").unlink()
    before = contents(tmp_path / "out")
    with pytest.raises(ConfigError, match="lost its pointer"):
        clean(tmp_path / "out")
    assert contents(tmp_path / "out") == before


def test_after_a_clean_another_conversion_may_begin(class_tree: Path, tmp_path: Path) -> None:
    dest = tmp_path / "out"
    killed("convert", class_tree, str(dest), 8, shard_bytes="4kb", jobs=1)
    with pytest.raises(ConfigError, match="unfinished"):
        convert(class_tree, dest, shuffle_seed=1)
    clean(dest)
    assert convert(class_tree, dest, shuffle_seed=1).resumed_shards == 0


def test_a_folder_that_is_not_there_has_nothing(tmp_path: Path) -> None:
    assert clean(tmp_path / "nothing").rests == ()


def uploads(url: str, storage: dict[str, Any], *, begin: str | None = None) -> list[str]:
    """Keys of the uploads that have not ended, after one more was begun."""

    async def keys() -> list[str]:
        async with open_store(url, **storage) as store:
            if begin is not None:
                writer = store.open_writer(begin)
                await writer.__aenter__()
                await writer.write(os.urandom(20 << 20))
                await writer._settle(0)  # type: ignore[attr-defined]  # of the S3 store
            return [write.key async for write in store.unfinished()]

    with LoopThread("test-loop") as loop:
        return loop.run(keys())


@pytest.fixture
def large_tree(class_tree: Path, jpeg: Callable[..., bytes]) -> Path:
    """Class folders whose one shard is sent in several parts."""
    for number in range(14):
        (class_tree / "ant" / f"big{number}.jpg").write_bytes(jpeg(number, 1600, 1200))
    return class_tree


@pytest.mark.s3
def test_unfinished_uploads_of_ours_are_aborted_and_others_stay(
    large_tree: Path, s3_bucket: Any
) -> None:
    url, storage = f"{s3_bucket.url}/set", s3_bucket.storage_options
    options = {"storage_options": {**storage, "part_bytes": 5 << 20}, "jobs": 1}
    killed("convert", large_tree, url, 9, **options)
    assert "00000.dts" in uploads(url, storage)
    uploads(url, storage, begin="of-others.bin")
    report = clean(url, storage_options=storage)
    assert any(rest.write is not None for rest in report.rests)
    assert uploads(url, storage) == ["of-others.bin"]
    done = convert(large_tree, url, storage_options=storage)
    assert done.samples == 74
    assert describe(url, storage_options=storage).manifest.num_samples == 74


@pytest.mark.s3
def test_a_run_that_goes_on_leaves_no_upload_of_the_one_that_was_killed(
    large_tree: Path, s3_bucket: Any
) -> None:
    url, storage = f"{s3_bucket.url}/set", s3_bucket.storage_options
    options = {"storage_options": {**storage, "part_bytes": 5 << 20}, "jobs": 1}
    killed("convert", large_tree, url, 9, **options)
    assert "00000.dts" in uploads(url, storage, begin="of-others.dts")
    convert(large_tree, url, resume=True, **options)
    assert uploads(url, storage) == ["of-others.dts"]


@pytest.mark.s3
def test_uploads_that_may_not_be_listed_are_a_warning(
    class_tree: Path, s3_bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(self: S3Store) -> AsyncIterator[UnfinishedWrite]:
        raise AccessDenied("no permission to list uploads", url=self.url, status=403)
        yield

    monkeypatch.setattr(S3Store, "unfinished", refused)
    storage = s3_bucket.storage_options
    report = convert(class_tree, f"{s3_bucket.url}/set", storage_options=storage)
    assert report.samples == 60
    assert len(report.warnings) == 1
    assert "no permission to list uploads" in report.warnings[0]
    assert verify(f"{s3_bucket.url}/set", storage_options=storage).ok

"""Samples added to a data set: a new revision, and nothing of the old one touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage_backends.local import LocalStore
from streamloader.convert import (
    DatasetWriter,
    append,
    compare,
    convert,
    describe,
    read_samples,
    verify,
)
from streamloader.errors import ConfigError

Contents = Callable[[Path], dict[str, bytes]]
Jpeg = Callable[..., bytes]


@pytest.fixture
def more(tmp_path: Path, jpeg: Jpeg) -> Path:
    """Pictures of a class that is known and of one that is not."""
    root = tmp_path / "more"
    for place, name in enumerate(("aardvark", "cat")):
        (root / name).mkdir(parents=True)
        for number in range(10):
            (root / name / f"more{number}.jpg").write_bytes(jpeg(1000 * place + number))
    return root


def stored(dest: Path, **options: Any) -> list[tuple[str | None, str | None]]:
    description = describe(dest)
    total = description.manifest.num_samples
    if options:
        total = description.to_json()["splits"][options["split"]]
    return [(s.key, s.class_name) for s in read_samples(dest, range(total), **options)]


def test_what_is_there_stays_byte_for_byte(
    class_tree: Path, more: Path, tmp_path: Path, contents: Contents
) -> None:
    convert(class_tree, tmp_path / "out", shard_bytes="16kb", block_samples=7)
    before, first = contents(tmp_path / "out"), stored(tmp_path / "out")
    report = append(more, tmp_path / "out", shard_bytes="8kb")
    after = contents(tmp_path / "out")
    assert {name: after[name] for name in before if name != "latest.json"} == {
        name: data for name, data in before.items() if name != "latest.json"
    }
    assert (report.samples, report.total_samples, report.revision) == (20, 80, 2)
    manifest = describe(tmp_path / "out").manifest
    assert (manifest.rev, manifest.parent_rev, manifest.block_samples) == (2, 1, 7)
    assert report.classes == ("ant", "bee", "cat", "aardvark")
    now = stored(tmp_path / "out")
    assert now[:60] == first
    assert all(str(key).split("/")[0] == name for key, name in now)
    checked = verify(tmp_path / "out", decode=True, sha256=True)
    assert checked.ok, checked.faults
    assert checked.samples == 80


def test_again_and_again(class_tree: Path, more: Path, tmp_path: Path) -> None:
    convert(class_tree, tmp_path / "out")
    for revision in (2, 3):
        assert append(more, tmp_path / "out").revision == revision
    assert verify(tmp_path / "out", sha256=True).samples == 100
    assert append(more, tmp_path / "out", resume=True).revision == 3


def test_into_a_split(class_tree: Path, more: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "train").mkdir(parents=True)
    (root / "val").mkdir()
    (class_tree / "ant").rename(root / "train" / "ant")
    (class_tree / "cat").rename(root / "val" / "cat")
    convert(root, tmp_path / "out", shard_bytes="8kb", block_samples=7)
    first = {split: stored(tmp_path / "out", split=split) for split in ("train", "val")}
    with pytest.raises(ConfigError, match="splits"):
        append(more, tmp_path / "out")
    report = append(more, tmp_path / "out", into="train")
    assert report.splits == {"train": 40, "val": 20}
    assert stored(tmp_path / "out", split="train")[:20] == first["train"]
    assert stored(tmp_path / "out", split="val") == first["val"]
    assert verify(tmp_path / "out", decode=True, sha256=True).samples == 60
    report = append(more, tmp_path / "out", into="test")
    assert report.splits == {"train": 40, "val": 20, "test": 20}
    assert verify(tmp_path / "out", sha256=True).samples == 80


def test_what_does_not_fit_is_refused_and_changes_nothing(
    class_tree: Path, more: Path, tmp_path: Path, contents: Contents
) -> None:
    with pytest.raises(ConfigError, match="no data set"):
        append(more, tmp_path / "nothing")
    convert(class_tree, tmp_path / "out")
    before = contents(tmp_path / "out")
    with pytest.raises(ConfigError, match="class names"):
        append(more / "cat", tmp_path / "out")
    with DatasetWriter(tmp_path / "text", {"text": "str"}, classes=["a"]) as writer:
        writer.write({"text": "x"})
    with pytest.raises(ConfigError, match="no default"):
        append(tmp_path / "text", tmp_path / "out")
    assert contents(tmp_path / "out") == before


def test_a_killed_addition_goes_on(
    class_tree: Path, more: Path, tmp_path: Path, contents: Contents
) -> None:
    for name in ("whole", "out"):
        convert(class_tree, tmp_path / name)
    append(more, tmp_path / "whole", shard_bytes="4kb")
    number = 0
    while True:
        number += 1
        script = (
            "import os, signal\n"
            "from storage_backends.local import LocalStore\n"
            "from streamloader.convert import append\n"
            "calls = []\n"
            "def wrapped(real):\n"
            "    async def call(self, *args):\n"
            "        result = await real(self, *args)\n"
            "        calls.append(1)\n"
            f"        if len(calls) == {3 * number}:\n"
            "            os.kill(os.getpid(), signal.SIGKILL)\n"
            "        return result\n"
            "    return call\n"
            "for name in ('put', 'put_if_absent', 'delete'):\n"
            "    setattr(LocalStore, name, wrapped(getattr(LocalStore, name)))\n"
            f"append({str(more)!r}, {str(tmp_path / 'out')!r}, shard_bytes='4kb', resume=True)\n"
        )
        done = subprocess.run([sys.executable, "-c", script], timeout=100, check=False)
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL
    assert number > 2
    after = contents(tmp_path / "out")
    whole = contents(tmp_path / "whole")
    assert {n: d for n, d in after.items() if not n.startswith(".unfinished-")} == whole


def test_another_revision_in_the_meantime_is_not_lost(
    class_tree: Path, more: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib

    module = importlib.import_module("streamloader.convert.append")
    convert(class_tree, tmp_path / "out")
    real = module.confirm_all

    async def after_another(store: LocalStore, shards: Any) -> None:
        monkeypatch.setattr(module, "confirm_all", real)
        await real(store, shards)
        await store.put("manifest-000002.json", b"another")

    monkeypatch.setattr(module, "confirm_all", after_another)
    with pytest.raises(ConfigError, match="another writer published"):
        append(more, tmp_path / "out")
    assert (tmp_path / "out" / "manifest-000002.json").read_bytes() == b"another"
    assert describe(tmp_path / "out").manifest.rev == 1


@pytest.mark.s3
def test_in_a_bucket_as_on_disk(
    class_tree: Path, more: Path, tmp_path: Path, s3_bucket: Any
) -> None:
    url, storage = f"{s3_bucket.url}/set", {"storage_options": s3_bucket.storage_options}
    convert(class_tree, url, **storage)
    convert(class_tree, tmp_path / "out")
    remote = append(more, url, source_options={}, **storage)
    assert remote.fingerprint == append(more, tmp_path / "out").fingerprint
    assert verify(url, sha256=True, **storage).ok


def test_the_difference_is_told_by_key(
    class_tree: Path, more: Path, tmp_path: Path, jpeg: Jpeg
) -> None:
    convert(class_tree, tmp_path / "a", shard_bytes="8kb")
    convert(class_tree, tmp_path / "b", shard_bytes="16kb", shuffle_seed=3)
    same = compare(tmp_path / "a", tmp_path / "b")
    assert same.same
    assert same.moved > 50
    os.rename(class_tree / "ant" / "00.jpg", class_tree / "ant" / "new.jpg")
    (class_tree / "bee" / "00.jpg").write_bytes(jpeg(77))
    convert(class_tree, tmp_path / "c")
    found = compare(tmp_path / "a", tmp_path / "c")
    assert not found.same
    assert (found.added, found.removed) == (("ant/new.jpg",), ("ant/00.jpg",))
    assert found.changed == ("bee/00.jpg",)
    append(more, tmp_path / "c")
    found = compare(tmp_path / "a", tmp_path / "c")
    assert len(found.added) == 21
    assert found.classes == ("only B has the class aardvark",)


def test_samples_without_keys_and_other_fields_are_compared(tmp_path: Path) -> None:
    for name, texts, extra in (("a", "xyz", {}), ("b", "xyw", {"n": "int64"})):
        with DatasetWriter(tmp_path / name, {"text": "str", **extra}) as writer:
            for text in texts:
                writer.write({"text": text, **dict.fromkeys(extra, 1)})
    found = compare(tmp_path / "a", tmp_path / "b")
    assert found.schema == ("only B has the field n",)
    assert found.changed == ("#2",)

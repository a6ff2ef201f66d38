"""Folders become data sets: the same bytes every time, published whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage_backends import AccessDenied, NotFound, Unavailable
from storage_backends.local_new_file import NewFile
from streamloader.convert import (
    Progress,
    RejectedError,
    RejectKind,
    convert,
    describe,
    read_samples,
    verify,
)
from streamloader.convert.pipeline import SHARDS_IN_FLIGHT
from streamloader.convert.sources import packed_files
from streamloader.dts.record_bytes import HASHES_NATIVELY
from streamloader.errors import ConfigError

HOSTILE = Path(__file__).parents[1] / "hostile"
TREES = json.loads((HOSTILE / "expected_trees.json").read_text(encoding="utf-8"))
IMAGES = json.loads((HOSTILE / "expected.json").read_text(encoding="utf-8"))
MakeTree = Callable[[str], Path]
Contents = Callable[[Path], dict[str, bytes]]


@pytest.mark.parametrize("name", [n for n, e in TREES.items() if e["outcome"] != "error"])
def test_a_hostile_tree_gives_what_is_expected_of_it(
    hostile_tree: MakeTree, tmp_path: Path, name: str
) -> None:
    expected = TREES[name]
    report = convert(hostile_tree(name), tmp_path / "out", shard_bytes="4kb")
    assert report.samples == expected["n_samples"]
    assert list(report.classes) == expected["classes"]
    if "n_rejects" in expected:
        assert len(report.rejected) == expected["n_rejects"]
    if expected["outcome"] == "warn":
        assert report.warnings
    checked = verify(tmp_path / "out", decode=True, sha256=True)
    assert checked.ok
    assert checked.samples == expected["n_samples"]
    if "samples" in expected:
        stored = read_samples(tmp_path / "out", range(report.samples))
        assert sorted(sample.key or "" for sample in stored) == expected["samples"]


def test_an_empty_source_leaves_no_folder_behind(hostile_tree: MakeTree, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no pictures"):
        convert(hostile_tree("empty_root"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_every_hostile_picture_is_stored_or_listed_with_its_reason(tmp_path: Path) -> None:
    report = convert(HOSTILE / "images", tmp_path / "out")
    stored = read_samples(tmp_path / "out", range(report.samples))
    stored_keys = {sample.key for sample in stored}
    rejected = {reject.path: reject.reason for reject in report.rejected}
    assert stored_keys | set(rejected) == set(IMAGES)
    for key, expected in IMAGES.items():
        outcomes = {expected["outcome"], expected["alt"]}
        assert ("decode" if key in stored_keys else "reject") in outcomes, (key, rejected.get(key))
    assert all(rejected.values())
    assert "HEIC" in rejected["names/iphone.jpg"]
    assert "HTML" in rejected["names/error_page.jpg"]
    assert "65500x65500" in rejected["size/claims_65500x65500.jpg"]
    assert rejected["names/._photo.jpg"] == "hidden file"
    for sample in stored:
        assert sample.record["image"] == (HOSTILE / "images" / str(sample.key)).read_bytes()
    assert verify(tmp_path / "out", decode=True).ok
    lines = (tmp_path / "out" / "rejects.jsonl").read_text().splitlines()
    assert {json.loads(line)["path"]: json.loads(line)["reason"] for line in lines} == rejected


@pytest.mark.parametrize("shuffle_seed", [0, None])
def test_the_same_bytes_for_any_number_of_jobs(
    class_tree: Path, tmp_path: Path, contents: Contents, shuffle_seed: int | None
) -> None:
    (class_tree / "bee" / "07.jpg").write_bytes(b"not a picture")
    made = []
    for name, jobs in (("a", 1), ("b", 1), ("c", 2), ("d", 4)):
        convert(
            class_tree, tmp_path / name, jobs=jobs, shard_bytes="8kb", shuffle_seed=shuffle_seed
        )
        made.append(contents(tmp_path / name))
    assert len(made[0]) > 5
    assert made[0] == made[1] == made[2] == made[3]


def test_the_stored_order_is_shuffled_by_the_seed_and_recorded(
    class_tree: Path, tmp_path: Path
) -> None:
    orders = {}
    for seed in (0, 1, None):
        dest = tmp_path / f"seed-{seed}"
        convert(class_tree, dest, shuffle_seed=seed)
        orders[seed] = [sample.key for sample in read_samples(dest, range(60))]
        assert describe(dest).manifest.export_seed == seed
    assert orders[None] == sorted(str(key) for key in orders[None])
    assert sorted(map(str, orders[0])) == orders[None]
    assert orders[0] != orders[1]
    first_classes = {str(key).split("/")[0] for key in orders[0][:12]}
    assert first_classes == {"ant", "bee", "cat"}


def test_a_reject_moves_no_other_sample_to_another_shard(class_tree: Path, tmp_path: Path) -> None:
    convert(class_tree, tmp_path / "before", shard_bytes="8kb")
    before = {s.key: s.shard for s in read_samples(tmp_path / "before", range(60))}
    victim = class_tree / "bee" / "07.jpg"
    victim.write_bytes(bytes(victim.stat().st_size))
    convert(class_tree, tmp_path / "after", shard_bytes="8kb")
    after = {s.key: s.shard for s in read_samples(tmp_path / "after", range(59))}
    assert before.pop("bee/07.jpg")
    assert after == before


def test_labels_keys_and_bytes_are_those_of_the_files(class_tree: Path, tmp_path: Path) -> None:
    report = convert(class_tree, tmp_path / "out")
    assert report.bytes_in == sum(p.stat().st_size for p in class_tree.rglob("*.jpg"))
    for sample in read_samples(tmp_path / "out", range(60)):
        folder, _ = str(sample.key).split("/")
        assert sample.class_name == folder
        assert sample.record["image"] == (class_tree / str(sample.key)).read_bytes()


def test_a_flat_folder_has_no_label_field(class_tree: Path, tmp_path: Path) -> None:
    report = convert(class_tree / "ant", tmp_path / "out")
    assert report.samples == 20
    assert report.classes == ()
    assert [field.name for field in describe(tmp_path / "out").schema.fields] == ["image"]


def test_train_and_val_become_splits_with_one_class_list(class_tree: Path, tmp_path: Path) -> None:
    root = tmp_path / "splits"
    shutil.copytree(class_tree, root / "train")
    shutil.copytree(class_tree / "cat", root / "val" / "cat")
    report = convert(root, tmp_path / "out", shard_bytes="8kb", block_samples=7)
    assert report.splits == {"train": 60, "val": 20}
    assert report.classes == ("ant", "bee", "cat")
    assert verify(tmp_path / "out", decode=True, sha256=True).samples == 80
    val = read_samples(tmp_path / "out", range(20), split="val")
    assert {(s.class_name, s.shard[:4]) for s in val} == {("cat", "val-")}
    with pytest.raises(ConfigError, match="val"):
        read_samples(tmp_path / "out", [0])


def test_names_that_are_not_utf8_come_back_as_they_are(tmp_path: Path, jpeg: Any) -> None:
    folder = os.fsencode(tmp_path) + b"/src/c\xe9"
    os.makedirs(folder)
    for name in (b"\xff.jpg", "é.jpg".encode()):
        with open(folder + b"/" + name, "wb") as file:
            file.write(jpeg(1))
    with open(folder + b"/bad\xfe.jpg", "wb") as file:
        file.write(b"nothing")
    report = convert(tmp_path / "src", tmp_path / "out")
    keys = [os.fsencode(str(s.key)) for s in read_samples(tmp_path / "out", range(2))]
    assert sorted(keys) == [b"c\xe9/\xc3\xa9.jpg", b"c\xe9/\xff.jpg"]
    assert report.classes == ("c\\xe9",)
    assert report.to_json()["rejected"][0]["path"] == "c\\xe9/bad\\xfe.jpg"
    json.dumps(report.to_json()).encode("ascii")


def test_a_second_conversion_into_the_same_place_is_refused(
    class_tree: Path, tmp_path: Path, contents: Contents
) -> None:
    convert(class_tree, tmp_path / "out")
    before = contents(tmp_path / "out")
    with pytest.raises(ConfigError, match="already holds a data set"):
        convert(class_tree, tmp_path / "out", shuffle_seed=1)
    assert contents(tmp_path / "out") == before


def test_leftovers_of_a_broken_run_are_replaced(
    class_tree: Path, tmp_path: Path, contents: Contents
) -> None:
    convert(class_tree, tmp_path / "whole", shard_bytes="8kb")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "00000.dts").write_bytes(b"half a shard")
    convert(class_tree, tmp_path / "out", shard_bytes="8kb")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_more_rejects_than_allowed_stop_and_publish_nothing(
    class_tree: Path, tmp_path: Path
) -> None:
    for number in range(5):
        (class_tree / "ant" / f"{number:02d}.jpg").write_bytes(b"<html>")
    with pytest.raises(RejectedError, match="more than 4 bad files"):
        convert(class_tree, tmp_path / "out", max_rejects=4)
    assert not list((tmp_path / "out").glob("*.json"))
    assert convert(class_tree, tmp_path / "five", max_rejects=5).samples == 55


def test_hidden_and_other_files_do_not_count_as_bad(class_tree: Path, tmp_path: Path) -> None:
    (class_tree / "ant" / ".DS_Store").write_bytes(b"x")
    (class_tree / "ant" / "readme.txt").write_bytes(b"x")
    report = convert(class_tree, tmp_path / "out", max_rejects=0)
    assert [reject.kind for reject in report.rejected] == [RejectKind.OTHER, RejectKind.HIDDEN]


def test_a_source_without_one_sound_picture_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "src" / "c").mkdir(parents=True)
    for number in range(3):
        (tmp_path / "src" / "c" / f"{number}.jpg").write_bytes(b"<html></html>")
    with pytest.raises(RejectedError, match="none of the samples is sound") as caught:
        convert(tmp_path / "src", tmp_path / "out")
    assert len(caught.value.rejected) == 3
    assert not (tmp_path / "out").exists()


def test_a_file_that_changes_after_the_listing_is_rejected(
    class_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streamloader.convert import conversion

    real_plan = conversion.plan_shards

    def plan_then_change(*args: Any) -> Any:
        plans = real_plan(*args)
        with (class_tree / "ant" / "00.jpg").open("ab") as file:
            file.write(b"more")
        (class_tree / "ant" / "01.jpg").unlink()
        (class_tree / "ant" / "02.jpg").unlink()
        os.mkfifo(class_tree / "ant" / "02.jpg")
        return plans

    monkeypatch.setattr(conversion, "plan_shards", plan_then_change)
    report = convert(class_tree, tmp_path / "out")
    reasons = {reject.path: reject.reason for reject in report.rejected}
    assert report.samples == 57
    assert "listed with" in reasons["ant/00.jpg"]
    assert "No such file" in reasons["ant/01.jpg"]
    assert "no regular file" in reasons["ant/02.jpg"]


@pytest.mark.parametrize("failing", ["check_picture", "prepare_picture"])
def test_a_failure_in_a_worker_is_the_failure_of_the_conversion(
    class_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    from streamloader.convert import runs

    def fail(*args: Any, **options: Any) -> bytes:
        raise MemoryError("worker")

    if failing == "prepare_picture":
        (class_tree / "ant" / "odd.jpg").write_bytes(b"read one by one, as all beside it")
    elif packed_files.lib is None or not HASHES_NATIVELY:
        pytest.skip("with nothing native every sample is read one by one")
    monkeypatch.setattr(runs, failing, fail)
    before = threading.active_count()
    with pytest.raises(MemoryError, match="worker"):
        convert(class_tree, tmp_path / "out", jobs=4)
    assert not list(tmp_path.glob("out/*"))
    assert threading.active_count() == before


def test_without_the_decode_check_headers_are_still_checked(
    class_tree: Path, tmp_path: Path
) -> None:
    whole = (class_tree / "ant" / "00.jpg").read_bytes()
    (class_tree / "ant" / "00.jpg").write_bytes(whole[: len(whole) // 2 + 200])
    (class_tree / "ant" / "01.jpg").write_bytes(b"<html></html>")
    report = convert(class_tree, tmp_path / "out", decode_check=False)
    assert [reject.path for reject in report.rejected] == ["ant/01.jpg"]
    assert not verify(tmp_path / "out", decode=True).ok
    assert verify(tmp_path / "out").ok


def test_a_destination_inside_the_source_is_refused(class_tree: Path) -> None:
    with pytest.raises(ConfigError, match="inside the source"):
        convert(class_tree, class_tree / "out")


@pytest.mark.parametrize(
    "options",
    [
        {"shard_bytes": "0"},
        {"shard_bytes": "lots"},
        {"block_samples": 0},
        {"block_samples": "some"},
        {"jobs": 0},
        {"max_rejects": -1},
        {"shuffle_seed": -1},
    ],
)
def test_options_that_cannot_work_are_refused_by_name(
    class_tree: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        convert(class_tree, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_progress_ends_with_all_samples(class_tree: Path, tmp_path: Path) -> None:
    seen: list[Progress] = []
    convert(class_tree, tmp_path / "out", progress=seen.append)
    assert seen[-1].samples == seen[-1].total_samples == 60
    assert seen[-1].bytes_in == seen[-1].total_bytes


def test_auto_blocks_are_about_a_mebibyte(class_tree: Path, tmp_path: Path) -> None:
    report = convert(class_tree, tmp_path / "out")
    mean = report.bytes_in / report.samples
    assert report.block_samples == round((1 << 20) / mean)


def test_the_pointer_names_the_manifest_by_its_digest(class_tree: Path, tmp_path: Path) -> None:
    report = convert(class_tree, tmp_path / "out")
    pointer = json.loads((tmp_path / "out" / "latest.json").read_bytes())
    manifest = (tmp_path / "out" / pointer["manifest"]).read_bytes()
    assert hashlib.sha256(manifest).hexdigest() == pointer["sha256"] == report.fingerprint


async def test_convert_works_inside_a_running_event_loop(class_tree: Path, tmp_path: Path) -> None:
    assert convert(class_tree, tmp_path / "out").samples == 60


@pytest.mark.s3
def test_a_bucket_gets_the_bytes_that_a_folder_gets(
    class_tree: Path, tmp_path: Path, contents: Contents, s3_bucket: Any
) -> None:
    url = f"{s3_bucket.url}/sets/pets"
    report = convert(class_tree, url, shard_bytes="8kb", storage_options=s3_bucket.storage_options)
    local = convert(class_tree, tmp_path / "out", shard_bytes="8kb")
    assert report.fingerprint == local.fingerprint
    checked = verify(url, decode=True, sha256=True, storage_options=s3_bucket.storage_options)
    assert checked.ok
    assert checked.samples == 60
    with pytest.raises(ConfigError, match="already holds"):
        convert(class_tree, url, storage_options=s3_bucket.storage_options)


@pytest.mark.s3
def test_a_missing_bucket_is_not_made(class_tree: Path, s3_bucket: Any) -> None:
    missing = f"{s3_bucket.url}-missing/set"
    for _ in range(2):
        with pytest.raises(NotFound, match="missing"):
            convert(class_tree, missing, storage_options=s3_bucket.storage_options)


@pytest.mark.s3
def test_keys_that_may_only_read_write_nothing(
    class_tree: Path, s3_bucket: Any, s3_server: Any
) -> None:
    options = s3_server.readonly_storage_options
    with pytest.raises(AccessDenied):
        convert(class_tree, f"{s3_bucket.url}/set", storage_options=options)
    with pytest.raises(ConfigError, match="no data set"):
        describe(f"{s3_bucket.url}/set", storage_options=s3_bucket.storage_options)


@pytest.mark.s3
def test_a_dead_endpoint_is_one_error(class_tree: Path, s3_bucket: Any) -> None:
    options = {
        **s3_bucket.storage_options,
        "endpoint_url": "http://127.0.0.1:9",
        "download_retry": 1,
    }
    with pytest.raises(Unavailable):
        convert(class_tree, f"{s3_bucket.url}/set", storage_options=options)


def test_shards_are_made_while_others_wait_for_the_disk(
    class_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: set[str] = set()
    enough = threading.Event()
    create, seal = NewFile.create, NewFile._seal

    def note(self: NewFile) -> None:
        if self.path.endswith(".dts"):
            begun.add(self.path)
            if len(begun) > 2 * SHARDS_IN_FLIGHT:
                enough.set()
        create(self)

    def wait(self: NewFile) -> None:
        if self.path.endswith(".dts"):
            assert enough.wait(60), f"only {len(begun)} shards were begun"
        seal(self)

    monkeypatch.setattr(NewFile, "create", note)
    monkeypatch.setattr(NewFile, "_seal", wait)
    report = convert(class_tree, tmp_path / "out", shard_bytes="4kb", jobs=2)
    assert report.shards > 2 * SHARDS_IN_FLIGHT
    assert verify(tmp_path / "out", sha256=True).ok

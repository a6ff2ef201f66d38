from __future__ import annotations

import contextlib
import hashlib
import json
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamloader.dts import (
    Manifest,
    Pointer,
    Schema,
    ShardEntry,
    SidecarEntry,
    SplitEntry,
    canonical_json,
    manifest_name,
    shard_uuid,
    sidecar_name,
)
from streamloader.errors import ConfigError, ShardError

ENTRY = ShardEntry("00000.dts", 6400, 10, 640, b"u" * 16, 123, "ab" * 32)


def _manifest(num_shards=3, **changes):
    values = {
        "dataset_uuid": b"d" * 16,
        "rev": 1,
        "schemas": (Schema.of({"image": "picture", "label": int}),),
        "shards": [replace(ENTRY, name=f"{i:05d}.dts") for i in range(num_shards)],
        "block_samples": 4,
        "max_block_bytes": 5000,
        "max_record_bytes": 700,
        "sidecar": SidecarEntry(sidecar_name(1), "cd" * 32),
        "classes": ("cat", "dog"),
        "export_seed": 0,
        "created_by": "streamloader 0.1.0",
    }
    return Manifest(**(values | changes))


def _edited(**changes):
    value = json.loads(_manifest().to_bytes())
    value.update(changes)
    return json.dumps(value).encode()


def _with_shard(**changes):
    value = json.loads(_manifest().to_bytes())
    value["shards"][1].update(changes)
    return json.dumps(value).encode()


def test_a_manifest_comes_back_with_the_digest_of_its_bytes():
    manifest = _manifest(
        splits={"val": SplitEntry(2, 1), "train": SplitEntry(0, 2)},
        shards=[
            replace(ENTRY, name=f"t/{i}.dts", store_checksum="crc64nvme:abc") for i in range(3)
        ],
    )
    data = manifest.to_bytes()
    parsed = Manifest.parse(data, "manifest-000001.json")
    assert parsed == manifest
    assert parsed.to_bytes() == data
    assert parsed.fingerprint == manifest.fingerprint == hashlib.sha256(data).hexdigest()
    assert parsed.num_samples == 30
    assert parsed.entry(2) == manifest.shards[2] == parsed.shards[-1]
    assert parsed.shard_samples.tolist() == [10, 10, 10]
    assert parsed.shard_bytes.dtype == parsed.tail_bytes.dtype == np.int64
    assert parsed.splits["val"] == SplitEntry(2, 1)
    assert parsed.num_blocks == 5 + 3


def test_manifests_are_canonical_json():
    data = _manifest(classes=("Éclair", "猫", "caf\udce9")).to_bytes()
    assert b" " not in data.replace(b"streamloader 0.1.0", b"")
    assert "Éclair".encode() in data
    assert rb"caf\udce9" in data
    assert Manifest.parse(data, "m").classes == ("Éclair", "猫", "caf\udce9")
    assert list(json.loads(data)) == sorted(json.loads(data))


@pytest.mark.parametrize(
    "name",
    [
        "../00000.dts",
        "a/../../b.dts",
        "/etc/passwd",
        "s3://other/x.dts",
        "file:x",
        "C:x.dts",
        "a\\b.dts",
        "",
        ".",
        "a//b",
        "a/",
        "a\x00b",
        "a\nb",
        "x" * 1025,
        "\ud800",
        5,
        None,
        ["a"],
        "00000.dts",
    ],
)
def test_shard_names_that_leave_the_data_set_or_repeat_are_refused(name):
    with pytest.raises(ShardError, match="shard 1 has the name"):
        Manifest.parse(_with_shard(name=name), "m")


@pytest.mark.parametrize("name", ["a b.dts", "猫/1.dts", "a/.hidden", "x+y%20.dts", "..a", "a..b"])
def test_shard_names_may_be_any_relative_text(name):
    assert Manifest.parse(_with_shard(name=name), "m").entry(1).name == name


@pytest.mark.parametrize(
    "change",
    [
        {"bytes": 2**44 + 1},
        {"bytes": -1},
        {"bytes": 1.0},
        {"bytes": True},
        {"bytes": 10**400},
        {"bytes": "6400"},
        {"bytes": 6401},
        {"samples": 2**32},
        {"samples": -1},
        {"tail_bytes": 2**30 + 1},
        {"tail_bytes": 6400},
        {"tail_crc32": 2**32},
        {"schema_id": 1},
        {"schema_id": 256},
        {"uuid": "75" * 15},
        {"uuid": "7 " * 16},
        {"uuid": "AB" * 16},
        {"uuid": None},
        {"sha256": "ab" * 31 + " a"},
        {"store_checksum": ""},
        {"store_checksum": 5},
        {"extra": 1},
    ],
)
def test_shard_entries_that_no_shard_can_have_are_refused(change):
    with pytest.raises(ShardError):
        Manifest.parse(_with_shard(**change), "m")


@pytest.mark.parametrize(
    "change",
    [
        {"format": "mds"},
        {"version": 2},
        {"rev": 0},
        {"rev": 10**6},
        {"rev": True},
        {"parent_rev": 1},
        {"num_samples": 31},
        {"num_samples": 10**100},
        {"hash": "md5"},
        {"schemas": []},
        {"schemas": [{}]},
        {"shards": {}},
        {"shards": [5]},
        {"shards": [{}]},
        {"block_samples": 0},
        {"max_block_bytes": -1},
        {"max_record_bytes": 2**33},
        {"sample_align": 3},
        {"sidecar": None},
        {"sidecar": {"name": "../x", "sha256": "cd" * 32}},
        {"sidecar": {"name": "x", "sha256": "cd"}},
        {"classes": [1]},
        {"classes": ["a", "a"]},
        {"classes": None},
        {"export_seed": -1},
        {"export_seed": 2**64},
        {"created_by": 1},
        {"dataset_uuid": "d"},
        {"splits": []},
        {"splits": {"train": {"first_shard": 0, "num_shards": 2}}},
        {
            "splits": {
                "a": {"first_shard": 0, "num_shards": 2},
                "b": {"first_shard": 1, "num_shards": 2},
            }
        },
        {"splits": {"a": {"first_shard": 0, "num_shards": 4}}},
        {"splits": {"a": {"first_shard": 0, "num_shards": 0}}},
        {"splits": {"a/b": {"first_shard": 0, "num_shards": 3}}},
        {"unknown": 1},
    ],
)
def test_manifests_that_break_a_rule_are_refused(change):
    with pytest.raises(ShardError, match=r"^m: "):
        Manifest.parse(_edited(**change), "m")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"nul",
        b"\xff",
        "{}".encode("utf-16"),
        b"\xef\xbb\xbf{}",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"rev":1,"rev":2}',
        b'{"rev":NaN}',
        b'{"rev":-Infinity}',
        b'{"rev":1e999}',
        b'{"rev":' + b"9" * 10_000 + b"}",
        b'{"a":"' + b"\\ud800" * 3 + b'"}',
    ],
)
def test_bytes_that_are_no_manifest_raise_only_the_formats_error(data):
    with pytest.raises(ShardError):
        Manifest.parse(data, "m")


@settings(max_examples=120, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3000), st.binary(max_size=3)), min_size=1, max_size=3))
def test_damaged_manifests_raise_only_the_formats_error(edits):
    data = bytearray(_manifest().to_bytes())
    for at, piece in edits:
        at %= len(data)
        data[at : at + len(piece)] = piece
    with contextlib.suppress(ShardError):
        assert Manifest.parse(data, "m").num_samples == 30


def test_another_manifest_than_the_pinned_one_is_refused():
    data = _manifest().to_bytes()
    assert Manifest.parse(data, "m", expected_sha256=hashlib.sha256(data).hexdigest())
    with pytest.raises(ShardError, match="expected"):
        Manifest.parse(data, "m", expected_sha256="00" * 32)


@pytest.mark.parametrize(
    "change",
    [
        {"dataset_uuid": b"short"},
        {"block_samples": 0},
        {"splits": {"train": SplitEntry(0, 2)}},
        {"schemas": ()},
        {"sidecar": SidecarEntry("x", "zz")},
        {"shards": [ENTRY, ENTRY]},
        {"shards": [replace(ENTRY, sha256="x")]},
    ],
)
def test_making_an_impossible_manifest_is_a_config_error(change):
    with pytest.raises(ConfigError):
        _manifest(**change)


@pytest.mark.parametrize("num_shards", [10_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_many_shards_are_held_as_columns(num_shards):
    manifest = _manifest(num_shards)
    data = manifest.to_bytes()
    started = time.process_time()
    parsed = Manifest.parse(data, "m")
    # Three times what it takes alone on one core, so that only a change of order is caught.
    assert time.process_time() - started < 45e-6 * num_shards
    assert parsed.num_samples == 10 * num_shards
    assert parsed.entry(num_shards - 1).name == f"{num_shards - 1:05d}.dts"


def test_pointer_comes_back_and_must_name_its_own_revision():
    pointer = Pointer(3, manifest_name(3), "ab" * 32)
    assert pointer.to_bytes() == (
        b'{"manifest":"manifest-000003.json","rev":3,"sha256":"' + b"ab" * 32 + b'"}'
    )
    assert Pointer.parse(pointer.to_bytes()) == pointer
    for bad in (
        replace(pointer, manifest="manifest-000002.json"),
        replace(pointer, manifest="../manifest-000003.json"),
        replace(pointer, sha256="x"),
        replace(pointer, rev=0),
    ):
        with pytest.raises(ShardError):
            Pointer.parse(bad.to_bytes())
    for data in (b"", b"{}", b"[]", b" " * 5000, pointer.to_bytes()[:-1] + b',"x":1}'):
        with pytest.raises(ShardError):
            Pointer.parse(data)


def test_names_of_revisions():
    assert (manifest_name(1), sidecar_name(42)) == ("manifest-000001.json", "offsets-000042.bin")
    for rev in (0, 10**6, -1, True, "1"):
        with pytest.raises(ConfigError):
            manifest_name(rev)


def test_shard_uuid_depends_on_options_keys_sizes_and_order_alone():
    base = shard_uuid(b"options", [("a", 1), ("b", 2)])
    assert base == shard_uuid(b"options", iter([(b"a", 1), ("b", 2)]))
    assert len(base) == 16
    others = [
        shard_uuid(b"option", [("a", 1), ("b", 2)]),
        shard_uuid(b"options", [("b", 2), ("a", 1)]),
        shard_uuid(b"options", [("a", 2), ("b", 1)]),
        shard_uuid(b"options", [("a", 1)]),
        shard_uuid(b"options", [("a1b", 2)]),
        shard_uuid(b"optionsa", [("", 1), ("b", 2)]),
    ]
    assert len({base, *others}) == 7
    assert shard_uuid(b"", [("caf\udce9", 1)]) == shard_uuid(b"", [(b"caf\xe9", 1)])


def test_canonical_json_sorts_and_refuses_what_json_lacks():
    assert canonical_json({"b": [1, 2.5, None], "a": "é"}) == '{"a":"é","b":[1,2.5,null]}'.encode()
    for value in (float("nan"), float("inf"), object(), {1: 2, "a": 3}):
        with pytest.raises(ConfigError):
            canonical_json(value)

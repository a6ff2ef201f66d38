"""What older and newer readers and writers owe each other."""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest

from streamloader.dts import (
    NO_DEFAULT,
    Field,
    Manifest,
    Schema,
    ShardEntry,
    ShardIndex,
    SidecarEntry,
    default_value,
)
from streamloader.dts.layout import Head, Trailer
from streamloader.dts.tail import SectionContent
from streamloader.errors import ConfigError, ShardError


def _with_minor(workshop, shard, minor):
    trailer = Trailer.parse(shard, "x.dts", len(shard))
    head = Head(workshop.uuid, 64, minor=minor).pack()
    return head + shard[64:-64] + replace(trailer, minor=minor).pack()


def _reseal_head(shard, offset, value, code="<H"):
    head = bytearray(shard[:64])
    struct.pack_into(code, head, offset, value)
    struct.pack_into("<I", head, 60, zlib.crc32(head[:60]))
    return bytes(head) + shard[64:]


def _reseal_trailer(shard, offset, value):
    trailer = bytearray(shard[-64:])
    struct.pack_into("<H", trailer, offset, value)
    struct.pack_into("<I", trailer, 52, zlib.crc32(trailer[:52]))
    return shard[:-64] + bytes(trailer)


@pytest.mark.parametrize("minor", [1, 7, 2**16 - 1])
def test_a_higher_minor_version_is_read(workshop, small_shard, minor):
    assert workshop.check_all(_with_minor(workshop, small_shard, minor)).num_samples == 3


@pytest.mark.parametrize("kind", [10, 0x7FFF, 0x8000, 0xFFFF])
@pytest.mark.parametrize("minor", [0, 1])
def test_unknown_sections_are_skipped_unless_they_must_be_understood(
    workshop, small_shard, kind, minor
):
    contents = workshop.sections(small_shard)
    places = (0, 3, len(contents))
    for place in places:
        optional = SectionContent(kind, 3, b"anything at all")
        shard = workshop.with_sections(
            small_shard, [*contents[:place], optional, *contents[place:]]
        )
        assert workshop.check_all(_with_minor(workshop, shard, minor)).num_samples == 3
        needed = replace(optional, flags=1)
        shard = workshop.with_sections(small_shard, [*contents[:place], needed, *contents[place:]])
        with pytest.raises(ShardError, match="does not know; update streamloader"):
            workshop.check_all(_with_minor(workshop, shard, minor))


def test_a_section_that_must_be_understood_is_refused_by_readers_of_the_tail_alone(
    workshop, small_shard
):
    contents = workshop.sections(small_shard)
    shard = workshop.with_sections(small_shard, [SectionContent(10, 0, b"", flags=1), *contents])
    with pytest.raises(ShardError, match=r"needs section 0xa\(0\)"):
        ShardIndex.parse(shard, name="x.dts", file_bytes=len(shard))


def test_known_sections_may_say_that_they_must_be_understood(workshop, small_shard):
    contents = [replace(content, flags=1) for content in workshop.sections(small_shard)]
    assert workshop.check_all(workshop.with_sections(small_shard, contents)).num_samples == 3


@pytest.mark.parametrize("bit", [0, 31])
def test_features_that_this_version_lacks_are_refused_by_their_bits(workshop, small_shard, bit):
    damaged = _reseal_head(small_shard, 36, 1 << bit, "<I")
    with pytest.raises(ShardError, match=f"needs features {1 << bit:#x}"):
        workshop.check_all(damaged)


@pytest.mark.parametrize("major", [0, 2, 2**16 - 1])
def test_other_major_versions_are_refused_by_head_and_by_trailer(workshop, small_shard, major):
    for damaged in (
        _reseal_head(small_shard, 8, major),
        _reseal_trailer(small_shard, 48, major),
    ):
        with pytest.raises(ShardError, match=f"format version {major}, this build reads 1"):
            workshop.check_all(damaged)


def test_head_and_trailer_of_different_versions_are_refused(workshop, small_shard):
    with pytest.raises(ShardError, match="different versions"):
        workshop.check_all(_reseal_trailer(small_shard, 50, 1))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"type": "f16"}, "type 'f16'"),
        ({"codec": "brotli"}, "codec 'brotli'"),
        ({"units": "px"}, "unknown key 'units'; a newer version may have written it"),
    ],
)
def test_what_a_newer_schema_adds_is_refused_by_name(change, words):
    field = {"name": "a", "type": "u1", "shape": [], "codec": "none", **change}
    with pytest.raises(ShardError, match=words):
        Schema.from_object({"fields": [field], "hash": "xxh3-64"}, "x.dts")


ENTRY = ShardEntry("0.dts", 6400, 10, 640, b"u" * 16, 123, "ab" * 32)


def _manifest(*schemas, **changes):
    values = {
        "dataset_uuid": b"d" * 16,
        "rev": 1,
        "schemas": schemas,
        "shards": [replace(ENTRY, name=f"{i}.dts", schema_id=i) for i in range(len(schemas))],
        "block_samples": 4,
        "max_block_bytes": 5000,
        "max_record_bytes": 700,
        "sidecar": SidecarEntry("offsets-000001.bin", "cd" * 32),
    }
    return Manifest(**(values | changes))


OLD = Schema.of({"image": "picture", "label": "i8"})
SOURCE = Field("source", "utf8", default="web")
NEW = Schema((*OLD.fields, SOURCE, Field("score", "f4", default=0.5)))


def test_a_field_may_be_added_with_a_default():
    manifest = _manifest(OLD, NEW)
    assert manifest.schema == NEW
    parsed = Manifest.parse(manifest.to_bytes(), "m")
    assert parsed.schemas == (OLD, NEW)
    assert parsed.schema_of(1).field("score").default == 0.5
    assert parsed.schema_of(0) == OLD


def test_fields_keep_the_place_of_their_first_appearance():
    reordered = Schema((SOURCE, *reversed(OLD.fields)))
    assert [f.name for f in _manifest(OLD, reordered).schema.fields] == ["image", "label", "source"]


@pytest.mark.parametrize(
    ("field", "words"),
    [
        (Field("label", "i4"), r"'label' is i8\[\] in one schema and i4\[\] in another"),
        (Field("label", "i8", (2,)), r"'label' is i8\[\] in one schema and i8\[2\]"),
        (Field("label", "utf8"), "'label' is"),
        (Field("label", "i8", default=0), "'label' has different defaults"),
    ],
)
def test_a_field_is_never_retyped(field, words):
    changed = Schema((OLD.fields[0], field))
    with pytest.raises(ConfigError, match=words):
        _manifest(OLD, changed)
    text = json.loads(_manifest(OLD, OLD).to_bytes())
    text["schemas"][1] = changed.to_object()
    with pytest.raises(ShardError, match=words):
        Manifest.parse(json.dumps(text).encode(), "m")


def test_a_field_may_change_its_codec():
    fields = [
        Schema((OLD.fields[1], Field("t", "utf8", codec=codec))) for codec in ("none", "zstd")
    ]
    assert _manifest(*fields).schema == fields[0]


def test_a_field_without_a_default_must_be_in_all_schemas():
    added = Schema((*OLD.fields, Field("source", "utf8")))
    for schemas in ((OLD, added), (added, OLD)):
        with pytest.raises(ConfigError, match="'source' is not in all schemas and has no default"):
            _manifest(*schemas)


def test_shards_without_a_field_give_its_default(workshop):
    old = Schema.of({"label": "i8"})
    new = Schema(
        (
            *old.fields,
            Field("source", "utf8", default="web"),
            Field("box", "f4", (4,), default=-1),
            Field("mask", "u1", (300, 300), default=7),
            Field("half", "bf16", default=1.5),
            Field("ids", "i4", (-1,), default=[]),
            Field("meta", "json", default=None),
            Field("raw", "bytes", default="00ff"),
            Field("seen", "bool", default=True),
        )
    )
    data, _ = workshop.write(old, [{"label": 3}])
    record = workshop.check_all(data).read_record(0, data, 0, new)
    assert list(record) == [field.name for field in new.fields]
    assert (record["label"], record["source"], record["half"]) == (3, "web", 1.5)
    assert (record["meta"], record["raw"], record["seen"]) == (None, b"\0\xff", True)
    assert record["box"].dtype == np.float32
    assert record["box"].tolist() == [-1, -1, -1, -1]
    assert record["mask"].shape == (300, 300)
    assert record["mask"].strides == (0, 0)
    assert (record["mask"] == 7).all()
    assert record["ids"].shape == (0,)
    assert not any(record[name].flags.writeable for name in ("box", "mask", "ids"))


def test_a_default_has_the_type_that_a_stored_value_has(workshop):
    fields = {
        "a": Field("a", "i2", default=-3),
        "b": Field("b", "f8", (40,), default=0.1),
        "c": Field("c", "bf16", (-1,), default=[1, 2.5]),
        "d": Field("d", "json", default={"x": [1, None]}),
    }
    values = {name: default_value(field) for name, field in fields.items()}
    schema = Schema(tuple(fields.values()))
    data, _ = workshop.write(schema, [values])
    record = workshop.check_all(data).read_record(0, data, 0)
    for name, value in values.items():
        np.testing.assert_equal(record[name], value)
        assert type(record[name]) is type(value)
        assert getattr(record[name], "dtype", None) == getattr(value, "dtype", None)


@pytest.mark.parametrize(
    "field",
    [
        Field("x", "picture", default=""),
        Field("x", "u1", default=256),
        Field("x", "u1", default=1.5),
        Field("x", "u1", default=True),
        Field("x", "u1", default=None),
        Field("x", "u1", (3,), default=[1, 2, 3]),
        Field("x", "bool", default=1),
        Field("x", "f2", default=1e9),
        Field("x", "f4", default="1"),
        Field("x", "i4", (-1,), default=0),
        Field("x", "i4", (-1,), default=[[1]]),
        Field("x", "i4", (-1,), default=[2**40]),
        Field("x", "utf8", default=5),
        Field("x", "utf8", default="\udc80"),
        Field("x", "bytes", default="0g"),
        Field("x", "bytes", default=7),
        Field("x", "utf8", default="x" * 2**20),
    ],
)
def test_defaults_that_are_no_values_of_their_field_are_refused(field):
    with pytest.raises(ConfigError, match="default"):
        Schema((field,))


def test_a_default_of_a_large_array_is_checked_without_making_the_array():
    Schema((Field("x", "u1", (2**16, 2**15), default=1),))


def test_defaults_are_json_of_bounded_depth():
    with pytest.raises(ConfigError, match="JSON"):
        Field("x", "json", default=float("nan"))
    deep: list[object] = []
    for _ in range(13):
        deep = [deep]
    with pytest.raises(ConfigError, match="nested"):
        Field("x", "json", default=deep)
    at_the_limit = Schema((Field("x", "json", default=deep[0][0]),))
    assert Schema.parse(at_the_limit.to_json()) == at_the_limit


def test_a_default_is_the_schemas_own():
    given = {"tags": ["a"]}
    field = Field("x", "json", default=given)
    given["tags"].append("b")
    default_value(field)["tags"].append("c")
    assert default_value(field) == {"tags": ["a"]}


def test_no_default_and_null_differ():
    null, none = Field("x", "json", default=None), Field("x", "json")
    assert none.default is NO_DEFAULT
    assert null != none
    assert Schema.parse(Schema((null,)).to_json()).fields == (null,)
    assert b"default" not in Schema((none,)).to_json()
    with pytest.raises(ConfigError, match="has no default"):
        default_value(none)


def test_reading_by_a_schema_that_retypes_is_refused(workshop):
    data, _ = workshop.write({"n": "i8"}, [{"n": 1}])
    index = workshop.check_all(data)
    with pytest.raises(ConfigError, match="'n' is i8"):
        index.read_record(0, data, 0, Schema.of({"n": "i4"}))
    with pytest.raises(ConfigError, match="'m' has no default"):
        index.read_record(0, data, 0, Schema.of({"n": "i8", "m": "i4"}))


def test_a_shard_of_another_schema_than_the_manifests_is_refused(workshop):
    data, summary = workshop.write({"n": "i8"}, [{"n": 1}])
    entry = summary.entry("x.dts")
    known = {"name": "x.dts", "file_bytes": len(data), "entry": entry}
    assert ShardIndex.parse(data, schema=Schema.of({"n": "i8"}), **known).num_samples == 1
    with pytest.raises(ShardError, match="another schema than the manifest states"):
        ShardIndex.parse(data, schema=Schema.of({"n": "u8"}), **known)

"""What is written is what is read."""

from __future__ import annotations

import hashlib
import math
import os
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from streamloader.dts import (
    HASH_NAMES,
    Field,
    PictureHeader,
    Schema,
    ShardIndex,
    ShardWriter,
    bf16_to_float32,
    float32_to_bf16,
    open_shard,
    read_picture_header,
)
from streamloader.dts.fields import CODECS, ELEMENT_DTYPES
from streamloader.dts.layout import Head, SectionKind
from streamloader.dts.tail import SectionContent, pack_tail
from streamloader.errors import ConfigError, ShardError

_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
_SCALARS = [name for name in ELEMENT_DTYPES if name != "bf16"]


PICTURES = Path(__file__).parents[1] / "hostile" / "images"
PICTURE_NAMES = ("sampling/s420.jpg", "exif/orient6.jpg", "colour/gray.jpg", "other/palette.png")


@st.composite
def _fields(draw):
    kinds = ["picture", "bytes", "utf8", "json", "array", "array", "array", "bf16"]
    kind = draw(st.sampled_from(kinds))
    name = draw(st.text("abcXYZ019_.-", min_size=1, max_size=12))
    shape = ()
    if kind == "bf16":
        shape = draw(st.sampled_from([(), (3,), (40,), (-1,)]))
    elif kind == "array":
        kind = draw(st.sampled_from(_SCALARS))
        shape = draw(st.sampled_from([(), (), (1,), (2, 3), (5, 7, 3), (200,), (-1,)]))
    field = Field(name, kind, shape)
    return field if field.is_column else replace(field, codec=draw(st.sampled_from(CODECS)))


def _values(field):
    match field.type:
        case "picture":
            # What follows a picture's end is ignored by decoders, and gives zstd something to do.
            ends = st.integers(0, 3000).map(bytes)
            names = st.sampled_from(PICTURE_NAMES)
            return st.builds(lambda name, end: (PICTURES / name).read_bytes() + end, names, ends)
        case "bytes":
            return st.binary(max_size=200) | st.binary(max_size=9).map(lambda data: data * 99)
        case "utf8":
            return st.text(max_size=50) | st.text(max_size=9).map(lambda text: text * 99)
        case "json":
            return _json
    shape = field.shape if field.shape != (-1,) else st.integers(0, 90).map(lambda n: (n,))
    if field.type == "bf16":
        bits = npst.arrays(np.uint16, shape, elements=st.integers(0, 0x7F7F))
        return bits.map(bf16_to_float32)
    return npst.arrays(ELEMENT_DTYPES[field.type], shape)


@st.composite
def _shards(draw):
    fields = draw(st.lists(_fields(), min_size=1, max_size=5, unique_by=lambda f: f.name))
    record = st.fixed_dictionaries({field.name: _values(field) for field in fields})
    records = draw(st.lists(record, max_size=5))
    keys = draw(st.lists(st.none() | st.text(max_size=8), min_size=5, max_size=5))
    align = draw(st.sampled_from([1, 2, 8, 64, 512, 4096]))
    return Schema(tuple(fields), draw(st.sampled_from(HASH_NAMES))), records, keys, align


def _check_round_trip(workshop, shard):
    schema, records, keys, align = shard
    keys = [key.encode("utf-8", "replace").decode() if key else key for key in keys]
    data, summary = workshop.write(schema, records, names=keys, sample_align=align)
    index = workshop.check_all(data)
    assert index.schema == schema
    assert index.num_samples == len(records) == summary.samples
    assert np.array_equal(index.offsets, summary.offsets)
    assert np.all(index.offsets % align == 0)
    for i, record in enumerate(records):
        assert index.key(i) == (keys[i] or None)
        found = index.read_record(i, data, 0)
        assert list(found) == [field.name for field in schema.fields]
        for name, value in record.items():
            np.testing.assert_equal(found[name], value)
            if schema.field(name).type == "picture":
                columns = (f"{name}.width", f"{name}.height", f"{name}.kind")
                width, height, kind = (int(index.column(c)[i]) for c in columns)
                assert PictureHeader.from_columns(width, height, kind) == read_picture_header(value)
    for field in schema.payload_fields:
        assert np.all(index.lengths(field.name) <= index.raw_lengths(field.name))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(_shards())
def test_any_schema_and_values_come_back_equal(workshop, shard):
    _check_round_trip(workshop, shard)


@pytest.mark.slow
@settings(max_examples=1500, deadline=None, suppress_health_check=list(HealthCheck))
@given(_shards())
def test_any_schema_and_values_come_back_equal_at_length(workshop, shard):
    _check_round_trip(workshop, shard)


def test_a_sample_may_have_several_pictures(workshop):
    fields = {name: Field(name, "picture", codec=c) for name, c in (("a", "zstd"), ("b", "none"))}
    pictures = [(PICTURES / name).read_bytes() for name in PICTURE_NAMES]
    pairs = zip(pictures, pictures[::-1], strict=True)
    records = [{"a": p, "n": i, "b": q} for i, (p, q) in enumerate(pairs)]
    schema = Schema((fields["a"], Field("n", "i8"), fields["b"]))
    data, _ = workshop.write(schema, records)
    index = workshop.check_all(data)
    assert [index.read_record(i, data, 0) for i in range(4)] == records
    for name in ("a", "b"):
        headers = [read_picture_header(record[name]) for record in records]
        assert index.column(f"{name}.width").tolist() == [h.width for h in headers]
        assert index.column(f"{name}.kind").tolist() == [h.kind for h in headers]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2**31 - 64), st.integers(0, 2**31)),
        min_size=1,
        max_size=40,
    ),
    st.sampled_from([1, 64, 4096]),
)
def test_offsets_are_exact_whatever_the_lengths(lengths, align):
    """A tail alone, for records of up to 4 GiB that nobody could hold."""
    schema = Schema.of({"a": "bytes", "b": "bytes"})
    at, starts = max(64, align), []
    for a, b in lengths:
        starts.append(at)
        at += -(-(-(-a // 64) * 64 + b) // align) * align
    count = len(lengths)
    columns = np.array(lengths, "<u4").T
    contents = [
        SectionContent(SectionKind.HASHES, 0, bytes(8 * count)),
        SectionContent(SectionKind.HASHES, 1, bytes(8 * count)),
        SectionContent(SectionKind.LENS, 0, columns[0].tobytes()),
        SectionContent(SectionKind.LENS, 1, columns[1].tobytes()),
        SectionContent(SectionKind.OFFSETS, 0, np.array([*starts, at], "<u8").tobytes()),
        SectionContent(SectionKind.SCHEMA, 0, schema.to_json()),
    ]
    end = -(-at // 64) * 64
    tail = pack_tail(contents, tail_offset=end, num_samples=count, uuid=bytes(16))
    index = ShardIndex.parse(tail, name="big.dts", file_bytes=end + len(tail))
    index.check_head(Head(bytes(16), align).pack())
    offsets, found = index.field_ranges("b", 0, count)
    assert offsets.tolist() == [
        s + -(-a // 64) * 64 for s, (a, _) in zip(starts, lengths, strict=True)
    ]
    assert found.tolist() == [b for _, b in lengths]
    assert index.payload_end == at


def test_the_file_is_exactly_what_the_summary_says(workshop):
    data, summary = workshop.write({"d": "bytes", "n": int}, [{"d": b"x" * 99, "n": 5}])
    assert summary.bytes == len(data)
    assert summary.sha256 == hashlib.sha256(data).hexdigest()
    assert summary.tail_crc32 == zlib.crc32(data[-summary.tail_bytes :])
    assert summary.max_record_bytes == 128
    assert summary.offsets.tolist() == [64, 192]
    assert ShardIndex.tail_bytes(data[-64:], len(data), "x") == summary.tail_bytes
    index = workshop.check_all(data)
    assert index.hashes("d").tolist() == [xxhash.xxh3_64_intdigest(b"x" * 99)]
    assert index.lengths("d").tolist() == [99]
    assert (index.payload_end, index.tail_offset, index.data_offset) == (192, 192, 64)


def test_same_records_give_the_same_bytes(workshop):
    records = [{"d": os.urandom(10), "n": i} for i in range(20)]
    fields = {"d": "bytes", "n": int}
    assert workshop.write(fields, records)[0] == workshop.write(fields, records)[0]


def test_a_shard_opens_with_one_tail_read_or_two(workshop):
    records = [{"d": bytes([i % 256]) * 30, "n": i} for i in range(5000)]
    data, summary = workshop.write({"d": "bytes", "n": int}, records)
    assert summary.tail_bytes > 65536
    for entry, tail_reads in ((None, 2), (summary.entry("x.dts"), 1)):
        reads = []

        def read_at(offset, length, reads=reads):
            reads.append((offset, length))
            return data[offset : offset + length]

        index = open_shard(read_at, len(data), "x.dts", entry)
        assert index.column("n").tolist() == list(range(5000))
        assert len([r for r in reads if r[0] > 4096]) == tail_reads
        assert sum(length for offset, length in reads if offset > 4096) == max(
            summary.tail_bytes, 0
        )


def test_a_shard_that_is_not_the_manifests_is_refused(workshop):
    data, summary = workshop.write({"d": "bytes"}, [{"d": b"abc"}])
    entry = summary.entry("x.dts")
    for change in (
        {"samples": 2},
        {"uuid": b"z" * 16},
        {"tail_crc32": 1},
        {"bytes": len(data) + 64},
        {"tail_bytes": summary.tail_bytes - 64},
    ):
        with pytest.raises(ShardError, match="not the shard that the manifest means"):
            ShardIndex.parse(
                data, name="x.dts", file_bytes=len(data), entry=replace(entry, **change)
            )


def test_arrays_are_views_of_the_tail_and_read_only(workshop):
    data, summary = workshop.write(
        {"d": "bytes", "box": "f4:[4]"}, [{"d": b"", "box": [1, 2, 3, 4]}]
    )
    tail = bytearray(data[-summary.tail_bytes :])
    index = ShardIndex.parse(tail, name="x", file_bytes=len(data))
    for array in (index.offsets, index.column("box"), index.hashes("d"), index.lengths("d")):
        assert not array.flags.writeable
        assert not array.flags.owndata


def test_keys_that_are_not_utf8_keep_their_bytes(workshop):
    name = os.fsdecode(b"caf\xe9/\xff.jpg")
    data, _ = workshop.write({"n": int}, [{"n": 1}, {"n": 2}], names=[name, None])
    index = workshop.check_all(data)
    assert os.fsencode(index.key(0)) == b"caf\xe9/\xff.jpg"
    assert index.key(1) is None
    data, _ = workshop.write({"n": int}, [{"n": 1}], names=["dropped"], keys=False)
    assert workshop.check_all(data).key(0) is None


def test_stats_come_back(workshop):
    out = bytearray()
    writer = ShardWriter(Schema.of({"n": int}), uuid=bytes(16), sink=out.extend)
    writer.add({"n": 1})
    writer.finish(stats={"mean": [0.5, 1.0]})
    assert workshop.check_all(out).stats == {"mean": [0.5, 1.0]}
    with pytest.raises(ConfigError):
        ShardWriter(Schema.of({"n": int}), uuid=bytes(16), sink=out.extend).finish(
            stats={"mean": math.nan}
        )


def test_a_shard_without_records_is_valid(workshop):
    data, _ = workshop.write({"d": "bytes", "n": int}, [])
    index = workshop.check_all(data)
    assert index.num_samples == 0
    assert index.column("n").shape == (0,)
    assert index.field_ranges("d", 0, 0)[0].shape == (0,)


@pytest.mark.parametrize(
    ("spec", "value"),
    [
        ("uint8", 256),
        ("uint8", -1),
        ("int8", [1]),
        ("int64", 1.5),
        ("int64", np.float32(2)),
        ("int64", "3"),
        ("int64", None),
        ("int64", 2**63),
        ("float32", 1e39),
        ("float16", 70000.0),
        ("bf16", 3.4e38),
        ("float32", "x"),
        ("bool", 2),
        ("f4:[4]", [1, 2, 3]),
        ("f4:[4]", [[1, 2], [3, 4]]),
        ("f4:[2,2]", [1, [2]]),
        ("i2:[-1]", [[1, 2]]),
        ("i2:[-1]", [40000]),
        ("str", b"bytes"),
        ("str", "\ud800"),
        ("bytes", "text"),
        ("bytes", 5),
        ("bytes", np.zeros(3, np.int32)),
        ("json", math.nan),
        ("json", {1: 2}),
        ("json", {"a": object()}),
    ],
)
def test_values_that_do_not_fit_are_refused_and_leave_nothing(workshop, spec, value):
    out = bytearray()
    fields = {"other": "bytes", "value": spec}
    writer = ShardWriter(Schema.of(fields), uuid=bytes(16), sink=out.extend)
    with pytest.raises(ConfigError, match=r"record 0 of .*field 'value'"):
        writer.add({"other": b"x", "value": value}, "key")
    assert writer.num_samples == 0
    assert writer.finish().samples == 0
    workshop.check_all(out)


@pytest.mark.parametrize("record", [{}, {"a": 1}, {"a": 1, "b": 2, "c": 3}, {"a": 1, "x": 2}])
def test_records_with_other_fields_are_refused(record):
    writer = ShardWriter(Schema.of({"a": int, "b": int}), uuid=bytes(16), sink=lambda data: None)
    with pytest.raises(ConfigError, match="lacks .* and has unknown"):
        writer.add(record)


def test_a_writer_whose_sink_failed_does_not_go_on():
    def full(data):
        raise OSError("disk full")

    writer = ShardWriter(Schema.of({"d": "bytes"}), uuid=bytes(16), sink=full)
    with pytest.raises(OSError, match="disk full"):
        writer.add({"d": b"1"})
    with pytest.raises(ConfigError, match="failed"):
        writer.add({"d": b"1"})
    with pytest.raises(ConfigError, match="failed"):
        writer.finish()


def test_a_finished_writer_takes_no_more():
    writer = ShardWriter(Schema.of({"n": int}), uuid=bytes(16), sink=lambda data: None)
    writer.finish()
    with pytest.raises(ConfigError, match="finished"):
        writer.add({"n": 1})


def test_unreadable_pictures_are_refused_by_what_they_are_or_stored_as_kind_0(workshop):
    page = b"<!DOCTYPE html><html></html>"
    with pytest.raises(ShardError, match="picture 'image': an HTML page"):
        workshop.write({"image": "picture"}, [{"image": page}])
    data, _ = workshop.write(
        {"image": "picture"}, [{"image": page}], allow_unreadable_pictures=True
    )
    index = workshop.check_all(data)
    for name in ("image.width", "image.height", "image.kind"):
        assert index.column(name).tolist() == [0]


def test_bf16_rounds_to_nearest_even_and_keeps_what_is_no_number():
    values = np.array([1.0, 1.00390625, 1.01171875, -2.5, 0.0, -0.0, np.inf, -np.inf], np.float32)
    expected = [0x3F80, 0x3F80, 0x3F82, 0xC020, 0, 0x8000, 0x7F80, 0xFF80]
    assert float32_to_bf16(values).tolist() == expected
    assert np.isnan(bf16_to_float32(float32_to_bf16(np.float32(np.nan))))
    nan_of_long_payload = np.array([0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001], np.uint32).view(np.float32)
    assert np.isnan(bf16_to_float32(float32_to_bf16(nan_of_long_payload))).all()


def test_unknown_names_say_what_there_is(workshop):
    data, _ = workshop.write({"d": "bytes", "n": int}, [{"d": b"", "n": 1}])
    index = workshop.check_all(data)
    with pytest.raises(ConfigError, match="its columns are n"):
        index.column("d")
    with pytest.raises(ConfigError, match="it has d"):
        index.field_ranges("n", 0, 1)
    for first, count in ((0, 2), (-1, 1), (1, 1), (0, -1)):
        with pytest.raises(ConfigError, match="not all among the 1"):
            index.field_ranges("d", first, count)


@pytest.mark.parametrize(
    ("spec", "good", "bad", "reason"),
    [
        ("str", "abcd", b"ab\xffd", "not UTF-8"),
        ("json", {"a": 1}, b'{"a":N}', "not valid JSON"),
        ("json", {"a": 1}, b"[[[[[[[", "not valid JSON"),
        ("bool:[-1]", [True, False], b"\x01\x02", "neither 0 nor 1"),
    ],
)
def test_stored_bytes_that_are_not_of_their_type_are_shard_errors(
    workshop, spec, good, bad, reason
):
    data, _ = workshop.write({"value": spec}, [{"value": good}])
    index = workshop.check_all(data)
    damaged = data[:64] + bad + data[64 + len(bad) :]
    with pytest.raises(ShardError, match=reason) as caught:
        index.read_record(0, damaged, 0)
    assert caught.value.offset is not None

"""Damage by intent: every checksum is right, the content is not."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamloader.dts import DEFAULT_LIMITS, Limits, Schema, ShardIndex
from streamloader.dts.layout import Head, Section, SectionKind, Trailer
from streamloader.dts.tail import SectionContent, pack_tail
from streamloader.errors import ConfigError, ShardError


def _refused(workshop, shard, match):
    with pytest.raises(ShardError, match=match):
        workshop.check_all(shard)


def _set_u64(raw, place, value):
    struct.pack_into("<Q", raw, 8 * place, value % 2**64)


def _set_u32(raw, place, value):
    struct.pack_into("<I", raw, 4 * place, value)


@pytest.mark.parametrize("value", [0, 63, 2**64 - 64, 2**63, 128 + 1, 4160])
def test_wrapped_or_shifted_first_offset_is_refused(workshop, small_shard, value):
    damaged = workshop.replace_section(
        small_shard, SectionKind.OFFSETS, 0, lambda raw: _set_u64(raw, 0, value)
    )
    _refused(workshop, damaged, "first record starts|another length")


@pytest.mark.parametrize("delta", [64, -64, 2**64 - 64, 2**32, 1])
def test_offsets_that_overlap_leave_holes_or_wrap_are_refused(workshop, small_shard, delta):
    def shift(raw):
        (value,) = struct.unpack_from("<Q", raw, 8)
        _set_u64(raw, 1, value + delta)

    damaged = workshop.replace_section(small_shard, SectionKind.OFFSETS, 0, shift)
    _refused(workshop, damaged, "another length")


@pytest.mark.parametrize("length", [2**32 - 1, 2**31, 129, 0])
def test_lengths_beyond_the_record_are_refused(workshop, small_shard, length):
    damaged = workshop.replace_section(
        small_shard, SectionKind.LENS, 0, lambda raw: _set_u32(raw, 2, length)
    )
    _refused(workshop, damaged, "another length|the limit is")


def test_a_record_moved_past_the_tail_is_refused(workshop, small_shard):
    def grow(raw):
        _set_u64(raw, 3, struct.unpack_from("<Q", raw, 24)[0] + 128)

    damaged = workshop.replace_section(small_shard, SectionKind.OFFSETS, 0, grow)
    damaged = workshop.replace_section(
        damaged, SectionKind.LENS, 1, lambda raw: _set_u32(raw, 2, 9 + 128)
    )
    _refused(workshop, damaged, "records end at byte")


@pytest.mark.parametrize(
    "change",
    [
        {"length": 2**64 - 64},
        {"length": 2**63},
        {"offset": 2**64 - 64},
        {"offset": 0},
        {"length": 0},
    ],
)
@pytest.mark.parametrize("place", [0, 3, -1])
def test_sections_that_wrap_overlap_or_leave_the_tail_are_refused(
    workshop, small_shard, change, place
):
    def edit(entries):
        entries[place] = replace(entries[place], **change)

    _refused(workshop, workshop.with_directory(small_shard, edit), "section|directory|schema")


def test_a_section_given_twice_is_refused(workshop, small_shard):
    contents = workshop.sections(small_shard)
    damaged = workshop.with_sections(small_shard, [contents[0], *contents])
    _refused(workshop, damaged, "twice")


def test_a_missing_section_is_refused_by_name(workshop, small_shard):
    contents = workshop.sections(small_shard)
    for missing in contents:
        rest = [c for c in contents if c is not missing]
        if missing.kind == SectionKind.KEYS:
            continue
        damaged = workshop.with_sections(small_shard, rest)
        _refused(workshop, damaged, f"{SectionKind(missing.kind).name}|no schema")


def test_a_section_that_the_schema_does_not_have_is_refused(workshop, small_shard):
    contents = workshop.sections(small_shard)
    for kind, column_id in [(5, 7), (3, 2), (6, 0), (7, 0), (9, 1), (2, 5)]:
        extra = SectionContent(kind, column_id, b"\0" * 24)
        damaged = workshop.with_sections(small_shard, [extra, *contents])
        _refused(workshop, damaged, "does not have")


def test_reserved_bits_in_use_are_refused(workshop, small_shard):
    def edit(entries):
        entries[0] = replace(entries[0], flags=2)

    _refused(workshop, workshop.with_directory(small_shard, edit), "reserved")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_samples", 2),
        ("num_samples", 2**32),
        ("num_samples", 2**64 - 1),
        ("num_sections", 255),
        ("num_sections", 2**32 - 1),
        ("num_sections", 0),
        ("tail_offset", 0),
        ("tail_offset", 2**64 - 64),
        ("tail_offset", 65),
        ("file_bytes", 2**44),
    ],
)
def test_impossible_counts_in_the_trailer_are_refused(workshop, small_shard, field, value):
    trailer = Trailer.parse(small_shard, "x.dts", len(small_shard))
    damaged = small_shard[:-64] + replace(trailer, **{field: value}).pack()
    _refused(workshop, damaged, "x.dts")


def test_keys_that_run_backwards_are_refused(workshop, small_shard):
    damaged = workshop.replace_section(
        small_shard, SectionKind.KEYS, 0, lambda raw: _set_u64(raw, 1, 2**64 - 1)
    )
    _refused(workshop, damaged, "keys")


def test_a_bool_column_of_other_bytes_is_refused(workshop):
    shard, _ = workshop.write({"flag": bool}, [{"flag": True}, {"flag": False}])

    def edit(raw):
        raw[1] = 2

    damaged = workshop.replace_section(shard, SectionKind.COLUMN, 0, edit)
    _refused(workshop, damaged, "neither 0 nor 1")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b"\xff\xfe",
        b'{"fields":[],"hash":"xxh3-64"}',
        b'{"fields":[],"fields":[],"hash":"xxh3-64"}',
        b'{"fields":NaN,"hash":"xxh3-64"}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"fields":[{"name":"a","type":"pickle","shape":[],"codec":"none"}],"hash":"xxh3-64"}',
        b'{"fields":[{"name":"a","type":"u1","shape":[1e400],"codec":"none"}],"hash":"xxh3-64"}',
        b'{"fields":[{"name":"a","type":"u1","shape":[true],"codec":"none"}],"hash":"xxh3-64"}',
        b'{"fields":[{"name":"a","type":"u1","shape":[0],"codec":"none"}],"hash":"xxh3-64"}',
        b'{"fields":[{"name":"a","type":"u1","shape":[4294967296,4294967296],"codec":"none"}],'
        b'"hash":"xxh3-64"}',
        b'{"fields":[{"name":"../a","type":"u1","shape":[],"codec":"none"}],"hash":"xxh3-64"}',
        b'{"fields":[{"name":"a","type":"u1","shape":[],"codec":"lzma"}],"hash":"xxh3-64"}',
        b'{"fields":[{"name":"a","type":"u1","shape":[],"codec":"none"}],"hash":"md5"}',
        b'{"fields":[{"name":"a","type":"u1","shape":[],"codec":"none","x":1}],"hash":"xxh3-64"}',
        b'{"fields":[{"name":"a","type":"u1","shape":[],"codec":"none"}],"hash":' + b"9" * 5000,
    ],
)
def test_schemas_that_are_none_raise_only_the_formats_error(workshop, small_shard, text):
    def edit(raw):
        raw[:] = text

    _refused(workshop, workshop.replace_section(small_shard, SectionKind.SCHEMA, 0, edit), "schema")


def test_stats_that_are_no_json_object_are_refused_when_read(workshop, small_shard):
    contents = workshop.sections(small_shard)
    for text in (b"[1]", b"{", b"[" * 50 + b"]" * 50):
        stats = SectionContent(SectionKind.STATS, 0, text)
        index = workshop.check_all(workshop.with_sections(small_shard, [*contents, stats]))
        with pytest.raises(ShardError, match="stats"):
            _ = index.stats


def test_an_alignment_that_the_records_do_not_have_is_refused(workshop):
    shard, _ = workshop.write({"d": "bytes"}, [{"d": b"12345"}] * 3, sample_align=8)
    for align in (1, 2, 16, 64, 128, 4096):
        damaged = Head(workshop.uuid, align).pack() + shard[64:]
        _refused(workshop, damaged, "not aligned")


def test_original_dts_files_are_refused_by_name(workshop):
    original = b".DTS\x03\0\0\0" + bytes(1000)
    with pytest.raises(ShardError, match="original DTS file.*DatasetWriter"):
        Head.parse(original, "imagenet_train_lv0.dts")


def test_lowered_limits_hold_and_raised_ones_are_refused(workshop, small_shard):
    for limit in (
        {"samples": 2},
        {"sections": 3},
        {"tail_bytes": 256},
        {"schema_bytes": 10},
        {"file_bytes": 100},
        {"record_bytes": 70},
    ):
        with pytest.raises(ShardError, match="limit"):
            ShardIndex.parse(
                small_shard, name="x", file_bytes=len(small_shard), limits=Limits(**limit)
            )
    with pytest.raises(ConfigError, match="lowered only"):
        Limits(samples=2**33)


def test_offsets_beyond_4_gib_are_exact():
    schema = Schema.of({"data": "bytes", "label": "i8"})
    count, length = 70, 2**28 + 17
    extent = (length + 63) // 64 * 64
    offsets = 64 + extent * np.arange(count + 1, dtype=np.uint64)
    contents = [
        SectionContent(SectionKind.HASHES, 0, bytes(8 * count)),
        SectionContent(SectionKind.LENS, 0, np.full(count, length, "<u4").tobytes()),
        SectionContent(SectionKind.OFFSETS, 0, offsets.astype("<u8").tobytes()),
        SectionContent(SectionKind.COLUMN, 1, np.arange(count, dtype="<i8").tobytes()),
        SectionContent(SectionKind.SCHEMA, 0, schema.to_json()),
    ]
    end = int(offsets[-1])
    assert end > 4 * 2**32
    tail = pack_tail(contents, tail_offset=end, num_samples=count, uuid=bytes(16))
    index = ShardIndex.parse(tail, name="big.dts", file_bytes=end + len(tail))
    starts, lengths = index.field_ranges("data", 60, 10)
    assert starts.tolist() == [64 + extent * i for i in range(60, 70)]
    assert lengths.tolist() == [length] * 10
    window = bytes(128)
    with pytest.raises(ShardError, match=str(64 + extent * 69)):
        index.read_record(69, window, 0)


@st.composite
def _directories(draw):
    number = st.one_of(
        st.integers(0, 2**16 - 1), st.sampled_from([0, 64, 128, 192, 2**32, 2**63, 2**64 - 64])
    )
    entry = st.builds(
        Section,
        kind=st.one_of(st.integers(0, 10), st.integers(0, 2**16 - 1)),
        column_id=st.one_of(st.integers(0, 3), st.integers(0, 2**32 - 1)),
        offset=number,
        length=number,
        crc32=st.integers(0, 2**32 - 1),
        flags=st.integers(0, 3),
    )
    return draw(st.lists(entry, min_size=6, max_size=6))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(entries=_directories(), fix_crc=st.booleans())
def test_any_directory_raises_only_the_formats_error(workshop, small_shard, entries, fix_crc):
    def edit(current):
        place = 0
        for place, entry in enumerate(entries[: len(current)]):
            current[place] = entry if fix_crc else replace(current[place], length=entry.length)

    damaged = workshop.with_directory(small_shard, edit)
    with pytest.raises(ShardError):
        workshop.check_all(damaged)


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.integers(0, 5),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_any_resealed_section_raises_only_the_formats_error(workshop, small_shard, place, edits):
    contents = workshop.sections(small_shard)
    chosen = contents[place]

    def edit(raw):
        for at, value in edits:
            if raw:
                raw[at % len(raw)] = value

    damaged = workshop.replace_section(small_shard, chosen.kind, chosen.column_id, edit)
    try:
        index = ShardIndex.parse(damaged, name="x.dts", file_bytes=len(damaged))
        index.check_head(damaged[:64])
        for sample in range(index.num_samples):
            index.key(sample)
            index.read_record(sample, damaged, 0)
        index.verify_records(0, index.num_samples, damaged, 0)
    except ShardError:
        pass


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=600), st.integers(0, 2**45))
def test_noise_raises_only_the_formats_error(data, file_bytes):
    with pytest.raises(ShardError):
        ShardIndex.parse(data, name="x.dts", file_bytes=file_bytes)
    with pytest.raises(ShardError):
        ShardIndex.parse(data, name="x.dts", file_bytes=len(data))
    with pytest.raises(ShardError):
        Head.parse(data, "x.dts")
    with pytest.raises(ShardError):
        ShardIndex.tail_bytes(data, file_bytes, "x.dts", DEFAULT_LIMITS)

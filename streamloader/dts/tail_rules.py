"""What the sections of a tail must hold, given its schema."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from streamloader.dts.layout import (
    FIELD_ALIGN,
    HEAD_BYTES,
    SECTION_ALIGN,
    SectionKind,
    align_up,
    data_offset_of,
    is_sample_align,
)
from streamloader.dts.limits import Limits
from streamloader.dts.schema import Schema
from streamloader.dts.shard_table import ShardEntry
from streamloader.dts.tail import Tail
from streamloader.dts.values import check_bool_bytes
from streamloader.dts.zstd import DICTIONARY_MAX_BYTES, Dictionary
from streamloader.errors import ConfigError

_ITEM_BYTES: Final = {
    SectionKind.LENS: 4,
    SectionKind.HASHES: 8,
    SectionKind.RAWLENS: 4,
}


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the records lie, proven to have no hole, overlap or wrap.

    Args:
        offsets: uint64 [samples + 1].
        align: the largest power of two up to 4096 that the records could have been aligned to.
        max_padding: the longest padding behind a record's used bytes.
        dictionaries: of the compressed fields that have one.
    """

    offsets: npt.NDArray[np.uint64]
    align: int
    max_padding: int
    dictionaries: dict[str, Dictionary]

    def fits(self, sample_align: int) -> bool:
        """True when a writer with this alignment would have put every record where it is.

        Extents are the used bytes rounded up to `align` (checked), so for a smaller power of
        two it is enough that no padding reaches its length.
        """
        return (
            data_offset_of(sample_align) == int(self.offsets[0])
            and sample_align <= self.align
            and self.max_padding < sample_align
        )


def parse_schema(tail: Tail, limits: Limits) -> Schema:
    """
    Raises:
        ShardError: when the tail has no valid schema.
    """
    section = tail.sections.get((SectionKind.SCHEMA, 0))
    if section is None:
        raise tail.fault("has no schema", tail.trailer.directory_offset)
    if section.length > limits.schema_bytes:
        raise tail.fault(
            f"schema has {section.length} bytes, the limit is {limits.schema_bytes}",
            section.offset,
        )
    return Schema.parse(tail.content(SectionKind.SCHEMA), tail.name, section.offset)


def check_entry(tail: Tail, entry: ShardEntry) -> None:
    """Compare a tail with what the manifest states about the shard.

    Raises:
        ShardError: naming the first difference.
    """
    trailer = tail.trailer
    stated: tuple[tuple[str, object, object], ...] = (
        ("bytes", entry.bytes, trailer.file_bytes),
        ("tail_bytes", entry.tail_bytes, trailer.tail_bytes),
        ("samples", entry.samples, trailer.num_samples),
        ("uuid", entry.uuid.hex(), trailer.uuid.hex()),
        ("tail_crc32", entry.tail_crc32, zlib.crc32(tail.view)),
    )
    for what, expected, found in stated:
        if expected != found:
            raise tail.fault(
                f"is not the shard that the manifest means: {what} is {found}, stated {expected}",
                trailer.tail_offset,
            )


def check_tail(tail: Tail, schema: Schema, limits: Limits) -> Layout:
    """Check every section against the schema; only then are arrays made of them.

    Raises:
        ShardError: for the first rule that does not hold.
    """
    _check_presence(tail, schema)
    _check_lengths(tail, schema, limits)
    _check_raw_lengths(tail, schema, limits)
    _check_keys(tail)
    for column in schema.columns:
        if column.type == "bool":
            section = tail.sections[SectionKind.COLUMN, column.column_id]
            data = tail.content(SectionKind.COLUMN, column.column_id)
            check_bool_bytes(data, f"column {column.name!r}", tail.name, section.offset)
    return _check_offsets(tail, schema, limits, _dictionaries(tail, schema))


def _dictionaries(tail: Tail, schema: Schema) -> dict[str, Dictionary]:
    found: dict[str, Dictionary] = {}
    for place, field in enumerate(schema.fields):
        section = tail.sections.get((SectionKind.ZDICT, place))
        if section is None:
            continue
        if section.length > DICTIONARY_MAX_BYTES:
            raise tail.fault(
                f"dictionary of field {field.name!r} has {section.length} bytes, the limit is "
                f"{DICTIONARY_MAX_BYTES}",
                section.offset,
            )
        try:
            found[field.name] = Dictionary(bytes(tail.content(SectionKind.ZDICT, place)))
        except ConfigError as exc:
            raise tail.fault(f"field {field.name!r}: {exc}", section.offset) from exc
    return found


def _check_presence(tail: Tail, schema: Schema) -> None:
    needed = schema.sections()
    optional = {(SectionKind.KEYS, 0), (SectionKind.STATS, 0)}
    for place, field in enumerate(schema.fields):
        if field.codec != "none":
            optional.add((SectionKind.ZDICT, place))
    for kind, column_id in sorted(needed):
        if (kind, column_id) not in tail.sections:
            raise tail.fault(f"lacks the section {kind.name}({column_id}) that its schema needs")
    known = {int(kind) for kind in SectionKind}
    for (kind_number, column_id), section in tail.sections.items():
        if kind_number not in known:
            continue
        kind = SectionKind(kind_number)
        if (kind, column_id) not in needed and (kind, column_id) not in optional:
            raise tail.fault(
                f"has a section {kind.name}({column_id}) that its schema does not have",
                section.offset,
            )


def _check_lengths(tail: Tail, schema: Schema, limits: Limits) -> None:
    samples = tail.trailer.num_samples
    exact = {(SectionKind.OFFSETS, 0): 8 * (samples + 1)}
    for column in schema.columns:
        exact[SectionKind.COLUMN, column.column_id] = column.item_bytes * samples
    for kind, column_id in schema.sections():
        if kind in _ITEM_BYTES:
            exact[kind, column_id] = _ITEM_BYTES[kind] * samples
    for (kind, column_id), length in exact.items():
        section = tail.sections[kind, column_id]
        if section.length != length:
            raise tail.fault(
                f"section {kind.name}({column_id}) has {section.length} bytes, not {length}",
                section.offset,
            )
    keys = tail.sections.get((SectionKind.KEYS, 0))
    if keys is not None and keys.length < 8 * (samples + 1):
        raise tail.fault(f"keys have {keys.length} bytes for {samples} samples", keys.offset)
    stats = tail.sections.get((SectionKind.STATS, 0))
    if stats is not None and stats.length > limits.schema_bytes:
        raise tail.fault(
            f"stats have {stats.length} bytes, the limit is {limits.schema_bytes}", stats.offset
        )


def _check_raw_lengths(tail: Tail, schema: Schema, limits: Limits) -> None:
    """Stated decompressed sizes stay in bounds, so that a reader may allocate them."""
    for place, field in enumerate(schema.fields):
        if field.codec == "none":
            continue
        stored = tail.array(SectionKind.LENS, place, "<u4").astype(np.int64)
        raw = tail.array(SectionKind.RAWLENS, place, "<u4").astype(np.int64)
        bad = (raw != stored) & (
            (raw < stored) | (raw > limits.raw_bytes) | (raw > stored * limits.raw_ratio)
        )
        if field.fixed_bytes is not None:
            bad |= raw != field.fixed_bytes
        if bad.any():
            at = int(np.argmax(bad))
            raise tail.fault(
                f"record {at} states {int(raw[at])} bytes of field {field.name!r} "
                f"from {int(stored[at])} stored",
                tail.sections[SectionKind.RAWLENS, place].offset + 4 * at,
            )


def _check_keys(tail: Tail) -> None:
    section = tail.sections.get((SectionKind.KEYS, 0))
    if section is None:
        return
    samples = tail.trailer.num_samples
    blob_bytes = section.length - 8 * (samples + 1)
    ends = np.frombuffer(tail.content(SectionKind.KEYS), dtype="<u8", count=samples + 1)
    if int(ends[0]) != 0 or int(ends[-1]) != blob_bytes or (ends[1:] < ends[:-1]).any():
        raise tail.fault("keys are not one behind the other", section.offset)


def _check_offsets(
    tail: Tail, schema: Schema, limits: Limits, dictionaries: dict[str, Dictionary]
) -> Layout:
    """Offsets are fully determined by the lengths and the alignment; nothing else passes.

    The extents sum to less than 2^64 (at most 2^27 samples fit a tail, each below 2^33), so
    equality modulo 2^64 with a right start and end is equality.
    """
    section = tail.sections[SectionKind.OFFSETS, 0]
    offsets = tail.array(SectionKind.OFFSETS, 0, "<u8")
    start, end = int(offsets[0]), int(offsets[-1])
    align = _implied_align(offsets)
    if start < HEAD_BYTES or not is_sample_align(align) or data_offset_of(align) != start:
        raise tail.fault(f"first record starts at byte {start}", section.offset)
    used = _used_bytes(tail, schema)
    if len(used) and int(used.max()) > limits.record_bytes:
        at = int(np.argmax(used))
        raise tail.fault(
            f"record {at} has {int(used[at])} bytes, the limit is {limits.record_bytes}",
            section.offset + 8 * at,
        )
    extents = (used + (align - 1)) & -align
    wrong = np.diff(offsets) != extents.astype(np.uint64)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise tail.fault(
            f"offsets give record {at} another length than its fields have",
            section.offset + 8 * at,
        )
    if align_up(end, SECTION_ALIGN) != tail.trailer.tail_offset:
        raise tail.fault(
            f"records end at byte {end}, the tail starts at {tail.trailer.tail_offset}",
            section.offset + 8 * (len(offsets) - 1),
        )
    padding = int((extents - used).max()) if len(used) else 0
    return Layout(offsets, align, padding, dictionaries)


def _implied_align(offsets: npt.NDArray[np.uint64]) -> int:
    """The largest alignment that the offsets allow.

    Above 64 the first offset tells it. Up to 64 it is the largest power of two dividing all
    offsets: if the writer's (smaller or equal) alignment explains every extent, so does this.
    """
    start = int(offsets[0])
    if start > HEAD_BYTES:
        return start
    bits = int(np.bitwise_or.reduce(offsets)) | HEAD_BYTES
    return bits & -bits


def _used_bytes(tail: Tail, schema: Schema) -> npt.NDArray[np.int64]:
    """int64 [samples], bytes of each record before its padding to the sample alignment."""
    used = np.zeros(tail.trailer.num_samples, np.int64)
    for place, field in enumerate(schema.fields):
        if field.is_column:
            continue
        used = (used + (FIELD_ALIGN - 1)) & -FIELD_ALIGN
        if field.has_lengths:
            used += tail.array(SectionKind.LENS, place, "<u4")
        else:
            used += field.fixed_bytes or 0
    return used

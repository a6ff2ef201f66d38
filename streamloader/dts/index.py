"""The index of a shard: checked views of its tail, and the records that they describe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from streamloader.dts.fields import Column, Field
from streamloader.dts.layout import FIELD_ALIGN, HEAD_BYTES, Head, SectionKind, byte_view, is_zero
from streamloader.dts.limits import DEFAULT_LIMITS, Limits
from streamloader.dts.naming import decode_key
from streamloader.dts.record_bytes import is_hashed_natively
from streamloader.dts.records import read_record
from streamloader.dts.row_source import RowPlaces, RowSource
from streamloader.dts.schema import Schema
from streamloader.dts.shard_table import ShardEntry
from streamloader.dts.strict_json import parse_json
from streamloader.dts.tail import Tail, parse_tail, parse_trailer
from streamloader.dts.tail_rules import Layout, check_entry, check_tail, parse_schema
from streamloader.dts.verify import Ranges, RecordFault, verify_records
from streamloader.dts.zstd import Dictionary
from streamloader.errors import ConfigError, ShardError

if TYPE_CHECKING:
    from typing_extensions import Buffer


class ShardIndex:
    """Everything a shard says about its records; made by `parse`, never changed.

    All arrays are read-only views of the tail, which stays alive with them.

    Attributes:
        name: of the shard, for errors.
        schema: of its records.
        num_samples: records in it.
        uuid: its identity, 16 bytes.
        file_bytes: its length.
        offsets: uint64 [num_samples + 1], start of each record and end of the last, in bytes
            from the start of the file.
        payload_end: end of the last record.
        tail_offset: start of the tail; between `payload_end` and it lie fewer than 64 zeros.
    """

    __slots__ = (
        "_dictionaries",
        "_hashes",
        "_key_ends",
        "_layout",
        "_lengths",
        "_raw_lengths",
        "_row_source",
        "_tail",
        "file_bytes",
        "name",
        "num_samples",
        "offsets",
        "payload_end",
        "schema",
        "tail_offset",
        "uuid",
    )

    def __init__(self, tail: Tail, schema: Schema, layout: Layout) -> None:
        self._tail = tail
        self._layout = layout
        self.name = tail.name
        self.schema = schema
        self.num_samples = tail.trailer.num_samples
        self.uuid = tail.trailer.uuid
        self.file_bytes = tail.trailer.file_bytes
        self.tail_offset = tail.trailer.tail_offset
        self.offsets: npt.NDArray[np.uint64] = layout.offsets
        self.payload_end = int(layout.offsets[-1])
        self._dictionaries = layout.dictionaries
        self._hashes: dict[str, npt.NDArray[np.uint64]] = {}
        self._lengths: dict[str, npt.NDArray[np.uint32]] = {}
        self._raw_lengths: dict[str, npt.NDArray[np.uint32]] = {}
        for place, field in enumerate(schema.fields):
            if field.is_column:
                continue
            self._hashes[field.name] = tail.array(SectionKind.HASHES, place, "<u8")
            if field.has_lengths:
                self._lengths[field.name] = tail.array(SectionKind.LENS, place, "<u4")
            if field.codec != "none":
                self._raw_lengths[field.name] = tail.array(SectionKind.RAWLENS, place, "<u4")
        self._row_source: RowSource | None = None
        self._key_ends: npt.NDArray[np.uint64] | None = None
        if (SectionKind.KEYS, 0) in tail.sections:
            self._key_ends = np.frombuffer(
                tail.content(SectionKind.KEYS), dtype="<u8", count=self.num_samples + 1
            )

    @staticmethod
    def tail_bytes(
        data: Buffer, file_bytes: int, name: str, limits: Limits = DEFAULT_LIMITS
    ) -> int:
        """Length of a shard's tail, from the end of the file (64 bytes are enough).

        Raises:
            ShardError: when `data` does not end with the trailer of a shard of `file_bytes`.
        """
        return parse_trailer(data, file_bytes, name, limits).tail_bytes

    @classmethod
    def parse(
        cls,
        tail: Buffer,
        *,
        name: str,
        file_bytes: int,
        entry: ShardEntry | None = None,
        schema: Schema | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> ShardIndex:
        """Check a tail by every rule of the format and give views of it.

        Args:
            tail: the end of the file, the tail or more of it.
            name: of the shard, for errors.
            file_bytes: length of the file as storage states it.
            entry: the manifest's line for this shard, checked against it.
            schema: what the manifest has for it, `Manifest.schema_of`, checked against its own.
            limits: bounds of the reader.

        Raises:
            ShardError: for the first rule that does not hold; nothing else is raised.
        """
        parsed = parse_tail(tail, file_bytes, name, limits)
        if entry is not None:
            check_entry(parsed, entry)
        own = parse_schema(parsed, limits)
        if schema is not None and schema != own:
            raise parsed.fault(
                "has another schema than the manifest states for it",
                parsed.sections[SectionKind.SCHEMA, 0].offset,
            )
        return cls(parsed, own, check_tail(parsed, own, limits))

    def check_head(self, head: Buffer) -> None:
        """Check that the head belongs to this tail.

        Args:
            head: the beginning of the file, 64 bytes or more; as far as it reaches, the
                padding up to the first record is checked too.

        Raises:
            ShardError: when head and tail are not of one shard.
        """
        parsed = Head.parse(head, self.name)
        if parsed.uuid != self.uuid:
            raise ShardError(
                "head and tail are of different shards: their uuids differ",
                shard=self.name,
                offset=16,
            )
        if parsed.minor != self._tail.trailer.minor:
            raise ShardError("head and tail state different versions", shard=self.name, offset=10)
        if not self._layout.fits(parsed.sample_align):
            raise ShardError(
                f"records are not aligned to {parsed.sample_align} as the head states",
                shard=self.name,
                offset=32,
            )
        if not is_zero(byte_view(head)[HEAD_BYTES : parsed.data_offset]):
            raise ShardError(
                "padding behind the head is not zero", shard=self.name, offset=HEAD_BYTES
            )

    @property
    def is_checked_natively(self) -> bool:
        """Whether ``verify_records`` takes no time of the interpreter for each record."""
        return is_hashed_natively(self.schema)

    def row_source(self, places: RowPlaces) -> RowSource:
        """What writes the rows of this shard's records; only if ``is_checked_natively``.

        The one for the last ``places`` is kept; they are compared by identity.
        """
        source = self._row_source
        if source is None or source.places is not places:
            source = self._row_source = RowSource(self, places)
        return source

    @property
    def data_offset(self) -> int:
        """Start of the first record."""
        return int(self.offsets[0])

    def column(self, name: str) -> npt.NDArray[Any]:
        """Values of a column, [num_samples, *shape]; bf16 as its 16 bits.

        Raises:
            ConfigError: when `name` is not a column of the schema.
        """
        column = self.column_named(name)
        raw = self._tail.content(SectionKind.COLUMN, column.column_id)
        values = np.frombuffer(raw, dtype=column.dtype)
        return values.reshape((self.num_samples, *column.shape))

    def column_named(self, name: str) -> Column:
        """Description of a column.

        Raises:
            ConfigError: when `name` is not a column of the schema.
        """
        for column in self.schema.columns:
            if column.name == name:
                return column
        names = ", ".join(c.name for c in self.schema.columns) or "none"
        raise ConfigError(f"no column {name!r} in {self.name}; its columns are {names}")

    def hashes(self, field: str) -> npt.NDArray[np.uint64]:
        """uint64 [num_samples], the schema's hash of the stored bytes of a payload field."""
        self._payload_field(field)
        return self._hashes[field]

    def lengths(self, field: str) -> npt.NDArray[np.uint32]:
        """uint32 [num_samples], stored bytes of a payload field."""
        found = self._lengths.get(field)
        if found is None:
            fixed = self._payload_field(field).fixed_bytes
            found = np.broadcast_to(np.uint32(fixed or 0), (self.num_samples,))
        return found

    def raw_lengths(self, field: str) -> npt.NDArray[np.uint32]:
        """uint32 [num_samples], bytes of a payload field after decompression.

        A value is compressed where this differs from `lengths`. `decompress` takes one of these
        beside the stored bytes.
        """
        found = self._raw_lengths.get(field)
        return self.lengths(field) if found is None else found

    def dictionary(self, field: str) -> Dictionary | None:
        """The zstd dictionary of a payload field in this shard, None when it has none."""
        self._payload_field(field)
        return self._dictionaries.get(field)

    def _payload_field(self, name: str) -> Field:
        for field in self.schema.payload_fields:
            if field.name == name:
                return field
        names = ", ".join(f.name for f in self.schema.payload_fields) or "none"
        raise ConfigError(f"no payload field {name!r} in {self.name}; it has {names}")

    def key(self, sample: int) -> str | None:
        """Key of a sample, None when it has none; bytes that are not UTF-8 come as surrogates."""
        self._check_range(sample, 1)
        if self._key_ends is None:
            return None
        start, end = int(self._key_ends[sample]), int(self._key_ends[sample + 1])
        at = 8 * (self.num_samples + 1)
        raw = self._tail.content(SectionKind.KEYS)[at + start : at + end]
        return decode_key(raw) if end > start else None

    @property
    def stats(self) -> dict[str, Any] | None:
        """Content of the STATS section, None when there is none."""
        section = self._tail.sections.get((SectionKind.STATS, 0))
        if section is None:
            return None
        value = parse_json(
            self._tail.content(SectionKind.STATS),
            shard=self.name,
            what="stats",
            max_depth=DEFAULT_LIMITS.json_depth,
            offset=section.offset,
        )
        if not isinstance(value, dict):
            raise self._tail.fault("stats are not a JSON object", section.offset)
        return value

    def record_ranges(self, first: int, count: int) -> Ranges:
        """Where every payload field lies in `count` records from `first` on.

        Returns:
            (offsets, lengths) by name of the field, int64 [count] each: absolute in the file,
            in bytes.

        Raises:
            ConfigError: when the samples are not all in the shard.
        """
        self._check_range(first, count)
        span = slice(first, first + count)
        starts = self.offsets[span].astype(np.int64)
        ranges: Ranges = {}
        used: npt.NDArray[np.int64] | int = 0
        for field in self.schema.payload_fields:
            used = (used + (FIELD_ALIGN - 1)) & -FIELD_ALIGN
            lengths = self.lengths(field.name)[span].astype(np.int64)
            ranges[field.name] = starts + used, lengths
            used = used + lengths
        return ranges

    def field_ranges(
        self, field: str, first: int, count: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Where a payload field lies in `count` records from `first` on.

        Returns:
            (offsets, lengths), as `record_ranges`.

        Raises:
            ConfigError: when the samples are not all in the shard, or the field is no payload.
        """
        self._payload_field(field)
        return self.record_ranges(first, count)[field]

    def verify_records(
        self, first: int, count: int, data: Buffer, base: int, ranges: Ranges | None = None
    ) -> list[RecordFault]:
        """Check records against their hashes, and their padding for zeros.

        Args:
            first: first record.
            count: number of records.
            data: bytes that hold them.
            base: offset in the file of ``data[0]``.
            ranges: of these records, if the caller has them from `record_ranges`.

        Returns:
            one fault for each field or padding that is wrong, in file order per field.

        Raises:
            ShardError: when `data` does not reach over the records.
            ConfigError: when the records are not all in the shard.
        """
        self._check_range(first, count)
        if ranges is None:
            ranges = self.record_ranges(first, count)
        return verify_records(self, first, count, data, base, ranges)

    def read_record(
        self, sample: int, data: Buffer, base: int, schema: Schema | None = None
    ) -> dict[str, Any]:
        """All declared fields of one record as values; hashes are not checked here.

        ``picture`` and ``bytes`` give bytes, ``utf8`` str, ``json`` its value, scalars Python
        numbers, arrays read-only ndarrays; bf16 the float32 of equal value.

        Args:
            sample: number of the record.
            data: bytes that hold it.
            base: offset in the file of ``data[0]``.
            schema: which fields to give, like `Manifest.schema`; those that this shard does not
                have come as their defaults. None: the shard's own.

        Raises:
            ShardError: when `data` does not hold the record or its bytes are not of its type.
            ConfigError: when there is no such record, a field of `schema` has another type or
                no default, or a compressed value is met without the zstd package.
        """
        self._check_range(sample, 1)
        return read_record(self, sample, data, base, schema)

    def _check_range(self, first: int, count: int) -> None:
        if count < 0 or not 0 <= first <= self.num_samples - count:
            raise ConfigError(
                f"records {first} to {first + count} are not all among the {self.num_samples} "
                f"of {self.name}"
            )

"""Writes a shard front to back: no seek, nothing held in memory but the index."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

import numpy.typing as npt

from streamloader.dts.compression import DEFAULT_LEVEL, Compressor
from streamloader.dts.fields import ELEMENT_DTYPES
from streamloader.dts.index_builder import IndexBuilder
from streamloader.dts.layout import (
    FIELD_ALIGN,
    HEAD_BYTES,
    SECTION_ALIGN,
    Head,
    align_up,
)
from streamloader.dts.limits import DEFAULT_LIMITS
from streamloader.dts.naming import encode_key
from streamloader.dts.packed import PackedJpegs, takes_packed
from streamloader.dts.picture_kind import UNREADABLE_KIND, PictureHeader, PictureHeaderError
from streamloader.dts.pictures import read_picture_header
from streamloader.dts.schema import Schema
from streamloader.dts.shard_summary import ShardSummary
from streamloader.dts.strict_json import canonical_json, check_json_value
from streamloader.dts.tail import pack_tail
from streamloader.dts.values import Encoder, encoder
from streamloader.dts.zstd import Dictionary
from streamloader.errors import ConfigError, ShardError

Sink = Callable[[bytes | memoryview], object]
"""Takes the next bytes of the file; what it returns is ignored."""


class _State(Enum):
    OPEN = "open"
    FINISHED = "finished"
    FAILED = "failed"


class ShardWriter:
    """Writes records to `sink` as they are added, and the index behind them.

    Args:
        schema: fields of every record.
        uuid: identity of the shard, 16 bytes; see `shard_uuid`.
        sink: called with the file's bytes, in order.
        sample_align: records start at multiples of this power of two, 1 to 4096.
        keys: store the key of each record.
        name: how errors call this shard.
        allow_unreadable_pictures: store pictures whose header cannot be read, with width,
            height and kind 0, instead of refusing them.
        zstd_level: 1 to 22, for fields with codec ``zstd``; a value that compression does not
            make a 16th smaller, or makes more than 1000 times smaller, is stored raw.
        dictionaries: zstd dictionaries by field, each stored in the shard. Different
            dictionaries of one field in a data set must have different ids, as trained ones do.
        sink_keeps: the sink may keep what it is given. A sink that is done with it before a value
            can change is given memoryviews of the values, which spares a copy of each.

    A record that is refused leaves nothing behind. When `sink` raises, the shard cannot be
    continued and further calls say so. Same records, same bytes: nothing of time or host is
    stored, though compressed bytes depend on the version of zstd. Not safe for use by several
    threads at once.

    Raises:
        ConfigError: for arguments that cannot work, and for a schema with compressed fields
            without the zstd package.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        uuid: bytes,
        sink: Sink,
        sample_align: int = 64,
        keys: bool = True,
        name: str = "new shard",
        allow_unreadable_pictures: bool = False,
        zstd_level: int = DEFAULT_LEVEL,
        dictionaries: Mapping[str, bytes] | None = None,
        sink_keeps: bool = True,
    ) -> None:
        self.schema = schema
        self._head = Head(uuid, sample_align)
        self._sink = sink
        self._name = name
        self._allow_unreadable = allow_unreadable_pictures
        self._sink_keeps = sink_keeps
        self._state = _State.OPEN
        self._digest = hashlib.sha256()
        self._index = IndexBuilder(schema, self._head.data_offset, keys=keys)
        self._at = 0
        self._columns = [(f.name, encoder(f)) for f in schema.fields if f.is_column]
        self._payload = [(f.name, encoder(f), f.type == "picture") for f in schema.payload_fields]
        self._dictionaries = _dictionaries(schema, dictionaries or {})
        self._compressors = [
            Compressor(f, zstd_level, self._dictionaries.get(f.name)) if f.codec == "zstd" else None
            for f in schema.payload_fields
        ]

    @property
    def num_samples(self) -> int:
        return self._index.num_samples

    @property
    def bytes_written(self) -> int:
        """Bytes given to the sink so far."""
        return self._at

    def add(
        self,
        record: Mapping[str, Any],
        key: str | None = None,
        headers: Mapping[str, PictureHeader] | None = None,
    ) -> None:
        """Append one record.

        Args:
            record: a value for each field of the schema, and nothing else.
            key: the sample's name; None or empty means none. Dropped if the shard has no keys.
            headers: of pictures, by field, where they were read already.

        Raises:
            ConfigError: for a missing or unknown field or a value that does not fit its type.
            ShardError: for a picture whose header cannot be read, or a record that is too long.
        """
        self._require_open()
        if len(record) != len(self.schema.fields):
            raise self._wrong_fields(record)
        columns = [self._encoded(record, name, encode) for name, encode in self._columns]
        raw = [self._encoded(record, name, encode) for name, encode, _ in self._payload]
        known = headers or {}
        read_headers = [
            self._header(name, data, known.get(name)) if is_picture else None
            for (name, _, is_picture), data in zip(self._payload, raw, strict=True)
        ]
        raw_key = encode_key(key) if key else b""
        payload = [
            data if compressor is None else compressor.stored(data)
            for data, compressor in zip(raw, self._compressors, strict=True)
        ]
        parts, used = self._lay_out(payload)
        extent = align_up(used, self._head.sample_align)
        if extent > used:
            parts.append(bytes(extent - used))
        self._write_head()
        for part in parts:
            # Only bytes are sure to stay as they are.
            keep = self._sink_keeps and type(part) is not bytes
            self._write(bytes(part) if keep else part)
        lengths = [len(data) for data in raw]
        self._index.add(columns, payload, lengths, read_headers, raw_key, extent)

    def add_packed(
        self, pictures: PackedJpegs, columns: Mapping[str, npt.NDArray[Any]], keys: Sequence[str]
    ) -> None:
        """Append records of one picture each; what ``add`` would have made of each of them.

        Args:
            pictures: at multiples of the shard's alignment; the sink is given a view of them.
            columns: values of the other fields by name, ``[n]`` each, in the field's type.
            keys: of the samples; empty for none.

        Raises:
            ConfigError: the schema is none for packed records, or columns do not fit it.
        """
        self._require_open()
        align, count = self._head.sample_align, len(pictures.lengths)
        misaligned = (pictures.offsets % align).any() or pictures.offsets[-1] != len(pictures.data)
        if not takes_packed(self.schema) or self._sink_keeps or misaligned:
            raise ConfigError(f"{self._name} takes no packed pictures; add them one by one")
        fields = [field for field in self.schema.fields if field.is_column]
        if columns.keys() != {f.name for f in fields} or len(keys) != count:
            raise ConfigError(f"packed pictures of {self._name} have other columns than the schema")
        stored = []
        for field in fields:
            values = columns[field.name]
            if values.dtype != ELEMENT_DTYPES[field.type] or values.shape != (count,):
                raise ConfigError(
                    f"packed pictures of {self._name}, column {field.name!r}: expected {count}"
                    f" values of {field.type}, got {values.shape} of {values.dtype}"
                )
            stored.append(values.tobytes())
        raw_keys = [encode_key(key) if key else b"" for key in keys]
        self._write_head()
        self._write(pictures.data)
        self._index.add_packed(stored, pictures, raw_keys)

    def finish(self, stats: Mapping[str, Any] | None = None) -> ShardSummary:
        """Write the index; the shard is complete when this returns.

        Args:
            stats: free JSON about the shard, stored in its STATS section.

        Raises:
            ShardError: when the shard or its tail is beyond the format's limits.
        """
        self._require_open()
        contents = self._index.sections(_packed_stats(stats), self._dictionaries)
        self._write_head()
        end = self._index.end
        tail_offset = align_up(end, SECTION_ALIGN)
        tail = pack_tail(
            contents,
            tail_offset=tail_offset,
            num_samples=self.num_samples,
            uuid=self._head.uuid,
        )
        file_bytes = tail_offset + len(tail)
        if len(tail) > DEFAULT_LIMITS.tail_bytes or file_bytes > DEFAULT_LIMITS.file_bytes:
            raise ShardError(
                f"{file_bytes} bytes with a tail of {len(tail)} are more than a shard can have; "
                "make smaller shards",
                shard=self._name,
            )
        self._write(bytes(tail_offset - end))
        self._write(tail)
        self._state = _State.FINISHED
        return ShardSummary(
            bytes=file_bytes,
            samples=self.num_samples,
            tail_bytes=len(tail),
            uuid=self._head.uuid,
            tail_crc32=zlib.crc32(tail),
            sha256=self._digest.hexdigest(),
            offsets=self._index.offsets,
            max_record_bytes=self._index.max_record_bytes,
        )

    def _require_open(self) -> None:
        if self._state is not _State.OPEN:
            raise ConfigError(f"{self._name} is {self._state.value}; make a new ShardWriter")

    def _wrong_fields(self, record: Mapping[str, Any]) -> ConfigError:
        names = {f.name for f in self.schema.fields}
        missing = sorted(names - set(record))
        unknown = sorted(set(map(str, record)) - names)
        return ConfigError(
            f"record {self.num_samples} of {self._name} lacks {missing} and has unknown {unknown}"
        )

    def _encoded(self, record: Mapping[str, Any], name: str, encode: Encoder) -> bytes | memoryview:
        try:
            value = record[name]
        except KeyError:
            raise self._wrong_fields(record) from None
        try:
            return encode(value)
        except ConfigError as exc:
            raise ConfigError(
                f"record {self.num_samples} of {self._name}, field {name!r}: {exc}"
            ) from exc

    def _header(
        self, name: str, data: bytes | memoryview, known: PictureHeader | None
    ) -> tuple[int, int, int]:
        try:
            header = known or read_picture_header(data)
        except PictureHeaderError as exc:
            if self._allow_unreadable:
                return 0, 0, UNREADABLE_KIND
            raise ShardError(
                f"record {self.num_samples}, picture {name!r}: {exc.reason}",
                shard=self._name,
                offset=self._index.end,
            ) from exc
        return header.width, header.height, header.kind

    def _lay_out(self, payload: list[bytes | memoryview]) -> tuple[list[bytes | memoryview], int]:
        """Parts of a record in file order, fields at multiples of 64, and its used bytes."""
        parts: list[bytes | memoryview] = []
        used = 0
        for data in payload:
            start = align_up(used, FIELD_ALIGN)
            if start > used:
                parts.append(bytes(start - used))
            parts.append(data)
            used = start + len(data)
        if used > DEFAULT_LIMITS.record_bytes:
            raise ShardError(
                f"record {self.num_samples} has {used} bytes, more than "
                f"{DEFAULT_LIMITS.record_bytes}",
                shard=self._name,
                offset=self._index.end,
            )
        return parts, used

    def _write_head(self) -> None:
        if self._at == 0:
            self._write(self._head.pack() + bytes(self._head.data_offset - HEAD_BYTES))

    def _write(self, data: bytes | memoryview) -> None:
        if not data:
            return
        try:
            self._sink(data)
        except BaseException:
            self._state = _State.FAILED
            raise
        self._digest.update(data)
        self._at += len(data)


def _packed_stats(stats: Mapping[str, Any] | None) -> bytes | None:
    if stats is None:
        return None
    check_json_value(stats, DEFAULT_LIMITS.json_depth)
    data = canonical_json(dict(stats))
    if len(data) > DEFAULT_LIMITS.schema_bytes:
        raise ConfigError(f"stats of {len(data)} bytes are more than {DEFAULT_LIMITS.schema_bytes}")
    return data


def _dictionaries(schema: Schema, given: Mapping[str, bytes]) -> dict[str, Dictionary]:
    dictionaries: dict[str, Dictionary] = {}
    for name, data in given.items():
        if schema.field(name).codec != "zstd":
            raise ConfigError(f"field {name!r} has a dictionary and is not of codec 'zstd'")
        try:
            dictionaries[name] = Dictionary(bytes(data))
        except ConfigError as exc:
            raise ConfigError(f"field {name!r}: {exc}") from exc
    return dictionaries

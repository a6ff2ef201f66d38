"""The index of a shard while it is written: what becomes the sections of its tail."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from streamloader.dts.fields import Field
from streamloader.dts.hashes import hash_function
from streamloader.dts.layout import SectionKind
from streamloader.dts.packed import PackedJpegs
from streamloader.dts.schema import PICTURE_COLUMNS, Schema
from streamloader.dts.tail import SectionContent
from streamloader.dts.zstd import Dictionary

if TYPE_CHECKING:
    from typing_extensions import Buffer

_COLUMN_CODES = {"u4": "I", "u2": "H"}


class _PayloadIndex:
    """Hashes, lengths and picture headers of one payload field."""

    __slots__ = ("field_id", "hashes", "headers", "lengths", "raw_lengths")

    def __init__(self, field_id: int, field: Field) -> None:
        self.field_id = field_id
        self.hashes = array("Q")
        self.lengths = array("I") if field.has_lengths else None
        self.raw_lengths = array("I") if field.codec != "none" else None
        codes = [_COLUMN_CODES[kind] for _, kind in PICTURE_COLUMNS]
        self.headers = [array(code) for code in codes if field.type == "picture"]


class IndexBuilder:
    """Collects the index, about 30 bytes a record beside keys and columns.

    Args:
        schema: of the records.
        data_offset: where the first record starts.
        keys: whether keys are kept.
    """

    def __init__(self, schema: Schema, data_offset: int, *, keys: bool) -> None:
        self.max_record_bytes = 0
        self._schema = schema
        self._digest = hash_function(schema.hash)
        self._offsets = array("Q", [data_offset])
        self._key_ends = array("Q", [0]) if keys else None
        self._key_data = bytearray()
        self._columns = [bytearray() for field in schema.fields if field.is_column]
        self._payload = [
            _PayloadIndex(place, field)
            for place, field in enumerate(schema.fields)
            if not field.is_column
        ]

    @property
    def num_samples(self) -> int:
        return len(self._offsets) - 1

    @property
    def end(self) -> int:
        """Where the last record ends, in bytes from the start of the file."""
        return self._offsets[-1]

    @property
    def offsets(self) -> npt.NDArray[np.uint64]:
        """uint64 [num_samples + 1], a copy."""
        return np.array(self._offsets, dtype=np.uint64)

    def add(
        self,
        columns: Sequence[bytes | memoryview],
        payload: Sequence[bytes | memoryview],
        raw_lengths: Sequence[int],
        headers: Sequence[tuple[int, int, int] | None],
        key: bytes,
        extent: int,
    ) -> None:
        """Take in a record that was written.

        Args:
            columns: stored values of the declared columns, in schema order.
            payload: stored bytes of the payload fields, in schema order.
            raw_lengths: their lengths before compression.
            headers: width, height and kind for each payload field that is a picture.
            key: stored bytes, empty for none.
            extent: the record's length with its padding.
        """
        self._offsets.append(self._offsets[-1] + extent)
        self.max_record_bytes = max(self.max_record_bytes, extent)
        for column, value in zip(self._columns, columns, strict=True):
            column += value
        fields = zip(self._payload, payload, raw_lengths, headers, strict=True)
        for index, data, raw_length, header in fields:
            index.hashes.append(self._digest(data))
            if index.lengths is not None:
                index.lengths.append(len(data))
            if index.raw_lengths is not None:
                index.raw_lengths.append(raw_length)
            for values, number in zip(index.headers, header or (), strict=True):
                values.append(number)
        if self._key_ends is not None:
            self._key_data += key
            self._key_ends.append(len(self._key_data))

    def add_packed(
        self, columns: Sequence[bytes], pictures: PackedJpegs, keys: Sequence[bytes]
    ) -> None:
        """Take in records of one picture each that were written.

        Args:
            columns: stored values of the declared columns of all of them, in schema order.
            pictures: of the records.
            keys: stored bytes of each, empty for none.
        """
        start = np.uint64(self._offsets[-1])
        self._offsets.frombytes((pictures.offsets[1:].astype(np.uint64) + start).tobytes())
        self.max_record_bytes = max(self.max_record_bytes, int(np.diff(pictures.offsets).max()))
        for column, values in zip(self._columns, columns, strict=True):
            column += values
        (index,) = self._payload
        index.hashes.frombytes(pictures.hashes.tobytes())
        if index.lengths is not None:
            index.lengths.frombytes(pictures.lengths.astype(np.uint32).tobytes())
        headers: tuple[npt.NDArray[Any], ...] = (pictures.widths, pictures.heights, pictures.kinds)
        for target, found in zip(index.headers, headers, strict=True):
            target.frombytes(found.tobytes())
        if self._key_ends is not None:
            ends = np.cumsum([len(self._key_data), *map(len, keys)])[1:]
            self._key_ends.frombytes(ends.astype(np.uint64).tobytes())
            self._key_data += b"".join(keys)

    def sections(
        self, stats: bytes | None, dictionaries: Mapping[str, Dictionary]
    ) -> list[SectionContent]:
        """Sections in file order: what opening needs first lies nearest the end.

        Args:
            stats: packed, None for none.
            dictionaries: by the name of their field.
        """
        contents = [*self._payload_sections(), *self._dictionary_sections(dictionaries)]
        kind = SectionKind
        if self._key_ends is not None:
            keys = b"".join((_stored(self._key_ends, "<u8"), self._key_data))
            contents.append(SectionContent(kind.KEYS, 0, keys))
        contents.append(SectionContent(kind.OFFSETS, 0, _stored(self._offsets, "<u8")))
        contents += self._column_sections()
        if stats is not None:
            contents.append(SectionContent(kind.STATS, 0, stats))
        contents.append(SectionContent(kind.SCHEMA, 0, self._schema.to_json()))
        return contents

    def _payload_sections(self) -> list[SectionContent]:
        kind = SectionKind
        contents = [
            SectionContent(kind.HASHES, index.field_id, _stored(index.hashes, "<u8"))
            for index in self._payload
        ]
        contents += [
            SectionContent(kind.LENS, index.field_id, _stored(index.lengths, "<u4"))
            for index in self._payload
            if index.lengths is not None
        ]
        contents += [
            SectionContent(kind.RAWLENS, index.field_id, _stored(index.raw_lengths, "<u4"))
            for index in self._payload
            if index.raw_lengths is not None
        ]
        return contents

    def _dictionary_sections(self, dictionaries: Mapping[str, Dictionary]) -> list[SectionContent]:
        return [
            SectionContent(SectionKind.ZDICT, place, dictionaries[field.name].data)
            for place, field in enumerate(self._schema.fields)
            if field.name in dictionaries
        ]

    def _column_sections(self) -> list[SectionContent]:
        headers = [values for index in self._payload for values in index.headers]
        data: list[Buffer] = [
            *self._columns,
            *(_stored(values, "<u2" if values.itemsize == 2 else "<u4") for values in headers),
        ]
        return [
            SectionContent(SectionKind.COLUMN, column.column_id, values)
            for column, values in zip(self._schema.columns, data, strict=True)
        ]


def _stored(values: array[int], dtype: str) -> memoryview:
    """The values as they lie in the file, little-endian."""
    array_view: npt.NDArray[Any] = np.frombuffer(values, dtype=values.typecode)
    return array_view.astype(dtype).data

"""Bytes that are not stored as they are used: compressed values, and fields a shard lacks.

They are written behind the piece's stored bytes when it arrives, so whoever reads a row finds
raw bytes at its offset and need not know.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamloader.dts import (
    ELEMENT_DTYPES,
    Field,
    Schema,
    ShardIndex,
    decompress_into,
    default_bytes,
)
from streamloader.errors import ShardError
from streamloader.fetch.arena import ALIGN_BYTES, aligned
from streamloader.fetch.rows import BAD_LENGTH


@dataclass(frozen=True, slots=True)
class Expander:
    """Writes what a piece needs beyond its stored bytes.

    Attributes:
        compressed: payload fields that may be compressed.
        payload, columns: fields that some shard may lack, with their defaults.
    """

    compressed: tuple[Field, ...]
    payload: dict[str, bytes]
    columns: dict[str, npt.NDArray[Any]]

    @staticmethod
    def of(schemas: tuple[Schema, ...], union: Schema) -> Expander:
        """For a data set whose shards have these schemas."""
        lacking = {
            field.name
            for field in union.fields
            if any(field.name not in {f.name for f in schema.fields} for schema in schemas)
        }
        fields = [field for field in union.fields if field.name in lacking]
        return Expander(
            compressed=tuple(f for f in union.payload_fields if f.codec != "none"),
            payload={f.name: default_bytes(f) for f in fields if not f.is_column},
            columns={f.name: _default_element(f) for f in fields if f.is_column},
        )

    def __bool__(self) -> bool:
        return bool(self.compressed or self.payload or self.columns)

    def room(self, index: ShardIndex, first: int, count: int) -> int:
        """Bytes that ``write`` takes at most for some samples of a shard."""
        names = {field.name for field in index.schema.payload_fields}
        nbytes = sum(aligned(len(d)) for name, d in self.payload.items() if name not in names)
        for field in self.compressed:
            if field.name in names:
                raw = index.raw_lengths(field.name)[first : first + count].astype(np.int64)
                nbytes += int(raw.sum()) + count * ALIGN_BYTES
        return nbytes

    def write(
        self,
        memory: npt.NDArray[np.uint8],
        base: int,
        rows: npt.NDArray[np.void],
        index: ShardIndex,
        first: int,
    ) -> tuple[int, dict[int, str]]:
        """Completes the rows of some samples of one shard, with new bytes from ``base`` on.

        Returns:
            Where the next bytes may go, and reasons by row of values that do not decompress.
        """
        names = {field.name for field in index.schema.fields}
        for name, value in self.columns.items():
            if name not in names:
                rows[name] = value
        for name, data in self.payload.items():
            if name not in names:
                memory[base : base + len(data)] = np.frombuffer(data, np.uint8)
                rows[f"{name}@offset"] = base
                rows[f"{name}@length"] = len(data)
                base += aligned(len(data))
        faults: dict[int, str] = {}
        for field in self.compressed:
            if field.name in names:
                base = _decompress(field, memory, base, rows, index, first, faults)
        return base, faults


def _default_element(field: Field) -> npt.NDArray[Any]:
    stored = np.frombuffer(default_bytes(field), ELEMENT_DTYPES[field.type])
    return stored.reshape(field.shape)


def _decompress(
    field: Field,
    memory: npt.NDArray[np.uint8],
    base: int,
    rows: npt.NDArray[np.void],
    index: ShardIndex,
    first: int,
    faults: dict[int, str],
) -> int:
    raw_lengths = index.raw_lengths(field.name)[first : first + len(rows)].astype(np.int64)
    lengths = rows[f"{field.name}@length"]
    offsets = rows[f"{field.name}@offset"]
    dictionary = index.dictionary(field.name)
    for row in np.flatnonzero((raw_lengths != lengths) & (lengths != BAD_LENGTH)).tolist():
        start, raw = int(offsets[row]), int(raw_lengths[row])
        stored = memory[start : start + int(lengths[row])].data
        out = memory[base : base + raw].data
        try:
            decompress_into(field, stored, out, dictionary=dictionary, shard=index.name)
        except ShardError as error:
            faults[row] = error.reason
            lengths[row] = BAD_LENGTH
            continue
        offsets[row], lengths[row] = base, raw
        base += aligned(raw)
    return base

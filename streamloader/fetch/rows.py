"""What is known of each sample whose block is in memory, as rows of one fixed layout.

The rows of a piece are stored in the arena beside its bytes. A batch then collects its rows
with one gather, whatever pieces they lie in, and no Python object exists per sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamloader.dts import Ranges, RowPlaces, Schema, ShardIndex

BAD_LENGTH = -1


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Layout of one row: where each payload field lies, and the value of each column.

    ``dtype`` has for each payload field ``f`` the int64 members ``f@offset`` (byte offset
    in the arena) and ``f@length`` (bytes; -1 marks a sample that failed its checksum), and
    one member per column under the column's own name.
    """

    dtype: np.dtype[np.void]
    payload: tuple[str, ...]
    columns: tuple[str, ...]

    @staticmethod
    def of(schema: Schema) -> RowLayout:
        payload = tuple(field.name for field in schema.payload_fields)
        members: list[tuple[str, str, tuple[int, ...]]] = []
        for name in payload:
            members += [(f"{name}@offset", "<i8", ()), (f"{name}@length", "<i8", ())]
        for column in schema.columns:
            members.append((column.name, column.dtype.str, tuple(column.shape)))
        itemsize = sum(
            np.dtype(kind).itemsize * int(np.prod(shape, dtype=np.int64))
            for _, kind, shape in members
        )
        padding = -itemsize % 8
        if padding or not members:
            members.append(("@pad", "u1", (padding or 8,)))
        columns = tuple(column.name for column in schema.columns)
        return RowLayout(np.dtype(members), payload, columns)

    @property
    def stride(self) -> int:
        """Bytes of one row."""
        return self.dtype.itemsize

    def places(self) -> RowPlaces:
        """Where in a row each value stands, for ``ShardIndex.row_source``."""
        members: Mapping[str, Any] = self.dtype.fields or {}
        return RowPlaces(
            {name: members[f"{name}@offset"][1] for name in self.payload},
            {name: members[name][1] for name in self.columns},
            self.stride,
        )

    def fill(
        self,
        rows: npt.NDArray[np.void],
        index: ShardIndex,
        first: int,
        shift: int,
        ranges: Ranges,
    ) -> None:
        """Writes the rows of ``len(rows)`` samples of one shard from ``first`` on.

        Args:
            shift: arena offset minus file offset of the bytes that hold them.
            ranges: of these samples, from ``index.record_ranges``.

        Fields that the shard lacks are left to ``Expander.write``.
        """
        for name, (offsets, lengths) in ranges.items():
            rows[f"{name}@offset"] = offsets + shift
            rows[f"{name}@length"] = lengths
        held = {column.name for column in index.schema.columns}
        for name in self.columns:
            if name in held:
                rows[name] = index.column(name)[first : first + len(rows)]

"""What native code needs to write the records of a shard as rows of one fixed layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from streamloader.dts.layout import FIELD_ALIGN
from streamloader.dts.native_kernel import ffi, lib
from streamloader.dts.record_bytes import HASHES_NATIVELY

if TYPE_CHECKING:
    from streamloader.dts.index import ShardIndex

TAKE_RECORDS_ADDRESS: int = (
    int(ffi.cast("uintptr_t", ffi.addressof(lib, "sl_take_records"))) if HASHES_NATIVELY else 0
)
"""Of ``sl_take_records`` in ``native/records.h``, for native code elsewhere; 0 if there is none."""


@dataclass(frozen=True, slots=True, eq=False)
class RowPlaces:
    """Where in a row the values of a record go.

    Attributes:
        payload: of each payload field the byte at which its offset stands (int64, counted in the
            memory that has rows and records); its length (int64) stands behind it.
        columns: of each column the byte at which its value stands.
        stride: bytes of a row.
    """

    payload: dict[str, int]
    columns: dict[str, int]
    stride: int


class RowSource:
    """What a shard says of its records, in a form that native code reads.

    Args:
        index: of the shard; one whose ``is_checked_natively`` is true.
        places: of rows that have every field of the shard.
    """

    __slots__ = ("_kept", "_source", "places")

    def __init__(self, index: ShardIndex, places: RowPlaces) -> None:
        self.places = places
        self._kept: list[Any] = []
        names = [field.name for field in index.schema.payload_fields]
        fields = ffi.new("sl_row_field[]", len(names))
        for field, described in zip(fields, index.schema.payload_fields, strict=True):
            if described.has_lengths:
                field.lengths = self._pointer("uint32_t *", index.lengths(described.name))
            field.fixed = described.fixed_bytes or 0
            field.hashes = self._pointer("uint64_t *", index.hashes(described.name))
            field.place = places.payload[described.name]
        columns = ffi.new("sl_row_column[]", len(index.schema.columns))
        for column, described_column in zip(columns, index.schema.columns, strict=True):
            values = index.column(described_column.name)
            column.values = self._pointer("uint8_t *", values)
            column.nbytes = values.nbytes // max(1, len(values))
            column.place = places.columns[described_column.name]
        self._kept += [fields, columns]
        self._source = ffi.new("sl_row_source *")
        self._source.offsets = self._pointer("uint64_t *", index.offsets)
        self._source.num_samples = index.num_samples
        self._source.align = FIELD_ALIGN
        self._source.num_fields, self._source.fields = len(names), fields
        self._source.num_columns, self._source.columns = len(columns), columns

    @property
    def address(self) -> int:
        """Of the ``sl_row_source``, valid as long as this object."""
        return int(ffi.cast("uintptr_t", self._source))

    def take(
        self,
        first: int,
        count: int,
        memory: npt.NDArray[np.uint8],
        at: int,
        rows: int,
        *,
        verify: bool,
    ) -> bool:
        """Writes the rows of ``count`` records from ``first`` on, of which the bytes lie at ``at``.

        Args:
            memory: uint8 [n], has the records and gets the rows.
            rows: where in ``memory`` the first row goes.
            verify: check the records' hashes and padding too.

        Returns:
            Whether nothing is wrong. If something is, ``ShardIndex.verify_records`` tells what, and
            the rows are of no use.
        """
        good = lib.sl_take_records(
            self._source,
            first,
            count,
            ffi.from_buffer("uint8_t[]", memory, require_writable=True),
            len(memory),
            at,
            rows,
            self.places.stride,
            verify,
        )
        return bool(good == 1)

    def _pointer(self, kind: str, array: npt.NDArray[Any]) -> Any:
        kept = np.ascontiguousarray(array)
        self._kept.append(kept)
        return ffi.cast(kind, kept.ctypes.data)

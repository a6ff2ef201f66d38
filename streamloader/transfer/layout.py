"""Where every field of a batch lies inside one slot.

The same layout holds on the host and on the device, so that one contiguous copy moves a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from streamloader.errors import ConfigError

ALIGNMENT_BYTES = 256
GUARD_BYTES = 16
PAGE_BYTES = 4096

_TORCH_ITEM_BYTES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "uint16": 2,
    "int16": 2,
    "float16": 2,
    "bfloat16": 2,
    "uint32": 4,
    "int32": 4,
    "float32": 4,
    "uint64": 8,
    "int64": 8,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One field of a batch, with rows of a fixed size.

    Args:
        name: key of the field in a batch.
        dtype: NumPy dtype of the stored elements, in native byte order ("uint8", "int64", "bool").
            Kept as its canonical name.
        shape: shape of one row; ``()`` for one number a row.
        torch_dtype: name of the torch dtype of the same size that the bytes stand for, where NumPy
            has no such type: bfloat16 is ``FieldSpec(name, "uint16", shape, "bfloat16")``. None:
            the torch dtype with NumPy's name.

    Raises:
        ConfigError: the field cannot be laid out.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] = ()
    torch_dtype: str | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("a field of a slot needs a name, got ''")
        object.__setattr__(self, "dtype", self._canonical_dtype())
        shape = tuple(int(extent) for extent in self.shape)
        if any(extent < 1 for extent in shape):
            raise ConfigError(
                f"field {self.name!r}: every extent of a row must be >= 1, got {self.shape}"
            )
        object.__setattr__(self, "shape", shape)
        item_bytes = _TORCH_ITEM_BYTES.get(self.torch_name)
        if item_bytes != np.dtype(self.dtype).itemsize:
            raise ConfigError(
                f"field {self.name!r}: torch_dtype must be a torch dtype as wide as {self.dtype}, "
                f"got {self.torch_name!r}"
            )

    def _canonical_dtype(self) -> str:
        try:
            dtype = np.dtype(self.dtype)
        except TypeError as error:
            raise ConfigError(
                f"field {self.name!r}: NumPy does not know dtype {self.dtype!r}; carry it as an "
                "unsigned integer of its width and name it in torch_dtype"
            ) from error
        if dtype.kind not in "biufc" or not dtype.isnative:
            raise ConfigError(
                f"field {self.name!r}: dtype must be a bool or number in native byte order, "
                f"got {self.dtype!r}"
            )
        return dtype.name

    @property
    def torch_name(self) -> str:
        """Name of the torch dtype that the bytes stand for."""
        return self.torch_dtype or self.dtype

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class Region:
    """The bytes of one field in a slot: rows one after the other, no gap between them."""

    field: FieldSpec
    offset: int
    nbytes: int

    @property
    def end(self) -> int:
        """Offset of the first byte behind the last row."""
        return self.offset + self.nbytes


@dataclass(frozen=True, slots=True)
class SlotLayout:
    """The regions of a slot, made by :meth:`build`.

    Regions start at multiples of 256 bytes and are followed by at least 16 bytes that belong to
    nobody, so that a native decoder may finish a row with a whole vector store. The field with the
    largest rows (the pictures) comes last: a short batch is then a shorter copy.

    Attributes:
        batch_size: rows of a full batch.
        fields: the fields in the caller's order.
        regions: one for each field, by offset.
        nbytes: bytes a slot needs, guards included.
    """

    batch_size: int
    fields: tuple[FieldSpec, ...]
    regions: tuple[Region, ...]
    nbytes: int

    @classmethod
    def build(
        cls, fields: Sequence[FieldSpec], batch_size: int, *, last: Sequence[FieldSpec] = ()
    ) -> SlotLayout:
        """Lays out ``fields`` for ``batch_size`` rows.

        Args:
            last: further fields, which lie behind all others whatever their size.

        Raises:
            ConfigError: no field, a name given twice, or a batch size below 1.
        """
        names = [field.name for field in (*fields, *last)]
        if not names or len(set(names)) != len(names):
            raise ConfigError(f"a slot needs at least one field and each name once, got {names}")
        if batch_size < 1:
            raise ConfigError(f"batch_size must be >= 1, got {batch_size}")
        regions = []
        offset = 0
        for field in (*sorted(fields, key=lambda field: field.row_bytes), *last):
            region = Region(field, offset, field.row_bytes * batch_size)
            regions.append(region)
            offset = _round_up(region.end + GUARD_BYTES, ALIGNMENT_BYTES)
        return cls(batch_size, (*fields, *last), tuple(regions), offset)

    @property
    def stride_bytes(self) -> int:
        """``nbytes`` rounded up to whole 4,096-byte pages: what to allocate for a slot."""
        return _round_up(self.nbytes, PAGE_BYTES)

    def checked_rows(self, rows: int | None) -> int:
        """``rows``, or ``batch_size`` for None.

        Raises:
            ValueError: not within 0 and ``batch_size``.
        """
        if rows is None:
            return self.batch_size
        if not 0 <= rows <= self.batch_size:
            raise ValueError(f"rows must be within 0 and {self.batch_size}, got {rows}")
        return rows

    def used_bytes(self, rows: int) -> int:
        """Bytes from the start of the slot that hold everything of its first ``rows`` rows."""
        if self.checked_rows(rows) == 0:
            return 0
        last = self.regions[-1]
        return last.offset + rows * last.field.row_bytes

    def views(
        self, buffer: NDArray[np.uint8] | bytearray | memoryview, rows: int | None = None
    ) -> dict[str, np.ndarray]:
        """Arrays that look into ``buffer``, one for each field, in the caller's order.

        Args:
            buffer: at least ``nbytes`` bytes; an array must be uint8 ``[n]`` and contiguous. The
                views keep it alive.
            rows: how many rows the views show; None shows all ``batch_size``.

        Returns:
            field name -> array ``[rows, *shape]`` of the field's NumPy dtype.

        Raises:
            ValueError: the buffer is too small or not plain bytes.
        """
        flat = buffer if isinstance(buffer, np.ndarray) else np.frombuffer(buffer, np.uint8)
        if flat.dtype != np.uint8 or flat.ndim != 1 or not flat.flags.c_contiguous:
            raise ValueError(
                f"a slot buffer must be contiguous uint8 [n], got {flat.dtype} {flat.shape}"
            )
        if flat.size < self.nbytes:
            raise ValueError(f"this layout needs {self.nbytes} bytes, the buffer has {flat.size}")
        shown = self.checked_rows(rows)
        by_name = {region.field.name: region for region in self.regions}
        views = {}
        for field in self.fields:
            region = by_name[field.name]
            packed = flat[region.offset : region.end].view(field.dtype)
            views[field.name] = packed.reshape(self.batch_size, *field.shape)[:shown]
        return views

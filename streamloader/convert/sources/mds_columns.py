"""The column encodings of MDS, and which field each becomes."""

from __future__ import annotations

import io
import itertools
import json
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from PIL import Image

from streamloader.dts import Field
from streamloader.errors import ConfigError

_SCALARS = {
    "int": "i8",
    "uint8": "u1",
    "uint16": "u2",
    "uint32": "u4",
    "uint64": "u8",
    "int8": "i1",
    "int16": "i2",
    "int32": "i4",
    "int64": "i8",
    "float16": "f2",
    "float32": "f4",
    "float64": "f8",
}
_ELEMENTS = {name: code for name, code in _SCALARS.items() if name != "int"}
_SHAPE_DTYPES = ("<u1", "<u2", "<u4", "<u8")
_MAX_DIMENSIONS = 8

Read = Callable[[bytes], Any]


@dataclass(frozen=True, slots=True)
class MdsColumn:
    """One column.

    Args:
        name: of the column, and of its field; those of a list are ``name_0``, ``name_1``, …
        encoding: as the index says.
        size: bytes of each value; None where they differ.
        type: of the field, or of each field of a list.
        shape: of the field.
        pictures: of a list, how many every sample has; 0 until that is known.
    """

    name: str
    encoding: str
    size: int | None
    type: str
    shape: tuple[int, ...] = ()
    pictures: int = 0

    @property
    def is_list(self) -> bool:
        """Whether a value is a list of pictures."""
        return self.encoding in _LISTS

    @property
    def fields(self) -> tuple[Field, ...]:
        """What the column becomes."""
        if not self.is_list:
            return (Field(self.name, self.type, self.shape),)
        return tuple(Field(f"{self.name}_{n}", self.type) for n in range(self.pictures))

    def counted(self, counts: set[int]) -> Self:
        """Return the column with the number of pictures that its lists have.

        Raises:
            ConfigError: these are several numbers, or none.
        """
        if len(counts) != 1 or not min(counts):
            raise ConfigError(
                f"the lists of the column {self.name!r} have"
                f" {', '.join(map(str, sorted(counts))) or 'no'} pictures; a field holds one, so"
                " every sample needs the same number; write the lists at one length, or the"
                " pictures as samples of their own"
            )
        return replace(self, pictures=min(counts))

    def values(self, data: bytes) -> dict[str, Any]:
        """Return the value of each field. Raises ValueError where the bytes have none."""
        if not self.is_list:
            return {self.name: self._read(data)}
        parts = self.divided(data)
        if len(parts) != self.pictures:
            raise ValueError(f"{len(parts)} pictures, others have {self.pictures}")
        read = _READERS[_LISTS[self.encoding]]
        return {f"{self.name}_{n}": read(part) for n, part in enumerate(parts)}

    def divided(self, data: bytes) -> list[bytes]:
        """Return the pictures of a list: their number, their sizes, then they themselves."""
        # Lists proper begin with four bytes that are reserved.
        start = 4 if self.encoding.startswith("list[") else 0
        (count,) = struct.unpack_from("<I", data, start)
        at = start + 4 + 4 * count
        if at > len(data):
            raise ValueError(f"{count} pictures do not fit into {len(data)} bytes")
        sizes = np.frombuffer(data, "<u4", count, start + 4).tolist()
        if at + sum(sizes) != len(data):
            raise ValueError(f"its pictures have {sum(sizes)} bytes, the list {len(data) - at}")
        ends = np.cumsum([at, *sizes]).tolist()
        return [data[first:last] for first, last in itertools.pairwise(ends)]

    def _read(self, data: bytes) -> Any:
        kind, _, arguments = self.encoding.partition(":")
        if kind == "ndarray":
            return _read_array(data, self.type, self.shape, fixed=arguments.count(":") == 1)
        if self.type in _ELEMENTS.values() and kind in _SCALARS:
            return np.frombuffer(data, f"<{self.type}", 1)[0]
        return _READERS[kind](data)


def parse_column(name: str, encoding: str, size: int | None) -> MdsColumn:
    """Return the column that an index describes.

    Raises:
        ConfigError: an encoding that is not read.
    """
    kind, _, arguments = encoding.partition(":")
    if kind == "pkl":
        raise ConfigError(
            f"the column {name!r} holds pickles, which run whatever program they hold when they"
            " are read; write the data set anew without them"
        )
    if kind == "ndarray":
        return _array_column(name, encoding, arguments, size)
    if kind in _SCALARS and not arguments:
        return MdsColumn(name, encoding, size, _SCALARS[kind])
    if kind in _TYPES and not arguments:
        return MdsColumn(name, encoding, size, _TYPES[kind])
    if encoding in _LISTS:
        return MdsColumn(name, encoding, size, "picture")
    known = ", ".join(sorted([*_SCALARS, *_TYPES, *_LISTS, "ndarray:<type>"]))
    raise ConfigError(f"the column {name!r} has the encoding {encoding!r}; read are {known}")


def _array_column(name: str, encoding: str, arguments: str, size: int | None) -> MdsColumn:
    dtype, _, shape = arguments.partition(":")
    if dtype not in _ELEMENTS:
        raise ConfigError(
            f"the column {name!r} holds arrays whose type differs from sample to sample"
            f" ({encoding}); a field has one type, so write it as ndarray:<type>"
        )
    if not shape:
        return MdsColumn(name, encoding, size, _ELEMENTS[dtype], (-1,))
    sizes = tuple(int(part) for part in shape.split(","))
    return MdsColumn(name, encoding, size, _ELEMENTS[dtype], sizes)


def _read_array(
    data: bytes, element: str, shape: tuple[int, ...], *, fixed: bool
) -> npt.NDArray[Any]:
    """Read an array; one of no fixed shape has its dimensions before it."""
    if fixed:
        return np.frombuffer(data, f"<{element}").reshape(shape)
    dimensions, shape_code = data[0] >> 2, data[0] & 3
    if dimensions > _MAX_DIMENSIONS:
        raise ValueError(f"an array of {dimensions} dimensions")
    own = np.frombuffer(data, _SHAPE_DTYPES[shape_code], dimensions, 1).tolist()
    start = 1 + dimensions * (1 << shape_code)
    values = np.frombuffer(data[start:], f"<{element}")
    if dimensions != 1 or own != [len(values)]:
        raise ValueError(
            f"an array of shape {tuple(own)}; a field of no fixed shape has one dimension"
        )
    return values


def _read_text(data: bytes) -> str:
    return data.decode("utf-8")


def _read_picture_of_pixels(data: bytes) -> bytes:
    """Encode raw pixels (u32 width, height, length of the mode, then the mode) as PNG."""
    width, height, mode_bytes = struct.unpack_from("<III", data)
    start = 12 + mode_bytes
    mode = data[12:start].decode("ascii")
    if mode not in ("1", "L", "P", "RGB", "RGBA", "LA", "I;16"):
        raise ValueError(f"pixels of mode {mode[:8]!r}")
    bits = {"1": 1 / 8, "RGB": 3, "RGBA": 4, "LA": 2, "I;16": 2}.get(mode, 1)
    row_bytes = math.ceil(width * bits)
    if row_bytes * height != len(data) - start:
        raise ValueError(f"{width}x{height} pixels of mode {mode} with another number of bytes")
    file = io.BytesIO()
    Image.frombytes(mode, (width, height), data[start:]).save(file, format="PNG")
    return file.getvalue()


def _read_number_text(data: bytes) -> int:
    return int(data.decode("ascii"))


def _read_float_text(data: bytes) -> float:
    return float(data.decode("ascii"))


_TYPES = {
    "bytes": "bytes",
    "str": "utf8",
    "json": "json",
    "jpeg": "picture",
    "png": "picture",
    "pil": "picture",
    "str_int": "i8",
    "str_float": "f8",
    "str_decimal": "utf8",
}
#: The encoding of each picture of a list.
_LISTS = {
    "list[jpeg]": "jpeg",
    "list[png]": "png",
    "list[pil]": "pil",
    "jpeg_array": "jpeg",
    "jpegarray": "jpeg",
}
_READERS: dict[str, Read] = {
    "bytes": bytes,
    "str": _read_text,
    "json": json.loads,
    "jpeg": bytes,
    "png": bytes,
    "pil": _read_picture_of_pixels,
    "str_int": _read_number_text,
    "str_float": _read_float_text,
    "str_decimal": _read_text,
}

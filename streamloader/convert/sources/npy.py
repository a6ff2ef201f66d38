"""Reads ``.npy`` arrays, those of numbers only.

Header of the format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

from __future__ import annotations

import ast
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

_MAGIC = b"\x93NUMPY"
_MAX_HEADER_BYTES = 1 << 16
_MAX_DIMENSIONS = 8
HEADER_BYTES = 4096
"""Enough of a file to read its header."""


class NotAnArrayError(ValueError):
    """Bytes that are no array of numbers, in words for the user."""


@dataclass(frozen=True, slots=True)
class NpyHeader:
    """What an array is.

    Args:
        dtype: of its elements; a kind of number or bool.
        shape: of the array.
        fortran_order: first index fastest.
        data_offset: where its elements begin.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran_order: bool
    data_offset: int


def read_npy_header(data: bytes) -> NpyHeader:
    """Read the header of an array.

    Raises:
        NotAnArrayError: it is no array of numbers; arrays of objects would be pickles.
    """
    if data[:6] != _MAGIC or len(data) < 12:
        raise NotAnArrayError("no .npy array")
    length_bytes = 2 if data[6] == 1 else 4
    (length,) = struct.unpack_from("<H" if length_bytes == 2 else "<I", data, 8)
    start = 8 + length_bytes
    if length > _MAX_HEADER_BYTES or len(data) < start + length:
        raise NotAnArrayError("a .npy array whose header is cut short or too long")
    try:
        values = ast.literal_eval(data[start : start + length].decode("utf-8").strip())
        dtype = np.dtype(values["descr"])
        shape = tuple(int(size) for size in values["shape"])
        fortran_order = bool(values["fortran_order"])
    except (ValueError, SyntaxError, KeyError, TypeError, MemoryError, RecursionError) as error:
        raise NotAnArrayError("a .npy array with a header that is no description") from error
    if dtype.kind not in "biuf" or dtype.hasobject or dtype.itemsize > 8:
        raise NotAnArrayError(f"a .npy array of {dtype}, which is no number that can be stored")
    if len(shape) > _MAX_DIMENSIONS or any(size < 0 for size in shape):
        raise NotAnArrayError(f"a .npy array of shape {shape}")
    return NpyHeader(dtype, shape, fortran_order, start + length)


def read_npy(data: bytes) -> npt.NDArray[Any]:
    """Read an array.

    Raises:
        NotAnArrayError: it is no array of numbers, or is cut short.
    """
    header = read_npy_header(data)
    count = 1
    for size in header.shape:
        count *= size
    if len(data) - header.data_offset != count * header.dtype.itemsize:
        raise NotAnArrayError(f"a .npy array of shape {header.shape} with another number of bytes")
    flat = np.frombuffer(data, header.dtype, count, header.data_offset)
    return flat.reshape(header.shape, order="F" if header.fortran_order else "C")

"""Checks and copies of many records in one call: native where it was built, numpy elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from streamloader.dts.hashes import DEFAULT_HASH, hash_function
from streamloader.dts.native_kernel import ffi, lib
from streamloader.errors import ConfigError

if TYPE_CHECKING:
    from streamloader.dts.schema import Schema

IS_NATIVE = lib is not None
"""Whether copies and checks of padding are native."""

HASHES_NATIVELY = IS_NATIVE and bool(lib.sl_has_xxh3())
"""Whether checks of the default hash are."""

Bytes = npt.NDArray[np.uint8]
Int64 = npt.NDArray[np.int64]


def is_hashed_natively(schema: Schema) -> bool:
    """Whether records of this schema are checked without time of the interpreter for each."""
    return HASHES_NATIVELY and schema.hash == DEFAULT_HASH


def wrong_hashes(
    data: Bytes, starts: Int64, ends: Int64, expected: npt.NDArray[np.uint64], hash_name: str
) -> npt.NDArray[np.intp]:
    """Which of the byte ranges [starts, ends) of ``data`` do not hash to ``expected``.

    Args:
        data: uint8 [n].
        starts, ends: int64 [r], bounds in ``data``.
        expected: uint64 [r].
        hash_name: of the schema.

    Returns:
        Their places, ascending.

    Raises:
        ConfigError: a range lies outside ``data``, or the hash is unknown.
    """
    if HASHES_NATIVELY and hash_name == DEFAULT_HASH:
        return _wrong(lib.sl_check_hashes, data, starts, ends, _pointer("uint64_t[]", expected))
    _check_ranges(data, starts, ends)
    digest, view = hash_function(hash_name), data.data
    rows = zip(starts.tolist(), ends.tolist(), expected.tolist(), strict=True)
    bad = [
        place for place, (low, high, value) in enumerate(rows) if digest(view[low:high]) != value
    ]
    return np.array(bad, np.intp)


def wrong_zeros(data: Bytes, starts: Int64, ends: Int64) -> npt.NDArray[np.intp]:
    """Which of the byte ranges [starts, ends) of ``data`` are not all zero.

    Arguments, returns and errors as of ``wrong_hashes``.
    """
    if IS_NATIVE:
        return _wrong(lib.sl_check_zeros, data, starts, ends)
    _check_ranges(data, starts, ends)
    lengths = ends - starts
    total = int(lengths.sum())
    within = np.arange(total) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    nonzero = np.flatnonzero(data[np.repeat(starts, lengths) + within])
    return np.unique(np.repeat(np.arange(len(lengths)), lengths)[nonzero])


def copy_rows(memory: Bytes, offsets: Int64, out: npt.NDArray[Any], rows: Int64 | None) -> None:
    """Copies each row of ``out`` from ``memory``, as the bytes that it is.

    Args:
        memory: uint8 [n].
        offsets: int64 [r], where in ``memory`` the bytes of each row start.
        out: [b, …], each row contiguous.
        rows: int64 [r], which rows of ``out`` to fill; None for the first r.

    Raises:
        ConfigError: a row lies outside ``memory`` or ``out``, or is not contiguous.
    """
    if not len(offsets):
        return
    nbytes = out[0].nbytes
    if not out[0].flags.c_contiguous or out.strides[0] < nbytes:
        raise ConfigError(f"rows of shape {list(out.shape[1:])} are not contiguous")
    if IS_NATIVE and not lib.sl_copy_rows(
        _pointer("uint8_t[]", memory),
        len(memory),
        len(offsets),
        _pointer("int64_t[]", offsets),
        nbytes,
        ffi.cast("uint8_t *", out.ctypes.data),
        len(out),
        ffi.NULL if rows is None else _pointer("int64_t[]", rows),
        out.strides[0],
    ):
        return
    _check_ranges(memory, offsets, offsets + nbytes)
    low, high = (0, len(offsets) - 1) if rows is None else (int(rows.min()), int(rows.max()))
    if low < 0 or high >= len(out):
        raise ConfigError(f"rows {low} to {high} are beyond the {len(out)} rows of the batch")
    windows = np.lib.stride_tricks.as_strided(
        memory, shape=(len(memory) - nbytes + 1, nbytes), strides=(1, 1), writeable=False
    )
    found = windows[offsets].view(out.dtype).reshape(len(offsets), *out.shape[1:])
    out[slice(len(offsets)) if rows is None else rows] = found


def copy_values(
    memory: Bytes, offsets: Int64, lengths: Int64, out: npt.NDArray[np.uint8], rows: Int64
) -> None:
    """Copies pieces of ``memory`` to the beginnings of rows of ``out``.

    Args:
        memory: uint8 [n].
        offsets, lengths: int64 [r], of the pieces; none is longer than a row.
        out: uint8 [b, w], contiguous.
        rows: int64 [r], which row of ``out`` each piece goes to.

    Raises:
        ConfigError: a piece lies outside ``memory``, or does not fit the row it is to go to.
    """
    if not len(offsets):
        return
    num_rows, width = out.shape
    if not out.flags.c_contiguous:
        raise ConfigError(f"rows of shape {list(out.shape)} are not contiguous")
    if IS_NATIVE and not lib.sl_copy_values(
        _pointer("uint8_t[]", memory),
        len(memory),
        len(offsets),
        _pointer("int64_t[]", offsets),
        _pointer("int64_t[]", lengths),
        ffi.cast("uint8_t *", out.ctypes.data),
        num_rows,
        _pointer("int64_t[]", rows),
        width,
    ):
        return
    _check_ranges(memory, offsets, offsets + lengths)
    if int(rows.min()) < 0 or int(rows.max()) >= num_rows or int(lengths.max()) > width:
        raise ConfigError(
            f"pieces of up to {lengths.max()} bytes for rows {rows.min()} to {rows.max()} do not"
            f" fit {num_rows} rows of {width} bytes"
        )
    for offset, length, row in zip(offsets.tolist(), lengths.tolist(), rows.tolist(), strict=True):
        out[row, :length] = memory[offset : offset + length]


def _check_ranges(data: Bytes, starts: Int64, ends: Int64) -> None:
    if not len(starts):
        return
    low, high = int(starts.min()), int(ends.max())
    if low < 0 or high > len(data) or bool((ends < starts).any()):
        raise ConfigError(f"bytes {low} to {high} are not all among the {len(data)} given")


def _wrong(
    function: Any, data: Bytes, starts: Int64, ends: Int64, *more: Any
) -> npt.NDArray[np.intp]:
    is_bad = np.empty(len(starts), np.bool_)
    bad = function(
        _pointer("uint8_t[]", data),
        len(data),
        len(starts),
        _pointer("int64_t[]", starts),
        _pointer("int64_t[]", ends),
        *more,
        _pointer("uint8_t[]", is_bad),
    )
    if bad < 0:
        _check_ranges(data, starts, ends)
    return np.flatnonzero(is_bad) if bad else np.empty(0, np.intp)


def _pointer(kind: str, array: npt.NDArray[Any]) -> Any:
    return ffi.from_buffer(kind, np.ascontiguousarray(array))

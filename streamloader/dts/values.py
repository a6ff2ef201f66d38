"""Between the values a user gives and gets and the bytes a shard stores."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from streamloader.dts.fields import ELEMENT_DTYPES, Column, Field
from streamloader.dts.limits import DEFAULT_LIMITS
from streamloader.dts.strict_json import canonical_json, check_json_value, parse_json
from streamloader.errors import ConfigError, ShardError

if TYPE_CHECKING:
    from typing_extensions import Buffer

Encoder = Callable[[Any], bytes | memoryview]
"""Stored bytes of a value."""

_SCALAR_CODES: Final = {
    "u1": "B",
    "i1": "b",
    "u2": "H",
    "i2": "h",
    "u4": "I",
    "i4": "i",
    "u8": "Q",
    "i8": "q",
    "f2": "e",
    "f4": "f",
    "f8": "d",
}
_FLOATS: Final = frozenset({"f2", "f4", "f8", "bf16"})


def encoder(field: Field | Column) -> Encoder:
    """The function that turns a value of `field` into its stored bytes.

    It raises ConfigError, without naming the field, for a value that does not fit.
    """
    match field.type:
        case "picture" | "bytes":
            return _encode_bytes
        case "utf8":
            return _encode_text
        case "json":
            return _encode_json
    if field.shape == () and field.type in _SCALAR_CODES:
        return _scalar_encoder(field.type)

    def encode(value: Any) -> bytes:
        return _encode_array(value, field.type, field.shape)

    return encode


def decode(field: Field, stored: Buffer, shard: str, offset: int) -> Any:
    """The value behind the stored bytes of one payload field of one record.

    ``picture`` and ``bytes`` give bytes, ``utf8`` str, ``json`` its value, element types a
    read-only ndarray of the field's shape (bf16 as the float32 of equal value).

    Raises:
        ShardError: when the bytes are not of the field's type.
    """
    match field.type:
        case "picture" | "bytes":
            return bytes(stored)
        case "utf8":
            try:
                return bytes(stored).decode("utf-8")
            except UnicodeDecodeError as exc:
                raise ShardError(
                    f"field {field.name!r} is not UTF-8: {exc.reason}",
                    shard=shard,
                    offset=offset + exc.start,
                ) from exc
        case "json":
            return parse_json(
                stored,
                shard=shard,
                what=f"field {field.name!r}",
                max_depth=DEFAULT_LIMITS.field_json_depth,
                offset=offset,
            )
    return _decode_array(field, stored, shard, offset)


def decode_column_value(column: Column, values: npt.NDArray[Any]) -> Any:
    """One sample's value of a column: a Python scalar, or an ndarray of the column's shape."""
    if column.type == "bf16":
        values = bf16_to_float32(values)
    return values.item() if column.shape == () else values


def bf16_to_float32(bits: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """float32 values, exact, of bfloat16 numbers given as their 16 bits (uint16)."""
    wide = np.asarray(bits, dtype=np.uint16).astype(np.uint32) << np.uint32(16)
    return wide.view(np.float32)


def float32_to_bf16(values: npt.ArrayLike) -> npt.NDArray[np.uint16]:
    """bfloat16 bits (uint16) of float32 values, rounded to nearest, ties to even."""
    array = np.asarray(values, dtype=np.float32)
    bits = array.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    # Rounding would carry a NaN with a long payload into the infinities, so NaNs are cut and
    # given the quiet bit instead.
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(array), quiet, rounded).astype(np.uint16)


def _encode_bytes(value: Any) -> bytes | memoryview:
    if type(value) is bytes:
        return value
    if isinstance(value, str):
        raise ConfigError("expected bytes, got str; encode the text or declare the field utf8")
    try:
        view = memoryview(value)
    except TypeError:
        raise ConfigError(f"expected bytes, got {type(value).__name__}") from None
    if view.itemsize != 1 or not view.c_contiguous:
        raise ConfigError(
            f"expected contiguous bytes, got a buffer of format {view.format!r}, "
            f"shape {view.shape}; pass tobytes()"
        )
    return view.cast("B") if view.nbytes else b""


def _encode_text(value: Any) -> bytes:
    if not isinstance(value, str):
        raise ConfigError(f"expected str, got {type(value).__name__}")
    try:
        return value.encode("utf-8")
    except UnicodeEncodeError as exc:
        raise ConfigError(f"text cannot be written as UTF-8: {exc}") from exc


def _encode_json(value: Any) -> bytes:
    check_json_value(value, DEFAULT_LIMITS.field_json_depth)
    return canonical_json(value)


def _scalar_encoder(element: str) -> Encoder:
    pack = struct.Struct("<" + _SCALAR_CODES[element]).pack

    def encode(value: Any) -> bytes:
        if isinstance(value, int | float | np.generic):
            try:
                return pack(value)
            except (struct.error, OverflowError):
                # The array path below gives the same verdict with a reason.
                pass
        return _encode_array(value, element, ())

    return encode


def _encode_array(value: Any, element: str, shape: tuple[int, ...]) -> bytes:
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError) as exc:
        raise ConfigError(f"expected an array of {element}, got {_kind_of(value)}: {exc}") from exc
    if array.dtype.kind not in "biuf":
        raise ConfigError(f"expected {element}, got {_kind_of(value)} ({array.dtype})")
    if array.ndim != 1 if shape == (-1,) else array.shape != shape:
        wanted = "one dimension" if shape == (-1,) else f"shape {shape}"
        raise ConfigError(f"expected {wanted}, got shape {array.shape}")
    if element == "bf16":
        return _to_bf16(array).astype("<u2").tobytes()
    return _cast(array, element).tobytes()


def _to_bf16(array: npt.NDArray[Any]) -> npt.NDArray[np.uint16]:
    if array.dtype == np.uint16:
        return array
    bits = float32_to_bf16(_cast(array, "f4"))
    _check_finite(array, bf16_to_float32(bits), "bf16")
    return bits


def _cast(array: npt.NDArray[Any], element: str) -> npt.NDArray[Any]:
    dtype = ELEMENT_DTYPES[element]
    if array.size == 0 or array.dtype == dtype:
        return array.astype(dtype)
    if element in _FLOATS:
        with np.errstate(over="ignore"):
            result = array.astype(dtype)
        _check_finite(array, result, element)
        return result
    if array.dtype.kind == "f":
        raise ConfigError(f"expected integers for {element}, got {array.dtype}; round them first")
    low, high = (0, 1) if element == "bool" else _integer_range(dtype)
    smallest, largest = int(array.min()), int(array.max())
    if smallest < low or largest > high:
        value = smallest if smallest < low else largest
        raise ConfigError(f"value {value} does not fit {element} ({low} to {high})")
    return array.astype(dtype)


def _integer_range(dtype: np.dtype[np.generic]) -> tuple[int, int]:
    info = np.iinfo(dtype.type)  # type: ignore[type-var]  # element types here are integers
    return int(info.min), int(info.max)


def _check_finite(given: npt.NDArray[Any], stored: npt.NDArray[Any], element: str) -> None:
    overflow = np.isinf(stored) & np.isfinite(given)
    if overflow.any():
        raise ConfigError(f"value {given[overflow].flat[0]} does not fit {element}")


def _decode_array(field: Field, stored: Buffer, shard: str, offset: int) -> npt.NDArray[Any]:
    view = memoryview(stored)
    dtype = ELEMENT_DTYPES[field.type]
    expected = field.fixed_bytes
    if view.nbytes % dtype.itemsize or (expected is not None and view.nbytes != expected):
        wanted = f"{expected}" if expected is not None else f"a multiple of {dtype.itemsize}"
        raise ShardError(
            f"field {field.name!r} has {view.nbytes} bytes, not {wanted}",
            shard=shard,
            offset=offset,
        )
    if field.type == "bool":
        check_bool_bytes(view, f"field {field.name!r}", shard, offset)
    array = np.frombuffer(view, dtype=dtype)
    if field.type == "bf16":
        array = bf16_to_float32(array)
    if expected is not None:
        array = array.reshape(field.shape)
    array.flags.writeable = False
    return array


def check_bool_bytes(stored: Buffer, what: str, shard: str, offset: int) -> None:
    """Refuse bytes other than 0 and 1, which numpy would take for bools and then misjudge."""
    raw = np.frombuffer(memoryview(stored), dtype=np.uint8)
    if raw.size and int(raw.max()) > 1:
        at = offset + int(np.argmax(raw > 1))
        raise ShardError(f"{what} has a bool that is neither 0 nor 1", shard=shard, offset=at)


def _kind_of(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    text = repr(value)
    return text if len(text) <= 60 else type(value).__name__

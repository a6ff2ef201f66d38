"""Fields and columns: the types a record is made of, and where each is stored."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeAlias

import numpy as np

from streamloader.dts.limits import DEFAULT_LIMITS
from streamloader.dts.strict_json import canonical_json, check_json_value
from streamloader.errors import ConfigError

COLUMN_MAX_BYTES: Final = 64
MAX_DIMENSIONS: Final = 8
CODECS: Final = ("none", "zstd")
PAYLOAD_TYPES: Final = ("picture", "bytes", "utf8", "json")
DEFAULT_MAX_DEPTH: Final = 12
"""Levels of a default: with the schema around it they stay within the depth of a SCHEMA."""


class NoDefault(Enum):
    """Its one member stands where a field has no default, since JSON's null can be one."""

    NO_DEFAULT = "no default"


NO_DEFAULT: Final = NoDefault.NO_DEFAULT

ELEMENT_DTYPES: Final[dict[str, np.dtype[np.generic]]] = {
    "u1": np.dtype("<u1"),
    "i1": np.dtype("<i1"),
    "u2": np.dtype("<u2"),
    "i2": np.dtype("<i2"),
    "u4": np.dtype("<u4"),
    "i4": np.dtype("<i4"),
    "u8": np.dtype("<u8"),
    "i8": np.dtype("<i8"),
    "f2": np.dtype("<f2"),
    "f4": np.dtype("<f4"),
    "f8": np.dtype("<f8"),
    "bf16": np.dtype("<u2"),
    "bool": np.dtype("?"),
}
"""numpy dtype of each element type; bf16 has none in numpy and shows as its 16 bits."""

_PYTHON_NAMES: Final = {
    "uint8": "u1",
    "int8": "i1",
    "uint16": "u2",
    "int16": "i2",
    "uint32": "u4",
    "int32": "i4",
    "uint64": "u8",
    "int64": "i8",
    "int": "i8",
    "float16": "f2",
    "float32": "f4",
    "float64": "f8",
    "float": "f8",
    "bfloat16": "bf16",
    "str": "utf8",
}
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}", re.ASCII)
_SPEC: Final = re.compile(r"\s*(\w+)\s*(?::\s*\[([-\d,\s]*)\]\s*)?", re.ASCII)

FieldSpec: TypeAlias = Any
"""What `Field.parse` takes: ``"picture"``, ``"int64"``, ``"f4:[4]"``, ``("float32", (4,))``,
``int``, ``np.float32``, an ``np.dtype``."""


def is_name(text: object) -> bool:
    """True for names of fields and splits: ``[A-Za-z0-9_.-]{1,128}``."""
    return isinstance(text, str) and _NAME.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class Field:
    """One field of every record.

    Args:
        name: ``[A-Za-z0-9_.-]{1,128}``.
        type: ``picture``, ``bytes``, ``utf8``, ``json``, or an element type (``u1`` … ``bool``).
        shape: of one sample's array; ``()`` a scalar, ``(-1,)`` one dimension of any length.
        codec: ``none`` or ``zstd``; only for fields stored in the payload.
        default: what the field is in shards without it, as JSON: a text for ``utf8``, hexadecimal
            text for ``bytes``, anything for ``json``, one number for all elements of an array, a
            list of numbers for a shape of ``(-1,)``. Whether it fits is checked by `Schema`.

    Raises:
        ConfigError: for anything the format does not have.
    """

    name: str
    type: str
    shape: tuple[int, ...] = ()
    codec: str = "none"
    default: Any = dataclasses.field(default=NO_DEFAULT, hash=False)

    def __post_init__(self) -> None:
        if not is_name(self.name):
            raise ConfigError(
                f"field name {self.name!r} must be 1 to 128 letters, digits, '_', '.' or '-'"
            )
        if self.type not in PAYLOAD_TYPES and self.type not in ELEMENT_DTYPES:
            known = ", ".join([*PAYLOAD_TYPES, *ELEMENT_DTYPES])
            raise ConfigError(f"field {self.name!r} has type {self.type!r}; known are {known}")
        object.__setattr__(self, "shape", tuple(self.shape))
        self._check_shape()
        if self.codec not in CODECS:
            raise ConfigError(
                f"field {self.name!r} has codec {self.codec!r}; known are {', '.join(CODECS)}"
            )
        if self.codec != "none" and self.is_column:
            raise ConfigError(
                f"field {self.name!r} is at most {COLUMN_MAX_BYTES} bytes and stored as a column, "
                "which has no codec"
            )
        if self.default is not NO_DEFAULT:
            check_json_value(self.default, DEFAULT_MAX_DEPTH)
            # A copy in JSON's own types: as it will be read, and not the caller's to change.
            object.__setattr__(self, "default", json.loads(canonical_json(self.default)))

    def _check_shape(self) -> None:
        shape = self.shape
        if any(type(size) is not int for size in shape):
            raise ConfigError(f"field {self.name!r} has shape {shape}; sizes are integers")
        if self.type in PAYLOAD_TYPES:
            if shape:
                raise ConfigError(f"field {self.name!r} of type {self.type} has no shape")
        elif shape != (-1,) and any(size < 1 for size in shape):
            raise ConfigError(
                f"field {self.name!r} has shape {shape}; sizes are 1 or more, or the shape is (-1,)"
            )
        elif len(shape) > MAX_DIMENSIONS or (self.fixed_bytes or 0) > DEFAULT_LIMITS.record_bytes:
            raise ConfigError(
                f"field {self.name!r} has shape {shape}: more than {MAX_DIMENSIONS} dimensions "
                f"or {DEFAULT_LIMITS.record_bytes} bytes"
            )

    @classmethod
    def parse(
        cls, name: str, spec: FieldSpec, codec: str = "none", default: Any = NO_DEFAULT
    ) -> Field:
        """Field from the names that Python and numpy users write, see `FieldSpec`.

        Raises:
            ConfigError: when the type is unknown.
        """
        if isinstance(spec, Field):
            return cls(name, spec.type, spec.shape, spec.codec, spec.default)
        shape: tuple[Any, ...] | None = None
        if isinstance(spec, tuple | list) and len(spec) == 2:
            spec, shape = spec[0], tuple(spec[1])
        text = _type_text(spec)
        match = _SPEC.fullmatch(text)
        if match is None or (match[2] is not None and shape is not None):
            raise ConfigError(
                f"field {name!r} has type {text!r}; write it like 'picture', 'int64' or 'f4:[3,4]'"
            )
        if match[2] is not None:
            shape = tuple(size for size in match[2].split(",") if size.strip())
        try:
            sizes = tuple(int(size) for size in shape or ())
        except (TypeError, ValueError) as exc:
            raise ConfigError(f"field {name!r} has shape {shape}: {exc}") from exc
        return cls(name, _PYTHON_NAMES.get(match[1], match[1]), sizes, codec, default)

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """dtype of the stored elements; uint16 for bf16.

        Raises:
            ConfigError: for types that are not arrays.
        """
        if self.type not in ELEMENT_DTYPES:
            raise ConfigError(f"field {self.name!r} of type {self.type} has no dtype")
        return ELEMENT_DTYPES[self.type]

    @property
    def is_variable(self) -> bool:
        """True when the length differs from sample to sample."""
        return self.type in PAYLOAD_TYPES or self.shape == (-1,)

    @property
    def fixed_bytes(self) -> int | None:
        """Bytes of one sample, or None for a variable field."""
        if self.is_variable:
            return None
        return ELEMENT_DTYPES[self.type].itemsize * math.prod(self.shape)

    @property
    def is_column(self) -> bool:
        """True when stored as a column of the tail, so readable without any payload."""
        return self.fixed_bytes is not None and self.fixed_bytes <= COLUMN_MAX_BYTES

    @property
    def has_lengths(self) -> bool:
        """True when the tail holds a stored length for each record."""
        return not self.is_column and (self.is_variable or self.codec != "none")


@dataclass(frozen=True, slots=True)
class Column:
    """A fixed field of at most 64 bytes a sample, or one the writer generates for a picture."""

    name: str
    type: str
    shape: tuple[int, ...]
    column_id: int

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """dtype of its values in the tail; uint16 for bf16."""
        return ELEMENT_DTYPES[self.type]

    @property
    def item_bytes(self) -> int:
        """Bytes of one sample."""
        return self.dtype.itemsize * math.prod(self.shape)


def _type_text(spec: object) -> str:
    if isinstance(spec, str):
        return spec
    if isinstance(spec, type) and spec in (int, float, bool, str, bytes):
        return spec.__name__
    if isinstance(spec, np.dtype) or (isinstance(spec, type) and issubclass(spec, np.generic)):
        return np.dtype(spec).name
    return str(spec)

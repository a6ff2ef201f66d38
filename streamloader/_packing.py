"""Variable fields of a batch as one flat array and offsets, instead of a list."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from streamloader.dts import ELEMENT_DTYPES, Field
from streamloader.errors import ConfigError

OFFSETS = ".offsets"


def check_packed(names: Iterable[str], variable: Iterable[Field]) -> tuple[Field, ...]:
    """The fields to pack.

    Raises:
        ConfigError: a name that is no variable field, or one whose values are not flat.
    """
    known = {field.name: field for field in variable}
    fields = []
    for name in names:
        field = known.get(name)
        if field is None or field.type == "json":
            flat = ", ".join(n for n, f in known.items() if f.type != "json") or "none"
            raise ConfigError(
                f"pack takes variable fields of numbers, bytes or text, got {name!r};"
                f" there are {flat}"
            )
        fields.append(field)
    return tuple(fields)


def pack(field: Field, values: list[Any]) -> dict[str, npt.NDArray[Any]]:
    """``{name: values one after the other, name.offsets: int64 [B + 1]}``.

    Row r is ``values[offsets[r]:offsets[r + 1]]``. Bytes and text are uint8, text as UTF-8; a
    row without a value is empty.
    """
    arrays = [_flat(field, value) for value in values]
    offsets = np.zeros(len(arrays) + 1, np.int64)
    np.cumsum([len(array) for array in arrays], out=offsets[1:])
    return {field.name: np.concatenate(arrays), field.name + OFFSETS: offsets}


def _flat(field: Field, value: Any) -> npt.NDArray[Any]:
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, str):
        value = value.encode("utf-8")
    if value is not None:
        return np.frombuffer(value, np.uint8)
    numbers = field.type in ELEMENT_DTYPES
    kind = np.dtype(np.float32) if field.type == "bf16" else ELEMENT_DTYPES.get(field.type)
    return np.empty(0, kind if numbers else np.uint8)

"""Which field each Arrow column becomes, and its values.

Needs pyarrow (the extra ``convert``). What Hugging Face ``datasets`` adds to a schema, as JSON in
its metadata under ``huggingface``, tells pictures and class names.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamloader.dts import Field
from streamloader.errors import ConfigError

_ELEMENTS = {
    "int8": "i1",
    "int16": "i2",
    "int32": "i4",
    "int64": "i8",
    "uint8": "u1",
    "uint16": "u2",
    "uint32": "u4",
    "uint64": "u8",
    "halffloat": "f2",
    "float": "f4",
    "double": "f8",
    "bool": "bool",
}
_TEXTS = frozenset({"string", "large_string", "string_view"})
_BYTES = frozenset({"binary", "large_binary", "binary_view"})
_PICTURE_NAMES = frozenset({"image", "img", "picture", "jpg", "jpeg", "png"})
_PICTURE_PARTS = {"bytes", "path"}


@dataclass(frozen=True, slots=True)
class ArrowColumn:
    """One column.

    Args:
        name: in the table.
        kind: how its values are read: ``scalar``, ``text``, ``bytes``, ``list``, ``picture``,
            ``picture_struct`` or ``json``.
        field: what it becomes.
    """

    name: str
    kind: str
    field: Field


def pyarrow() -> Any:
    """Return the package.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import pyarrow as module
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError(
            "Parquet and Arrow files need pyarrow: pip install 'streamloader[convert]'"
        ) from error
    return module


def columns_of(schema: Any) -> tuple[tuple[ArrowColumn, ...], tuple[str, ...]]:
    """Return the columns of an Arrow schema, and the class names of its ``label``.

    Raises:
        ConfigError: a column whose type has no field.
    """
    features = _features(schema)
    columns = tuple(_column(field, features.get(field.name, {})) for field in schema)
    label = features.get("label", {})
    names = label.get("names", ()) if label.get("_type") == "ClassLabel" else ()
    return columns, tuple(map(str, names))


def values_of(column: ArrowColumn, array: Any) -> Iterator[Any]:
    """Yield the values of an Arrow array as a record takes them; None for nulls."""
    for value in array:
        yield _value(column, value)


def _value(column: ArrowColumn, value: Any) -> Any:
    if not value.is_valid:
        return None
    match column.kind:
        case "list":
            inner = value.values
            if inner.null_count:
                return None
            return np.asarray(inner.to_numpy(zero_copy_only=False))
        case "picture_struct":
            return value["bytes"].as_py()
        case "json":
            return _jsonable(value.as_py())
    return value.as_py()


def _features(schema: Any) -> Mapping[str, Any]:
    raw = (schema.metadata or {}).get(b"huggingface")
    if raw is None:
        return {}
    try:
        features = json.loads(raw)["info"]["features"]
    except (ValueError, KeyError, TypeError):
        # Others may use the name; the types of the columns tell the rest.
        return {}
    return features if isinstance(features, dict) else {}


def _column(field: Any, feature: Mapping[str, Any]) -> ArrowColumn:
    name, kind = field.name, field.type
    types = pyarrow().types
    if types.is_dictionary(kind):
        kind = kind.value_type
    text = str(kind)
    if text in _ELEMENTS:
        return ArrowColumn(name, "scalar", Field(name, _ELEMENTS[text]))
    if text in _TEXTS:
        return ArrowColumn(name, "text", Field(name, "utf8"))
    if text in _BYTES or types.is_fixed_size_binary(kind):
        is_picture = feature.get("_type") == "Image" or name.lower() in _PICTURE_NAMES
        if is_picture:
            return ArrowColumn(name, "picture", Field(name, "picture"))
        return ArrowColumn(name, "bytes", Field(name, "bytes"))
    if types.is_struct(kind) and _is_picture(kind, feature):
        return ArrowColumn(name, "picture_struct", Field(name, "picture"))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        element = _ELEMENTS.get(str(kind.value_type))
        if element is not None:
            fixed = types.is_fixed_size_list(kind) and kind.list_size > 0
            shape = (kind.list_size,) if fixed else (-1,)
            return ArrowColumn(name, "list", Field(name, element, shape))
    if types.is_nested(kind) or types.is_null(kind) or types.is_map(kind):
        return ArrowColumn(name, "json", Field(name, "json"))
    raise ConfigError(
        f"the column {name!r} is of type {text}, which no field can hold; cast it to numbers, text"
        " or bytes, or leave it out"
    )


def _is_picture(kind: Any, feature: Mapping[str, Any]) -> bool:
    parts = {kind.field(place).name for place in range(kind.num_fields)}
    kinds = str(kind.field("bytes").type) in _BYTES if "bytes" in parts else False
    return kinds and (feature.get("_type", "Image") == "Image") and parts == _PICTURE_PARTS


def _jsonable(value: Any) -> Any:
    """Return nested values with bytes refused and everything else as JSON has it."""
    if isinstance(value, dict):
        return {str(key): _jsonable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(inner) for inner in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return str(value)


def missing_value(columns: Sequence[ArrowColumn], values: Sequence[Any]) -> str | None:
    """Return why a row cannot be a sample, None if it can."""
    for column, value in zip(columns, values, strict=True):
        if value is None and column.kind != "json":
            if column.kind == "picture_struct":
                return f"{column.name}: null, or only the path of a picture is there"
            return f"{column.name}: null"
    return None

"""Defaults: what a field is in shards that were written before the field was added."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from streamloader.dts.fields import ELEMENT_DTYPES, NO_DEFAULT, Field
from streamloader.dts.strict_json import canonical_json, parse_json
from streamloader.dts.values import bf16_to_float32, decode, encoder
from streamloader.errors import ConfigError

_FLOATS: Final = frozenset({"f2", "f4", "f8", "bf16"})


def check_default(field: Field) -> None:
    """Refuse a default that is no value of its field.

    Raises:
        ConfigError: naming field and default.
    """
    if field.default is NO_DEFAULT:
        return
    if field.type == "picture":
        raise ConfigError(f"field {field.name!r} is a picture, which has no default")
    try:
        _check_value(field)
    except ConfigError as exc:
        raise ConfigError(f"field {field.name!r} has an impossible default: {exc}") from exc


def default_value(field: Field) -> Any:
    """The field's default as `ShardIndex.read_record` gives values.

    A fixed array shows one element in every place and takes no memory.

    Raises:
        ConfigError: when the field has none.
    """
    default = field.default
    if default is NO_DEFAULT:
        raise ConfigError(f"field {field.name!r} has no default")
    match field.type:
        case "bytes":
            return bytes.fromhex(default)
        case "utf8":
            return default
        case "json":
            return parse_json(canonical_json(default), shard="", what="default", max_depth=None)
    if field.shape == (-1,):
        return decode(field, encoder(field)(default), "", 0)
    stored = encoder(Field(field.name, field.type))(default)
    element = np.frombuffer(stored, ELEMENT_DTYPES[field.type])
    if field.type == "bf16":
        element = bf16_to_float32(element)
    return element[0].item() if field.shape == () else np.broadcast_to(element[0], field.shape)


def default_bytes(field: Field) -> bytes:
    """The field's default as a shard would store it, uncompressed.

    Raises:
        ConfigError: when the field has none.
    """
    return bytes(encoder(field)(default_value(field)))


def _check_value(field: Field) -> None:
    default = field.default
    if field.type == "bytes":
        try:
            bytes.fromhex(default)
        except (TypeError, ValueError):
            raise ConfigError(f"bytes are given as hexadecimal text, got {default!r}") from None
    elif field.type in ("utf8", "json"):
        encoder(field)(default)
    elif field.shape == (-1,):
        if not isinstance(default, list):
            raise ConfigError(f"expected a list of numbers, got {default!r}")
        for element in default:
            _check_element(field.type, element)
        encoder(field)(default)
    else:
        _check_element(field.type, default)
        encoder(Field(field.name, field.type))(default)


def _check_element(element_type: str, value: object) -> None:
    kinds: tuple[type, ...] = (int, float) if element_type in _FLOATS else (int,)
    if element_type == "bool":
        kinds = (bool,)
    if type(value) not in kinds:
        raise ConfigError(f"expected one {element_type} for all elements, got {value!r}")

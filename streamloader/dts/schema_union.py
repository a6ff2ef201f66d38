"""The one schema that a data set has although its shards may have several."""

from __future__ import annotations

from collections.abc import Sequence

from streamloader.dts.fields import NO_DEFAULT, Field
from streamloader.dts.schema import Schema
from streamloader.errors import ConfigError


def unite(schemas: Sequence[Schema]) -> Schema:
    """All fields of all schemas, in the order of their first appearance.

    A field may be added with a default, which stands for it in the shards of schemas without
    it. It is never retyped; its codec may change.

    Raises:
        ConfigError: when shards of these schemas cannot be one data set.
    """
    known: dict[str, Field] = {}
    for schema in schemas:
        if schema.hash != schemas[0].hash:
            raise ConfigError(
                f"schemas have the hashes {schemas[0].hash} and {schema.hash}; a data set has one"
            )
        for field in schema.fields:
            _check_same(known.setdefault(field.name, field), field)
    for schema in schemas:
        missing = known.keys() - {field.name for field in schema.fields}
        for name in sorted(missing):
            if known[name].default is NO_DEFAULT:
                raise ConfigError(
                    f"field {name!r} is not in all schemas and has no default; give it one"
                )
    return Schema(tuple(known.values()), schemas[0].hash)


def _check_same(first: Field, field: Field) -> None:
    if (first.type, first.shape) != (field.type, field.shape):
        raise ConfigError(
            f"field {field.name!r} is {first.type}{list(first.shape)} in one schema and "
            f"{field.type}{list(field.shape)} in another; give the new one another name"
        )
    if first.default != field.default:
        raise ConfigError(f"field {field.name!r} has different defaults in two schemas")

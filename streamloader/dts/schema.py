"""The schema of a shard: its fields in order, and the sections that follow from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from streamloader.dts.defaults import check_default
from streamloader.dts.fields import (
    ELEMENT_DTYPES,
    MAX_DIMENSIONS,
    NO_DEFAULT,
    Column,
    Field,
    FieldSpec,
)
from streamloader.dts.hashes import DEFAULT_HASH, hash_function
from streamloader.dts.layout import SectionKind
from streamloader.dts.limits import DEFAULT_LIMITS
from streamloader.dts.strict_json import JsonObject, canonical_json, parse_json
from streamloader.errors import ConfigError, ShardError

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["ELEMENT_DTYPES", "MAX_FIELDS", "PICTURE_COLUMNS", "Schema"]

MAX_FIELDS: Final = 256
PICTURE_COLUMNS: Final = (("width", "u4"), ("height", "u4"), ("kind", "u2"))
"""Suffix and type of the columns generated for each picture field, in column_id order."""


@dataclass(frozen=True, slots=True)
class Schema:
    """The fields of a shard's records, in order.

    Args:
        fields: 1 to 256, each with a name of its own.
        hash: of the stored bytes: ``xxh3-64``, or ``crc32`` for readers with zlib alone.

    Attributes:
        columns: what the tail holds one value per sample of, in column_id order; a picture
            field ``f`` adds ``f.width``, ``f.height`` and ``f.kind`` after the declared fields.
        payload_fields: what the records hold, in stored order.

    Raises:
        ConfigError: for no field, repeated names, an unknown hash, a default that does not fit
            its field, or more sections than a tail can hold.
    """

    fields: tuple[Field, ...]
    hash: str = DEFAULT_HASH
    columns: tuple[Column, ...] = dataclasses.field(init=False, repr=False, compare=False)
    payload_fields: tuple[Field, ...] = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", tuple(self.fields))
        if not 1 <= len(self.fields) <= MAX_FIELDS:
            raise ConfigError(f"a schema has 1 to {MAX_FIELDS} fields, got {len(self.fields)}")
        hash_function(self.hash)
        for f in self.fields:
            check_default(f)
        columns = [
            Column(f.name, f.type, f.shape, i) for i, f in enumerate(self.fields) if f.is_column
        ]
        pictures = [f.name for f in self.fields if f.type == "picture"]
        generated = ((f"{p}.{suffix}", kind) for p in pictures for suffix, kind in PICTURE_COLUMNS)
        for column_id, (name, kind) in enumerate(generated, start=len(self.fields)):
            columns.append(Column(name, kind, (), column_id))
        object.__setattr__(self, "columns", tuple(columns))
        object.__setattr__(self, "payload_fields", tuple(f for f in self.fields if not f.is_column))
        self._check_names()
        self._check_sections()
        if len(self.to_json()) > DEFAULT_LIMITS.schema_bytes:
            raise ConfigError("schema is longer than 1 MiB; shorten the defaults of its fields")

    def _check_names(self) -> None:
        seen: set[str] = set()
        for name in [*(f.name for f in self.payload_fields), *(c.name for c in self.columns)]:
            if name in seen:
                raise ConfigError(
                    f"schema has the name {name!r} twice; a picture field p also takes "
                    "p.width, p.height and p.kind"
                )
            seen.add(name)

    def _check_sections(self) -> None:
        optional = (SectionKind.KEYS, SectionKind.STATS)
        count = len(self.sections()) + len(optional)
        count += sum(f.codec != "none" for f in self.payload_fields)
        if count > DEFAULT_LIMITS.sections:
            raise ConfigError(
                f"schema needs {count} sections in a shard, more than {DEFAULT_LIMITS.sections}; "
                "join small fields into one array field"
            )

    @classmethod
    def of(cls, fields: Mapping[str, FieldSpec], hash: str = DEFAULT_HASH) -> Schema:  # noqa: A002  as the attribute is called
        """Schema from a mapping of names to what `Field.parse` takes."""
        return cls(tuple(Field.parse(name, spec) for name, spec in fields.items()), hash)

    def field(self, name: str) -> Field:
        return self.fields[self.field_id(name)]

    def field_id(self, name: str) -> int:
        """Place of a declared field, which is the column_id of its sections."""
        for place, candidate in enumerate(self.fields):
            if candidate.name == name:
                return place
        names = ", ".join(f.name for f in self.fields)
        raise ConfigError(f"no field {name!r}; the schema has {names}")

    def sections(self) -> frozenset[tuple[SectionKind, int]]:
        """(kind, column_id) of every section that a shard of this schema must have."""
        needed = {(SectionKind.SCHEMA, 0), (SectionKind.OFFSETS, 0)}
        needed.update((SectionKind.COLUMN, column.column_id) for column in self.columns)
        for place, f in enumerate(self.fields):
            if not f.is_column:
                needed.add((SectionKind.HASHES, place))
                if f.has_lengths:
                    needed.add((SectionKind.LENS, place))
                if f.codec != "none":
                    needed.add((SectionKind.RAWLENS, place))
        return frozenset(needed)

    def to_object(self) -> dict[str, object]:
        """The schema as JSON values, as manifests embed it."""
        return {"fields": [_field_object(f) for f in self.fields], "hash": self.hash}

    def to_json(self) -> bytes:
        """Canonical JSON, the content of a SCHEMA section."""
        return canonical_json(self.to_object())

    @classmethod
    def parse(cls, data: Buffer, name: str = "schema", offset: int | None = None) -> Schema:
        """Schema from a SCHEMA section of the shard `name`.

        Raises:
            ShardError: when it is not a valid schema.
        """
        if memoryview(data).nbytes > DEFAULT_LIMITS.schema_bytes:
            raise ShardError("schema is longer than 1 MiB", shard=name, offset=offset)
        value = parse_json(
            data, shard=name, what="schema", max_depth=DEFAULT_LIMITS.json_depth, offset=offset
        )
        return cls.from_object(value, name, offset)

    @classmethod
    def from_object(cls, value: object, name: str, offset: int | None = None) -> Schema:
        """The reverse of `to_object`, for values that came from outside."""
        schema = JsonObject(value, shard=name, what="schema")
        hash_name = schema.take_text("hash")
        items = schema.take_list("fields", MAX_FIELDS)
        schema.finish()
        try:
            return cls(tuple(_field_from_object(item, name) for item in items), hash_name)
        except ConfigError as exc:
            raise ShardError(f"schema is refused: {exc}", shard=name, offset=offset) from exc


def _field_object(field: Field) -> dict[str, object]:
    item: dict[str, object] = {
        "name": field.name,
        "type": field.type,
        "shape": list(field.shape),
        "codec": field.codec,
    }
    if field.default is not NO_DEFAULT:
        item["default"] = field.default
    return item


def _field_from_object(value: object, name: str) -> Field:
    item = JsonObject(value, shard=name, what="schema field")
    shape = tuple(item.take_list("shape", MAX_DIMENSIONS))
    result = Field(
        item.take_text("name"),
        item.take_text("type"),
        shape,
        item.take_text("codec"),
        item.take("default", NO_DEFAULT),
    )
    item.finish()
    return result

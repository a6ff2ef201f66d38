"""Reads the values of one record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamloader.dts.decompression import decode_stored
from streamloader.dts.defaults import default_value
from streamloader.dts.fields import Field
from streamloader.dts.layout import byte_view
from streamloader.dts.schema import Schema
from streamloader.dts.values import decode_column_value
from streamloader.errors import ConfigError, ShardError

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from streamloader.dts.index import ShardIndex


def read_record(
    index: ShardIndex, sample: int, data: Buffer, base: int, schema: Schema | None
) -> dict[str, Any]:
    """See `ShardIndex.read_record`."""
    view = byte_view(data)
    record: dict[str, Any] = {}
    stored = {field.name: field for field in index.schema.fields}
    for wanted in (schema or index.schema).fields:
        field = stored.get(wanted.name)
        if field is None:
            record[wanted.name] = default_value(wanted)
        elif (field.type, field.shape) != (wanted.type, wanted.shape):
            raise ConfigError(
                f"field {field.name!r} is {field.type} of shape {field.shape} in {index.name}, "
                f"not {wanted.type} of shape {wanted.shape}"
            )
        elif field.is_column:
            values = index.column(field.name)[sample]
            record[field.name] = decode_column_value(index.column_named(field.name), values)
        else:
            record[field.name] = _payload_value(index, field, sample, view, base)
    return record


def _payload_value(
    index: ShardIndex, field: Field, sample: int, view: memoryview, base: int
) -> Any:
    offsets, lengths = index.field_ranges(field.name, sample, 1)
    start, length = int(offsets[0]), int(lengths[0])
    if not base <= start <= start + length <= base + len(view):
        raise ShardError(
            f"record {sample} is not in the {len(view)} bytes given from byte {base} on",
            shard=index.name,
            offset=start,
        )
    return decode_stored(
        field,
        view[start - base : start - base + length],
        int(index.raw_lengths(field.name)[sample]),
        dictionary=index.dictionary(field.name),
        shard=index.name,
        offset=start,
    )

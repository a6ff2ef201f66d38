"""Which fields of a data set a batch has, and which of them live in the slot."""

from __future__ import annotations

from dataclasses import dataclass

from streamloader.decode import PixelFormat, Transform, output_size
from streamloader.dts import ELEMENT_DTYPES, Field, Schema
from streamloader.errors import ConfigError
from streamloader.transfer import FieldSpec

INDEX = "index"
VALID = "valid"


@dataclass(frozen=True, slots=True)
class BatchFields:
    """Fields of a batch by how they get there.

    Attributes:
        columns: small fixed fields, copied from the rows.
        arrays: large fixed fields, copied from the blocks.
        pictures: decoded into the slot.
        variable: stored bytes, given as a list with one value per row.
        slot: what the slot holds, ``index`` and ``valid`` first.
    """

    columns: tuple[Field, ...]
    arrays: tuple[Field, ...]
    pictures: tuple[Field, ...]
    variable: tuple[Field, ...]
    slot: tuple[FieldSpec, ...]

    @staticmethod
    def choose(schema: Schema, transform: Transform | None, pixels: PixelFormat) -> BatchFields:
        """Sorts the fields of ``schema``; without a transform pictures stay bytes."""
        columns: list[Field] = []
        arrays: list[Field] = []
        pictures: list[Field] = []
        variable: list[Field] = []
        for field in schema.fields:
            if field.type == "picture":
                (variable if transform is None else pictures).append(field)
            elif field.is_variable:
                variable.append(field)
            elif field.is_column:
                columns.append(field)
            else:
                arrays.append(field)
        if transform is not None and not pictures:
            raise ConfigError(
                "a transform was given, but the data set has no picture field; its fields are"
                f" {', '.join(f'{f.name} ({f.type})' for f in schema.fields)}"
            )
        for field in schema.fields:
            if field.name in (INDEX, VALID):
                raise ConfigError(f"the data set has a field named {field.name!r}: rename it")
        slot = [FieldSpec(INDEX, "int64", ()), FieldSpec(VALID, "bool", ())]
        slot += [_stored(field) for field in columns + arrays]
        if transform is not None:
            height, width = output_size(transform)
            for field in pictures:
                shape = (height, width, 3)
                slot.append(FieldSpec(field.name, pixels.numpy_dtype, shape, pixels.torch_dtype))
        return BatchFields(
            tuple(columns), tuple(arrays), tuple(pictures), tuple(variable), tuple(slot)
        )


def _stored(field: Field) -> FieldSpec:
    torch_dtype = "bfloat16" if field.type == "bf16" else None
    return FieldSpec(field.name, ELEMENT_DTYPES[field.type].name, field.shape, torch_dtype)

"""Which fields of a data set a batch has, and which of them live in the slot."""

from __future__ import annotations

from dataclasses import dataclass

from streamloader.decode import Joint, PixelFormat, Transform, output_size
from streamloader.dts import ELEMENT_DTYPES, Field, Schema
from streamloader.errors import ConfigError
from streamloader.transfer import FieldSpec

INDEX = "index"
VALID = "valid"
SOURCE = "source"

_FLOATS = frozenset(["f2", "f4", "f8", "bf16"])


@dataclass(frozen=True, slots=True)
class BatchFields:
    """Fields of a batch by how they get there; each is in one of the groups.

    Attributes:
        columns: small fixed fields, copied from the rows.
        arrays: large fixed fields, copied from the blocks.
        pictures: decoded into the slot, [H, W, 3].
        masks: pictures of a ``Joint`` that are masks, decoded into the slot, [H, W].
        boxes: of a ``Joint``, moved with the crop; fixed ones live in the slot as float32, the
            others are a list.
        variable: stored bytes, given as a list with one value per row.
        slot: what the slot holds, ``index`` and ``valid`` first, then ``source`` of a mixture.
        mixed: a batch has ``source``, the number of the data set of each row.
    """

    columns: tuple[Field, ...]
    arrays: tuple[Field, ...]
    pictures: tuple[Field, ...]
    masks: tuple[Field, ...]
    boxes: tuple[Field, ...]
    variable: tuple[Field, ...]
    slot: tuple[FieldSpec, ...]
    mixed: bool = False

    @property
    def numbering(self) -> tuple[str, ...]:
        """Fields of the slot that say which sample a row has."""
        return (INDEX, SOURCE) if self.mixed else (INDEX,)

    @property
    def listed(self) -> tuple[Field, ...]:
        """Fields that a batch has as a list with one value per row."""
        return self.variable + tuple(field for field in self.boxes if field.is_variable)

    @staticmethod
    def choose(
        schema: Schema, transform: Transform | None, pixels: PixelFormat, *, mixed: bool = False
    ) -> BatchFields:
        """Sorts the fields of ``schema``; without a transform pictures stay bytes.

        A ``mixed`` batch says of which data set each row is.

        Raises:
            ConfigError: the transform asks for fields that the data set does not have, or a field
                has a name that every batch uses.
        """
        own = [FieldSpec(INDEX, "int64", ()), FieldSpec(VALID, "bool", ())]
        if mixed:
            own.append(FieldSpec(SOURCE, "int64", ()))
        for field in schema.fields:
            if field.name in [spec.name for spec in own]:
                raise ConfigError(f"the data set has a field named {field.name!r}: rename it")
        group_of = _joint_groups(schema, transform)
        groups: dict[str, list[Field]] = {}
        for field in schema.fields:
            group = group_of.get(field.name) or _group(field, decoded=transform is not None)
            groups.setdefault(group, []).append(field)
        if transform is not None and "pictures" not in groups:
            raise ConfigError(
                "a transform was given, but the data set has no picture field"
                f"{' that is no mask' if group_of else ''}; its fields are {_listing(schema)}"
            )
        columns, arrays, pictures, masks, boxes, variable = (
            tuple(groups.get(name, ()))
            for name in ("columns", "arrays", "pictures", "masks", "boxes", "variable")
        )
        slot = own + [_stored(field) for field in columns + arrays]
        slot += [FieldSpec(f.name, "float32", f.shape) for f in boxes if not f.is_variable]
        if transform is not None:
            size = output_size(transform)
            for field in pictures:
                shape = (*size, 3)
                slot.append(FieldSpec(field.name, pixels.numpy_dtype, shape, pixels.torch_dtype))
            if isinstance(transform, Joint):
                slot += [FieldSpec(field.name, transform.mask_dtype, size) for field in masks]
        return BatchFields(columns, arrays, pictures, masks, boxes, variable, tuple(slot), mixed)


def _joint_groups(schema: Schema, transform: Transform | None) -> dict[str, str]:
    """Group by name of the fields that a ``Joint`` names."""
    if not isinstance(transform, Joint):
        return {}
    for name in transform.masks:
        if _named(schema, name).type != "picture":
            raise ConfigError(
                f"Joint has the mask {name!r}, which is no picture field of the data set; its"
                f" fields are {_listing(schema)}"
            )
    for name in transform.boxes:
        field = _named(schema, name)
        flat = field.shape == (-1,)
        if field.type not in _FLOATS or not (flat or field.shape[-1:] == (4,)):
            raise ConfigError(
                f"Joint has the boxes {name!r}, which must be a float field of shape [-1] or"
                f" [..., 4]; the data set's fields are {_listing(schema)}"
            )
    return dict.fromkeys(transform.masks, "masks") | dict.fromkeys(transform.boxes, "boxes")


def _named(schema: Schema, name: str) -> Field:
    for field in schema.fields:
        if field.name == name:
            return field
    raise ConfigError(
        f"Joint names the field {name!r}, which the data set does not have; its fields are"
        f" {_listing(schema)}"
    )


def _group(field: Field, *, decoded: bool) -> str:
    if field.type == "picture":
        return "pictures" if decoded else "variable"
    if field.is_variable:
        return "variable"
    return "columns" if field.is_column else "arrays"


def _listing(schema: Schema) -> str:
    return ", ".join(f"{field.name} ({_type(field)})" for field in schema.fields)


def _type(field: Field) -> str:
    return field.type + (f":{list(field.shape)}" if field.shape else "")


def _stored(field: Field) -> FieldSpec:
    torch_dtype = "bfloat16" if field.type == "bf16" else None
    return FieldSpec(field.name, ELEMENT_DTYPES[field.type].name, field.shape, torch_dtype)

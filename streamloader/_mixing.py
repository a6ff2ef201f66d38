"""Which samples the epochs of a mixture draw, and whether its data sets can be mixed."""

from __future__ import annotations

from collections.abc import Sequence

from streamloader._choice import Choice, check_epoch_size
from streamloader.dts import Field
from streamloader.errors import ConfigError
from streamloader.fetch import Catalog, Sources
from streamloader.order import Mixture, Proportions, describe_mixture
from streamloader.source import Source


def choose_mixture(
    opened: Sources,
    wanted: Sequence[Source],
    *,
    seed: int,
    shuffle: bool | str,
    epoch_size: int | None,
) -> Choice:
    """The choice for a mixture; an epoch has as many samples as all data sets together.

    Raises:
        ConfigError: weights or a size that cannot be.
    """
    check_epoch_size(epoch_size)
    weights = [source.weight for source in wanted]
    if None in weights:
        weights = [catalog.num_samples for catalog in opened.catalogs]
    mixture = Mixture.choose(
        [(each.num_samples, each.blocks.block_samples) for each in opened.catalogs],
        Proportions.of(weights),
        seed=seed,
        shuffle=shuffle,
    )
    return Choice(
        mixture.spec(mixture.num_samples),
        selection=None,
        weights=None,
        epoch_size=epoch_size,
        subset=None,
        mixture=mixture,
        mixed=describe_mixture(mixture.proportions.weights, opened.short_names),
    )


def check_alike(catalogs: Sequence[Catalog]) -> None:
    """Batches of these data sets have the same fields, and labels mean the same.

    Raises:
        ConfigError: they differ; the message names two data sets and what they differ in.
    """
    first = catalogs[0]
    for other in catalogs[1:]:
        _check_fields(first, other)
        if first.manifest.classes != other.manifest.classes:
            raise ConfigError(
                f"{first.url} and {other.url} cannot be mixed: {_classes_differ(first, other)}, so"
                " a label would not mean the same; convert one with the classes of the other"
            )


def _check_fields(first: Catalog, other: Catalog) -> None:
    ours, theirs = _fields(first), _fields(other)
    for name in [*ours, *theirs]:
        if name not in ours or name not in theirs:
            has, lacks = (first, other) if name in ours else (other, first)
            raise ConfigError(
                f"{first.url} and {other.url} cannot be mixed: {has.url} has the field {name!r},"
                f" {lacks.url} does not; convert one with the fields of the other"
            )
        one, two = ours[name], theirs[name]
        if (one.type, one.shape) != (two.type, two.shape):
            raise ConfigError(
                f"{first.url} and {other.url} cannot be mixed: the field {name!r} is"
                f" {_type(one)} in the one and {_type(two)} in the other; convert one with the type"
                " of the other"
            )


def _fields(catalog: Catalog) -> dict[str, Field]:
    return {field.name: field for field in catalog.manifest.schema.fields}


def _type(field: Field) -> str:
    return field.type + (f":{list(field.shape)}" if field.shape else "")


def _classes_differ(first: Catalog, other: Catalog) -> str:
    ours, theirs = first.manifest.classes, other.manifest.classes
    if not ours or not theirs:
        has = first if ours else other
        return f"only {has.url} has names of classes"
    if len(ours) != len(theirs):
        return f"they have {len(ours)} and {len(theirs)} classes"
    number = next(i for i, (one, two) in enumerate(zip(ours, theirs, strict=True)) if one != two)
    return f"class {number} is {ours[number]!r} in the one and {theirs[number]!r} in the other"

"""What a loader reads: one data set, or several mixed by weight."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from streamloader.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Source:
    """One data set of a mixture.

    Attributes:
        url: as of ``StreamLoader``.
        weight: how often its samples are drawn, relative to the other data sets; as often as it
            has samples if no data set of the mixture has a weight.
        split: as of ``StreamLoader``, for this data set.
        storage_options: beside those of ``StreamLoader``, for this data set.
    """

    url: str
    weight: float | None = None
    split: str | None = None
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)


DataSets: TypeAlias = (
    str | os.PathLike[str] | Mapping[str, float] | Sequence[str | os.PathLike[str] | Source]
)


def is_mixture(data: DataSets) -> bool:
    """Whether the batches of ``data`` say which data set a sample is of."""
    return not isinstance(data, str | os.PathLike)


def list_sources(data: DataSets, split: str | None) -> tuple[Source, ...]:
    """The data sets that ``data`` names, in its order.

    Args:
        split: of those that name none themselves.

    Raises:
        ConfigError: something else than URLs and ``Source``, none at all, or weights for some.
    """
    if isinstance(data, Mapping):
        sources = [Source(str(url), weight) for url, weight in data.items()]
    elif isinstance(data, str | os.PathLike):
        sources = [Source(os.fspath(data))]
    elif isinstance(data, Sequence):
        sources = [_source(item) for item in data]
    else:
        raise ConfigError(
            "give the URL of a data set, {url: weight} for a mixture, or a list of URLs or Source,"
            f" got {data!r}"
        )
    if not sources:
        raise ConfigError("a mixture needs one data set at least, got none")
    without = [source.url for source in sources if source.weight is None]
    if 0 < len(without) < len(sources):
        raise ConfigError(
            f"the mixture has no weight for {', '.join(without)}: give every data set a weight, or"
            " none to draw each as often as it has samples"
        )
    return tuple(replace(each, split=each.split or split) for each in sources)


def _source(item: object) -> Source:
    if isinstance(item, Source):
        return replace(item, url=str(item.url))
    if isinstance(item, str | os.PathLike):
        return Source(str(os.fspath(item)))
    raise ConfigError(f"a list of data sets takes URLs and Source, got {item!r}")

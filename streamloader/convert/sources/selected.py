"""A part of a source: one split, some classes, some keys."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from streamloader.convert.report import Rejected
from streamloader.convert.run_memory import RunMemory
from streamloader.convert.sources.source import (
    Int64Array,
    Listing,
    ReadSamples,
    Record,
    Source,
    SplitListing,
)
from streamloader.errors import ConfigError


@dataclass(frozen=True, slots=True, eq=False)
class SelectedSource(Source):
    """The chosen samples of another source, in its order.

    Args:
        inner: the other source.
        listing: of the chosen samples.
        splits: place in ``inner`` of each split.
        places: int64, of each split: places in the split of ``inner`` that are chosen.
    """

    inner: Source
    listing: Listing
    splits: tuple[int, ...]
    places: tuple[Int64Array, ...]

    @contextmanager
    def reading(self) -> Iterator[ReadSamples]:
        with self.inner.reading() as read_inner:

            def read(
                split: int, places: Sequence[int], memory: RunMemory | None = None
            ) -> Iterator[Record | Rejected]:
                chosen = self.places[split]
                return read_inner(
                    self.splits[split], [int(chosen[place]) for place in places], memory
                )

            yield read


def select_samples(
    source: Source,
    *,
    classes: Sequence[str] | None = None,
    keys: frozenset[str] | None = None,
    split: str | None = None,
) -> Source:
    """Return the source with the chosen samples only; itself where nothing is chosen.

    Args:
        source: any.
        classes: names of the classes to keep; labels and the list of classes stay as they are.
        keys: keys to keep.
        split: the split to keep, as a source without splits.

    Raises:
        ConfigError: a class, split or key that the source does not have.
    """
    if classes is None and keys is None and split is None:
        return source
    listing = source.listing
    numbers = _split_numbers(listing, split)
    kept_labels = None if classes is None else _labels(listing, classes)
    splits, places = [], []
    for number in numbers:
        whole = listing.splits[number]
        mask = np.ones(len(whole.keys), dtype=bool)
        if kept_labels is not None:
            assert whole.labels is not None
            mask &= np.isin(whole.labels, kept_labels)
        if keys is not None:
            mask &= np.fromiter((key in keys for key in whole.keys), bool, len(whole.keys))
        chosen = np.flatnonzero(mask).astype(np.int64)
        places.append(chosen)
        splits.append(_part(whole, chosen, None if split is not None else whole.name))
    if keys is not None:
        _require_keys(keys, splits)
    filled = [place for place, part in enumerate(splits) if len(part.keys)]
    if not filled:
        raise ConfigError("no sample of the source is among those that are to be kept")
    selected = dataclasses.replace(listing, splits=tuple(splits[place] for place in filled))
    return SelectedSource(
        source,
        selected,
        tuple(numbers[place] for place in filled),
        tuple(places[place] for place in filled),
    )


def _split_numbers(listing: Listing, split: str | None) -> list[int]:
    names = [part.name for part in listing.splits]
    if split is None:
        return list(range(len(names)))
    if split not in names:
        known = ", ".join(name for name in names if name is not None) or "none"
        raise ConfigError(f"the source has no split {split!r}; it has {known}")
    return [names.index(split)]


def _labels(listing: Listing, classes: Sequence[str]) -> list[int]:
    if not listing.classes or any(split.labels is None for split in listing.splits):
        raise ConfigError("keep_classes needs a source whose classes are known before it is read")
    unknown = sorted(set(classes) - set(listing.classes))
    if unknown:
        raise ConfigError(f"the source has no class {unknown[0]!r}")
    return [listing.classes.index(name) for name in classes]


def _require_keys(keys: frozenset[str], splits: Sequence[SplitListing]) -> None:
    found = {key for part in splits for key in part.keys}
    missing = sorted(keys - found)
    if missing:
        raise ConfigError(
            f"{len(missing)} of the keys to keep are not in the source, the first is {missing[0]!r}"
        )


def _part(whole: SplitListing, chosen: Int64Array, name: str | None) -> SplitListing:
    groups = None
    if whole.groups is not None:
        # Groups that lost all their samples are left out.
        groups = np.unique(np.searchsorted(chosen, whole.groups))
        groups = groups[groups < len(chosen)]
    return SplitListing(
        name=name,
        keys=[whole.keys[place] for place in chosen.tolist()],
        sizes=whole.sizes[chosen],
        labels=None if whole.labels is None else whole.labels[chosen],
        groups=groups,
    )

"""Several sources as one, in the order they are given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import numpy as np

from streamloader.convert.report import Rejected, utf8_name
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

LABEL_NAME = "label"


@dataclass(frozen=True, slots=True)
class _Part:
    """One split of one source inside a split of the whole.

    Args:
        source: place of the source.
        split: place of the split in it.
        first: place in the whole split of its first sample.
    """

    source: int
    split: int
    first: int


@dataclass(frozen=True, slots=True, eq=False)
class JoinedSource(Source):
    """Samples of several sources with the same fields.

    Args:
        inner: the sources.
        listing: of all.
        parts: of each split of the listing, in order.
        label_maps: of each source, int64: its labels to those of the whole; None to keep them.
    """

    inner: tuple[Source, ...]
    listing: Listing
    parts: tuple[tuple[_Part, ...], ...]
    label_maps: tuple[Int64Array | None, ...]

    @contextmanager
    def reading(self) -> Iterator[ReadSamples]:
        with ExitStack() as stack:
            reads = [stack.enter_context(source.reading()) for source in self.inner]

            def read(
                split: int, places: Sequence[int], memory: RunMemory | None = None
            ) -> Iterator[Record | Rejected]:
                return self._read(reads, split, places, memory)

            yield read

    def _read(
        self,
        reads: Sequence[ReadSamples],
        split: int,
        places: Sequence[int],
        memory: RunMemory | None,
    ) -> Iterator[Record | Rejected]:
        parts = self.parts[split]
        firsts = [part.first for part in parts]
        owners = np.searchsorted(firsts, places, side="right") - 1
        streams = {}
        for number in set(owners.tolist()):
            part = parts[number]
            own = [p - part.first for p, o in zip(places, owners, strict=True) if o == number]
            streams[number] = reads[part.source](part.split, own, memory)
        for owner in owners.tolist():
            content = next(streams[owner])
            yield relabelled(content, self.label_maps[parts[owner].source])


def relabelled(content: Record | Rejected, label_map: Int64Array | None) -> Record | Rejected:
    """Return a record whose label is counted in another list of classes."""
    if label_map is None or isinstance(content, Rejected):
        return content
    label = int(content[LABEL_NAME])
    if not 0 <= label < len(label_map):
        # Labels outside of the classes, such as -1 for none, have no name to be found by.
        return content
    return {**content, LABEL_NAME: int(label_map[label])}


def join_sources(sources: Sequence[Source], names: Sequence[str]) -> Source:
    """Return all samples of several sources as one source.

    Classes are joined by name: those of the first source keep their labels, others follow. Where
    a key would be there twice, every key gets the number of its source before it.

    Args:
        sources: with the same fields; all with splits, or none.
        names: how messages call them.

    Raises:
        ConfigError: sources that do not fit together.
    """
    _require_same_fields(sources, names)
    classes = tuple(dict.fromkeys(name for s in sources for name in s.listing.classes))
    maps = tuple(label_map(s.listing.classes, classes) for s in sources)
    split_names = list(dict.fromkeys(split.name for s in sources for split in s.listing.splits))
    if None in split_names and len(split_names) > 1:
        raise ConfigError("of the sources some have splits and some have none; convert them apart")
    prefixed = _has_repeated_keys(sources, split_names)
    splits, parts = [], []
    for name in split_names:
        split, own = _join_split(sources, maps, name, prefixed=prefixed)
        splits.append(split)
        parts.append(own)
    listing = Listing(
        fields=sources[0].listing.fields,
        splits=tuple(splits),
        classes=classes,
        rejects=tuple(r for s in sources for r in s.listing.rejects),
        warnings=tuple(w for s in sources for w in s.listing.warnings),
    )
    return JoinedSource(tuple(sources), listing, tuple(parts), maps)


def label_map(classes: Sequence[str], wanted: Sequence[str]) -> Int64Array | None:
    """Return for each class its place in ``wanted``; None where all places are the same."""
    places = {name: place for place, name in enumerate(wanted)}
    mapped = np.fromiter((places[name] for name in classes), np.int64, len(classes))
    return None if np.array_equal(mapped, np.arange(len(classes))) else mapped


def _require_same_fields(sources: Sequence[Source], names: Sequence[str]) -> None:
    def described(source: Source) -> str:
        return ", ".join(f"{f.name} ({f.type}{list(f.shape) or ''})" for f in source.listing.fields)

    first = described(sources[0])
    for source, name in zip(sources, names, strict=True):
        if described(source) != first:
            raise ConfigError(
                f"sources that are joined must have the same fields: {utf8_name(names[0])} has"
                f" {first}, {utf8_name(name)} has {described(source)}"
            )
        if bool(source.listing.classes) != bool(sources[0].listing.classes):
            raise ConfigError(
                f"of {utf8_name(names[0])} and {utf8_name(name)} one has class names and one has"
                " none, so their labels cannot be joined"
            )


def _has_repeated_keys(sources: Sequence[Source], split_names: Sequence[str | None]) -> bool:
    for name in split_names:
        seen: set[str] = set()
        for source in sources:
            for split in source.listing.splits:
                if split.name == name:
                    before = len(seen)
                    seen.update(split.keys)
                    if len(seen) < before + len(split.keys):
                        return True
    return False


def _join_split(
    sources: Sequence[Source],
    maps: Sequence[Int64Array | None],
    name: str | None,
    *,
    prefixed: bool,
) -> tuple[SplitListing, tuple[_Part, ...]]:
    keys: list[str] = []
    sizes, labels, groups = [], [], []
    parts: list[_Part] = []
    for number, source in enumerate(sources):
        for place, split in enumerate(source.listing.splits):
            if split.name != name:
                continue
            first = len(keys)
            parts.append(_Part(number, place, first))
            keys += [f"{number}/{key}" for key in split.keys] if prefixed else split.keys
            sizes.append(split.sizes)
            mapping = maps[number]
            if split.labels is not None:
                labels.append(split.labels if mapping is None else mapping[split.labels])
            groups.append((None if split.groups is None else split.groups + first, first))
    grouped = any(starts is not None for starts, _ in groups)
    return (
        SplitListing(
            name=name,
            keys=keys,
            sizes=np.concatenate(sizes),
            labels=np.concatenate(labels) if len(labels) == len(parts) else None,
            groups=_joined_groups(groups, len(keys)) if grouped else None,
        ),
        tuple(parts),
    )


def _joined_groups(groups: Sequence[tuple[Int64Array | None, int]], total: int) -> Int64Array:
    """Join the groups of the parts; a part without groups is one of single samples."""
    ends = [first for _, first in groups[1:]] + [total]
    starts = [
        own if own is not None else np.arange(first, end, dtype=np.int64)
        for (own, first), end in zip(groups, ends, strict=True)
    ]
    return np.concatenate(starts)


def with_classes(source: Source, classes: Sequence[str]) -> Source:
    """Return a source whose labels count in ``classes``, and then in what it has besides."""
    own = source.listing.classes
    wanted = tuple(dict.fromkeys([*classes, *own]))
    if own == wanted:
        return source
    mapping = label_map(own, wanted)
    splits = tuple(
        split
        if mapping is None or split.labels is None
        else replace(split, labels=mapping[split.labels])
        for split in source.listing.splits
    )
    return _wrapped(source, replace(source.listing, splits=splits, classes=wanted), mapping)


def named_split(source: Source, name: str) -> Source:
    """Return a source without splits as the split of this name."""
    (split,) = source.listing.splits
    named = replace(split, name=name)
    return _wrapped(source, replace(source.listing, splits=(named,)), None)


def _wrapped(source: Source, listing: Listing, mapping: Int64Array | None) -> Source:
    """Return a source with another listing of the same samples."""
    parts = tuple((_Part(0, place, 0),) for place in range(len(listing.splits)))
    return JoinedSource((source,), listing, parts, (mapping,))

"""Finds the samples in tars by the headers of their members."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from streamloader.convert.report import Rejected, utf8_name
from streamloader.convert.sources.npy import HEADER_BYTES
from streamloader.convert.sources.places import (
    FileRange,
    Place,
    ReadRanges,
    SourceFile,
    is_hidden,
    require_bytes,
)
from streamloader.convert.sources.source import Listing, SplitListing
from streamloader.convert.sources.tar_index import TarMember, read_members
from streamloader.convert.sources.webdataset_members import (
    Column,
    array_column,
    arrays_column,
    field_of,
    simple_column,
)
from streamloader.errors import ConfigError

_ARRAYS_LOOKED_AT = 8
#: Larger archives are not looked into.
_ARCHIVE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class TarSample:
    """The members of one sample: in which tar they are, and where, by ending."""

    tar: int
    members: dict[str, TarMember]


class TarScan:
    """Collects samples while the headers of the tars go by."""

    def __init__(self, place: Place, tars: Sequence[SourceFile]) -> None:
        self._place = place
        self._tars = tuple(tars)
        self._several = len(tars) > 1
        self._names: list[str | None] = []
        self._keys: list[list[str]] = []
        self._samples: list[list[TarSample]] = []
        self._rejects: list[Rejected] = []
        self._kinds: dict[str, str] = {}

    def begin_split(self, name: str | None) -> None:
        self._names.append(name)
        self._keys.append([])
        self._samples.append([])

    def take(self, read: ReadRanges, number: int, tar: SourceFile) -> None:
        """Read the headers of one tar; a sample is a run of members of one name."""

        def read_at(offset: int, length: int) -> bytes:
            (data,) = read([FileRange(tar, offset, length)])
            return require_bytes(data, self._place, tar)

        prefix = f"{tar.path.removesuffix('.tar')}/" if self._several else ""
        seen: set[str] = set()
        current, members, doubled = "", dict[str, TarMember](), ""
        for member in read_members(read_at, tar.size, tar.path):
            stem, ending = _divided(member.name)
            if not ending or any(map(is_hidden, member.name.removeprefix("./").split("/"))):
                continue
            if members and stem != current:
                self._add(number, prefix, current, members, doubled, seen)
                members, doubled = {}, ""
            current = stem
            field, kind = field_of(ending, tar)
            if self._kinds.setdefault(field, kind) != kind:
                raise ConfigError(
                    f"{utf8_name(tar.path)} has members of two kinds for the field {field}, one of"
                    f" them .{ending}; name them apart"
                )
            if field in members:
                doubled = field
            members[field] = member
        if members:
            self._add(number, prefix, current, members, doubled, seen)

    def _add(
        self,
        tar: int,
        prefix: str,
        stem: str,
        members: dict[str, TarMember],
        doubled: str,
        seen: set[str],
    ) -> None:
        key = prefix + stem
        if doubled:
            self._rejects.append(Rejected(key, f"has the field {doubled} twice"))
        elif stem in seen:
            self._rejects.append(Rejected(key, "is in its tar twice"))
        else:
            seen.add(stem)
            self._keys[-1].append(key)
            self._samples[-1].append(TarSample(tar, members))

    def finish(
        self, read: ReadRanges
    ) -> tuple[Listing, tuple[Column, ...], tuple[tuple[TarSample, ...], ...]]:
        """Decide the fields, and leave out the samples that lack one.

        Returns:
            the listing; its columns; and the samples of each split.

        Raises:
            ConfigError: there are no samples, or arrays that no field can hold.
        """
        total = sum(map(len, self._samples))
        if not total:
            raise ConfigError(f"no samples in the tars of {utf8_name(self._place.url)}")
        counts: Counter[str] = Counter(
            name for samples in self._samples for sample in samples for name in sample.members
        )
        names = sorted(name for name, count in counts.items() if 2 * count >= total)
        rare = sorted(counts.keys() - set(names))
        warnings = (
            [f"fields that most samples lack are left out: {', '.join(rare)}"] if rare else []
        )
        columns = tuple(self._column(name, read) for name in names)
        splits, kept = self._complete(names)
        if not kept:
            raise ConfigError(f"no sample of {utf8_name(self._place.url)} has all of {names}")
        fields = tuple(field for column in columns for field in column.fields)
        listing = Listing(fields, splits, (), tuple(self._rejects), tuple(warnings))
        return listing, columns, kept

    def _complete(
        self, names: Sequence[str]
    ) -> tuple[tuple[SplitListing, ...], tuple[tuple[TarSample, ...], ...]]:
        splits, kept = [], []
        for name, keys, samples in zip(self._names, self._keys, self._samples, strict=True):
            own_keys, own = [], []
            for key, sample in zip(keys, samples, strict=True):
                missing = [field for field in names if field not in sample.members]
                if missing:
                    reason = f"has no {missing[0]}, which most samples have"
                    self._rejects.append(Rejected(key, reason))
                    continue
                own_keys.append(key)
                own.append(sample)
            if own:
                sizes = [sum(sample.members[field].size for field in names) for sample in own]
                splits.append(SplitListing(name, own_keys, np.array(sizes, dtype=np.int64)))
                kept.append(tuple(own))
        return tuple(splits), tuple(kept)

    def _column(self, name: str, read: ReadRanges) -> Column:
        kind = self._kinds[name]
        if kind == "array":
            return array_column(name, list(self._first(name, read, HEADER_BYTES)))
        if kind == "arrays":
            return arrays_column(
                name, [data for _, data in self._first(name, read, _ARCHIVE_BYTES)]
            )
        return simple_column(name, kind)

    def _first(self, name: str, read: ReadRanges, at_most: int) -> Iterator[tuple[str, bytes]]:
        """Yield the beginnings of the first few members of a name, and where they are."""
        having = [s for samples in self._samples for s in samples if name in s.members]
        looked_at = having[:_ARRAYS_LOOKED_AT]
        ranges = [
            FileRange(self._tars[s.tar], s.members[name].offset, min(at_most, s.members[name].size))
            for s in looked_at
        ]
        for sample, data in zip(looked_at, read(ranges), strict=True):
            tar = self._tars[sample.tar]
            where = f"{utf8_name(sample.members[name].name)} in {utf8_name(tar.path)}"
            yield where, require_bytes(data, self._place, tar)


def _divided(name: str) -> tuple[str, str]:
    """Divide a member's name at the first dot of its last part, as WebDataset does."""
    folder, slash, base = name.removeprefix("./").rpartition("/")
    stem, _, ending = base.partition(".")
    return folder + slash + stem, ending.lower()

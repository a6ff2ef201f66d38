"""WebDataset: plain tars, where files of one name with different endings are one sample."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamloader.convert.report import Rejected, utf8_name
from streamloader.convert.sources.folder_scan import PICTURE_EXTENSIONS
from streamloader.convert.sources.npy import (
    HEADER_BYTES,
    NotAnArrayError,
    read_npy,
    read_npy_header,
)
from streamloader.convert.sources.places import (
    FileRange,
    Place,
    ReadRanges,
    SourceFile,
    Unreadable,
    is_hidden,
    require_bytes,
)
from streamloader.convert.sources.source import (
    Listing,
    ReadSamples,
    Record,
    Source,
    SplitListing,
)
from streamloader.convert.sources.split_names import files_by_split
from streamloader.convert.sources.tar_index import TarMember, read_members
from streamloader.dts import Field
from streamloader.errors import ConfigError

#: Reading them would run whatever program they hold.
_PICKLES = frozenset({"pkl", "pickle", "pyd", "pth", "pt"})
_TEXTS = frozenset({"txt", "text", "transcript"})
_JSONS = frozenset({"json", "jsn"})
_INTEGERS = frozenset({"cls", "cls2", "index", "inx", "id"})
_PICTURES = frozenset(name[1:] for name in PICTURE_EXTENSIONS)
_ARRAYS_LOOKED_AT = 8
_INTEGER_DIGITS = 19
_TYPES = {"picture": "picture", "bytes": "bytes", "text": "utf8", "json": "json", "integer": "i8"}


@dataclass(frozen=True, slots=True)
class _Sample:
    """The members of one sample: in which tar they are, and where, by field."""

    tar: int
    members: dict[str, TarMember]


@dataclass(frozen=True, slots=True, eq=False)
class WebDatasetSource(Source):
    """Samples of tars.

    Args:
        place: where the tars are.
        listing: keys are the names without endings, after the name of the tar where there are
            several.
        kinds: of each field: how its members are read.
        tars: files, of all splits together.
        samples: of each split.
    """

    place: Place
    listing: Listing
    kinds: tuple[str, ...]
    tars: tuple[SourceFile, ...]
    samples: tuple[tuple[_Sample, ...], ...]

    @classmethod
    def scan(cls, place: Place) -> WebDatasetSource:
        """Read the headers of all tars.

        Raises:
            ConfigError: no tars, damaged ones, or members that are pickles.
            StorageError: the bucket cannot be read.
        """
        by_split = files_by_split(place, place.list_files(), ".tar")
        tars = tuple(tar for files in by_split.values() for tar in files)
        scan = _Scan(place, tars)
        with place.reading() as read:
            number = 0
            for name, files in by_split.items():
                scan.begin_split(name)
                for tar in files:
                    scan.take(read, number, tar)
                    number += 1
            return scan.finish(read)

    @contextmanager
    def reading(self) -> Iterator[ReadSamples]:
        with self.place.reading() as read_ranges:

            def read(split: int, places: Sequence[int]) -> Iterator[Record | Rejected]:
                return self._read(read_ranges, split, places)

            yield read

    def _read(
        self, read_ranges: ReadRanges, split: int, places: Sequence[int]
    ) -> Iterator[Record | Rejected]:
        samples = [self.samples[split][place] for place in places]
        fields = self.listing.fields
        contents = read_ranges(
            [
                FileRange(self.tars[sample.tar], member.offset, member.size)
                for sample in samples
                for member in (sample.members[field.name] for field in fields)
            ]
        )
        for place in places:
            key = self.listing.splits[split].keys[place]
            values: dict[str, Any] = {}
            reason = ""
            for field, kind in zip(fields, self.kinds, strict=True):
                data = next(contents)
                try:
                    values[field.name] = _value(kind, field, data)
                except ValueError as error:
                    reason = reason or f"{field.name}: {error}"
            yield Rejected(key, reason) if reason else values


def _value(kind: str, field: Field, data: bytes | Unreadable) -> Any:
    """Return the value of a member. Raises ValueError, with a reason, where it has none."""
    if isinstance(data, Unreadable):
        raise ValueError(data.reason)
    match kind:
        case "text":
            return _text(data)
        case "json":
            return _json(data)
        case "integer":
            return _integer(data)
        case "array":
            return _array(field, data)
    return data


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError("is not UTF-8") from error


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError("is not JSON") from error


def _integer(data: bytes) -> int:
    text = data.strip()
    if not text.removeprefix(b"-").isdigit() or len(text) > _INTEGER_DIGITS:
        raise ValueError(f"{text[:20]!r} is no whole number")
    return int(text)


def _array(field: Field, data: bytes) -> npt.NDArray[Any]:
    array = read_npy(data)
    if field.shape == (-1,) and array.ndim != 1:
        raise NotAnArrayError(f"an array of shape {array.shape}, others have one dimension")
    if field.shape != (-1,) and array.shape != field.shape:
        raise NotAnArrayError(f"an array of shape {array.shape}, others have {field.shape}")
    if _element(array.dtype) != field.type:
        raise NotAnArrayError(f"an array of {array.dtype}, others are of {field.dtype}")
    return array


class _Scan:
    """Collects samples while the headers of the tars go by."""

    def __init__(self, place: Place, tars: Sequence[SourceFile]) -> None:
        self._place = place
        self._tars = tuple(tars)
        self._several = len(tars) > 1
        self._names: list[str | None] = []
        self._keys: list[list[str]] = []
        self._samples: list[list[_Sample]] = []
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
            field, kind = _field_of(ending, tar)
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
            self._samples[-1].append(_Sample(tar, members))

    def finish(self, read: ReadRanges) -> WebDatasetSource:
        """Decide the fields, and leave out the samples that lack one."""
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
        fields = tuple(self._field(name, read) for name in names)
        splits, kept = self._complete(names)
        if not kept:
            raise ConfigError(f"no sample of {utf8_name(self._place.url)} has all of {names}")
        listing = Listing(fields, splits, (), tuple(self._rejects), tuple(warnings))
        kinds = tuple(self._kinds[name] for name in names)
        return WebDatasetSource(self._place, listing, kinds, self._tars, kept)

    def _complete(
        self, names: Sequence[str]
    ) -> tuple[tuple[SplitListing, ...], tuple[tuple[_Sample, ...], ...]]:
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

    def _field(self, name: str, read: ReadRanges) -> Field:
        kind = self._kinds[name]
        return self._array_field(name, read) if kind == "array" else Field(name, _TYPES[kind])

    def _array_field(self, name: str, read: ReadRanges) -> Field:
        """Decide type and shape of arrays by the first few of them."""
        having = [s for samples in self._samples for s in samples if name in s.members]
        looked_at = having[:_ARRAYS_LOOKED_AT]
        ranges = [
            FileRange(
                self._tars[s.tar],
                s.members[name].offset,
                min(HEADER_BYTES, s.members[name].size),
            )
            for s in looked_at
        ]
        headers = []
        for sample, data in zip(looked_at, read(ranges), strict=True):
            tar = self._tars[sample.tar]
            try:
                headers.append(read_npy_header(require_bytes(data, self._place, tar)))
            except NotAnArrayError as error:
                raise ConfigError(
                    f"{utf8_name(sample.members[name].name)} in {utf8_name(tar.path)} is {error}"
                ) from error
        dtype, shapes = headers[0].dtype, {header.shape for header in headers}
        if any(header.dtype != dtype for header in headers):
            raise ConfigError(f"the arrays {name} are of several types; store them as one")
        if len(shapes) == 1 and min(headers[0].shape, default=1) > 0:
            return Field(name, _element(dtype), headers[0].shape)
        if any(len(shape) != 1 for shape in shapes):
            raise ConfigError(
                f"the arrays {name} are of several shapes with more than one dimension, which a"
                " field cannot hold; flatten or pad them"
            )
        return Field(name, _element(dtype), (-1,))


def _element(dtype: np.dtype[Any]) -> str:
    return "bool" if dtype.kind == "b" else f"{dtype.kind}{dtype.itemsize}"


def _divided(name: str) -> tuple[str, str]:
    """Divide a member's name at the first dot of its last part, as WebDataset does."""
    folder, slash, base = name.removeprefix("./").rpartition("/")
    stem, _, ending = base.partition(".")
    return folder + slash + stem, ending.lower()


def _field_of(ending: str, tar: SourceFile) -> tuple[str, str]:
    """Return the name and the kind of the field that an ending stands for."""
    last = ending.rpartition(".")[2]
    if last in _PICKLES:
        raise ConfigError(
            f"{utf8_name(tar.path)} has .{ending} members: pickles, which run whatever program"
            " they hold when they are read; store the values as .json, .npy or .txt instead"
        )
    if last in _PICTURES:
        return ("image" if ending == last else ending.removesuffix(f".{last}")), "picture"
    if last in _INTEGERS:
        return ("label" if ending == "cls" else ending), "integer"
    if last in _TEXTS:
        return ending, "text"
    if last in _JSONS:
        return ending, "json"
    return ending, "array" if last == "npy" else "bytes"

"""MDS, the shards of MosaicML Streaming, read without the library.

A sample is the u32 size of every column of variable length, then the columns, all in the order of
``column_names``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamloader.convert.report import Rejected, utf8_name
from streamloader.convert.run_memory import RunMemory
from streamloader.convert.sources.mds_columns import MdsColumn
from streamloader.convert.sources.mds_shards import (
    INDEX_NAME,
    MdsShard,
    UnpackedShards,
    read_split,
)
from streamloader.convert.sources.places import Place, ReadRanges, Unreadable
from streamloader.convert.sources.source import (
    Int64Array,
    Listing,
    ReadSamples,
    Record,
    Source,
)
from streamloader.convert.sources.split_names import files_by_split
from streamloader.errors import ConfigError

#: Samples that decide how many pictures the lists of a column have.
_LISTS_LOOKED_AT = 8


@dataclass(frozen=True, slots=True, eq=False)
class MdsSource(Source):
    """Samples of an MDS data set.

    Args:
        place: where its files are.
        listing: keys are the shard's name and the place in it.
        columns: how each field is read; in stored order.
        shards: of each split.
        firsts: int64, of each split: place in the split of each shard's first sample.
    """

    place: Place
    listing: Listing
    columns: tuple[MdsColumn, ...]
    shards: tuple[tuple[MdsShard, ...], ...]
    firsts: tuple[Int64Array, ...]

    @classmethod
    def scan(cls, place: Place) -> MdsSource:
        """Read the indexes and the offsets of all shards.

        Raises:
            ConfigError: a version, column or compression that cannot be read, or damage.
            StorageError: the bucket cannot be read.
        """
        files = {file.path: file for file in place.list_files()}
        indexes = files_by_split(place, files.values(), INDEX_NAME)
        with place.reading() as read:
            parts = [
                read_split(place, read, files, name, index)
                for name, found in indexes.items()
                for index in found
            ]
            columns = parts[0].columns
            for part in parts:
                if part.columns != columns:
                    raise ConfigError(f"the splits of {utf8_name(place.url)} have other columns")
            if any(column.is_list for column in columns):
                columns = _counted(columns, _first_samples(read, parts[0].shards[0]))
        fields = tuple(field for column in columns for field in column.fields)
        listing = Listing(fields, tuple(part.listing for part in parts))
        shards = tuple(part.shards for part in parts)
        return cls(place, listing, columns, shards, tuple(part.firsts for part in parts))

    @contextmanager
    def reading(self) -> Iterator[ReadSamples]:
        with self.place.reading() as read_ranges:
            unpacked = UnpackedShards(read_ranges)

            def read(
                split: int, places: Sequence[int], _memory: RunMemory | None = None
            ) -> Iterator[Record | Rejected]:
                return self._read(read_ranges, unpacked, split, places)

            yield read

    def _read(
        self,
        read_ranges: ReadRanges,
        unpacked: UnpackedShards,
        split: int,
        places: Sequence[int],
    ) -> Iterator[Record | Rejected]:
        keys = self.listing.splits[split].keys
        located = [self._locate(split, place) for place in places]
        direct = read_ranges(
            [shard.range_of(number) for shard, number in located if not shard.packed]
        )
        for place, (shard, number) in zip(places, located, strict=True):
            data = unpacked.sample(shard, number) if shard.packed else next(direct)
            if isinstance(data, Unreadable):
                yield Rejected(keys[place], data.reason)
                continue
            try:
                yield _record(self.columns, data)
            except ValueError as error:
                yield Rejected(keys[place], str(error))

    def _locate(self, split: int, place: int) -> tuple[MdsShard, int]:
        firsts = self.firsts[split]
        shard = int(np.searchsorted(firsts, place, side="right")) - 1
        return self.shards[split][shard], place - int(firsts[shard])


def _first_samples(read: ReadRanges, shard: MdsShard) -> list[bytes]:
    """Return the samples at the beginning of a shard.

    Raises:
        ConfigError: they cannot be read.
    """
    unpacked = UnpackedShards(read)
    numbers = range(min(_LISTS_LOOKED_AT, len(shard.offsets) - 1))
    found = []
    for number in numbers:
        if shard.packed:
            data = unpacked.sample(shard, number)
        else:
            (data,) = read([shard.range_of(number)])
        if isinstance(data, Unreadable):
            raise ConfigError(f"{utf8_name(shard.file.path)} {data.reason}")
        found.append(data)
    return found


def _counted(columns: Sequence[MdsColumn], samples: Sequence[bytes]) -> tuple[MdsColumn, ...]:
    """Return the columns, those of lists with the number of pictures that the samples have.

    Raises:
        ConfigError: the samples differ in it, or are damaged.
    """
    counts: dict[str, set[int]] = {column.name: set() for column in columns if column.is_list}
    try:
        for data in samples:
            for column, value in _stored_values(columns, data):
                if column.is_list:
                    counts[column.name].add(len(column.divided(value)))
    except ValueError as error:
        raise ConfigError(f"the first samples of the MDS data set are damaged: {error}") from error
    return tuple(
        column.counted(counts[column.name]) if column.is_list else column for column in columns
    )


def _record(columns: Sequence[MdsColumn], data: bytes) -> Record:
    """Return the values of a sample. Raises ValueError where its bytes do not add up."""
    record: dict[str, Any] = {}
    for column, stored in _stored_values(columns, data):
        try:
            record.update(column.values(stored))
        except (ValueError, struct.error, IndexError) as error:
            raise ValueError(f"{column.name}: {error}") from error
    return record


def _stored_values(columns: Sequence[MdsColumn], data: bytes) -> Iterator[tuple[MdsColumn, bytes]]:
    """Yield the bytes of every column. Raises ValueError where they do not add up."""
    at = 0
    sizes = []
    for column in columns:
        size = column.size
        if size is None:
            if at + 4 > len(data):
                raise ValueError("its sizes are cut short")
            (size,) = struct.unpack_from("<I", data, at)
            at += 4
        sizes.append(size)
    if at + sum(sizes) != len(data):
        raise ValueError(f"its columns have {sum(sizes)} bytes, the sample {len(data) - at}")
    for column, size in zip(columns, sizes, strict=True):
        yield column, data[at : at + size]
        at += size

"""Parquet files, and the Arrow files of Hugging Face ``datasets``, in a folder or a bucket."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamloader.convert.report import Rejected, utf8_name
from streamloader.convert.run_memory import RunMemory
from streamloader.convert.sources.arrow_columns import ArrowColumn, missing_value, values_of
from streamloader.convert.sources.places import Place
from streamloader.convert.sources.source import (
    Int64Array,
    Listing,
    ReadSamples,
    Record,
    Source,
    SplitListing,
)
from streamloader.convert.sources.split_names import files_by_split
from streamloader.convert.sources.table_files import TABLE_KINDS, Described, RowGroup, TableFiles
from streamloader.errors import ConfigError

#: Groups that are held after they were read, since neighbours in a shard share them.
_HELD_BYTES = 256 << 20
#: Each shard under way needs one: with fewer held, large groups would be read again and again.
_FEWEST_HELD = 4


@dataclass(frozen=True, slots=True, eq=False)
class TableSource(Source):
    """Rows of tables.

    Args:
        place: where the files are.
        kind: ``"parquet"`` or ``"arrow"``.
        listing: keys are the file's name and the row in it.
        columns: how each field is read.
        groups: of each split.
    """

    place: Place
    kind: str
    listing: Listing
    columns: tuple[ArrowColumn, ...]
    groups: tuple[tuple[RowGroup, ...], ...]

    @classmethod
    def scan(cls, place: Place, kind: str) -> TableSource:
        """Read the schemas and the metadata of all files.

        Raises:
            ConfigError: without pyarrow, tables of different columns, or damaged ones.
            StorageError: the bucket cannot be read.
        """
        files_of = TABLE_KINDS[kind]
        by_split = files_by_split(place, place.list_files(), files_of.suffix)
        splits, groups = [], []
        known: Described | None = None
        with place.reading() as read:
            tables = files_of(place, read)
            for name, files in by_split.items():
                own: list[RowGroup] = []
                for file in files:
                    described, found = tables.scan(file)
                    if known is not None and described != known:
                        raise ConfigError(
                            f"{utf8_name(file.path)} has other columns than the files before it"
                        )
                    known = described
                    own += found
                own = [group for group in own if group.rows]
                if own:
                    splits.append(_split_listing(name, own))
                    groups.append(tuple(own))
        if known is None or not splits:
            raise ConfigError(f"the tables of {utf8_name(place.url)} have no rows")
        columns, classes = known
        listing = Listing(tuple(c.field for c in columns), tuple(splits), classes)
        return cls(place, kind, listing, columns, tuple(groups))

    @contextmanager
    def reading(self) -> Iterator[ReadSamples]:
        with self.place.reading() as read_ranges:
            names = [column.name for column in self.columns]
            held = _HeldGroups(TABLE_KINDS[self.kind](self.place, read_ranges), names)

            def read(
                split: int, places: Sequence[int], _memory: RunMemory | None = None
            ) -> Iterator[Record | Rejected]:
                return self._read(held, split, places)

            yield read

    def _read(
        self, held: _HeldGroups, split: int, places: Sequence[int]
    ) -> Iterator[Record | Rejected]:
        listing = self.listing.splits[split]
        assert listing.groups is not None
        numbers = np.searchsorted(listing.groups, places, side="right") - 1
        found: dict[int, Record | Rejected] = {}
        for number in np.unique(numbers).tolist():
            own = [p for p, n in zip(places, numbers, strict=True) if n == number]
            first = int(listing.groups[number])
            table = held.get(self.groups[split][number])
            rows = table.take([place - first for place in own])
            values = [list(values_of(c, rows.column(c.name))) for c in self.columns]
            for place, row in zip(own, zip(*values, strict=True), strict=True):
                found[place] = self._record(listing.keys[place], row)
        for place in places:
            yield found[place]

    def _record(self, key: str, row: Sequence[Any]) -> Record | Rejected:
        reason = missing_value(self.columns, row)
        if reason is not None:
            return Rejected(key, reason)
        return {c.field.name: value for c, value in zip(self.columns, row, strict=True)}


def _split_listing(name: str | None, groups: Sequence[RowGroup]) -> SplitListing:
    keys: list[str] = []
    rows_before: dict[str, int] = {}
    sizes = []
    for group in groups:
        path = group.file.path
        first = rows_before.get(path, 0)
        keys += [f"{path}/{first + row}" for row in range(group.rows)]
        rows_before[path] = first + group.rows
        # Rows have no sizes of their own in the metadata: each gets its share of the group.
        sizes.append(np.full(group.rows, -(-group.bytes // group.rows), dtype=np.int64))
    starts: Int64Array = np.cumsum([0, *(group.rows for group in groups)])[:-1].astype(np.int64)
    return SplitListing(name, keys, np.concatenate(sizes), groups=starts)


class _HeldGroups:
    """Groups that were read, those used last; each is read by one thread, while others wait."""

    def __init__(self, tables: TableFiles, columns: Sequence[str]) -> None:
        self._tables = tables
        self._columns = columns
        self._held: OrderedDict[RowGroup, Future[Any]] = OrderedDict()
        self._held_bytes = 0
        self._lock = threading.Lock()

    def get(self, group: RowGroup) -> Any:
        """Return the table of a group."""
        with self._lock:
            future = self._held.get(group)
            if future is not None:
                self._held.move_to_end(group)
            else:
                own = self._held[group] = Future[Any]()
                self._held_bytes += group.bytes
                while self._held_bytes > _HELD_BYTES and len(self._held) > _FEWEST_HELD:
                    oldest, _ = self._held.popitem(last=False)
                    self._held_bytes -= oldest.bytes
        if future is not None:
            return future.result()
        try:
            own.set_result(self._tables.rows(group, self._columns))
        except BaseException as error:
            own.set_exception(error)
            raise
        return own.result()

"""Parquet files, and the Arrow files of Hugging Face ``datasets``."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamloader.convert.report import Rejected, utf8_name
from streamloader.convert.sources.arrow_columns import (
    ArrowColumn,
    columns_of,
    missing_value,
    pyarrow,
    values_of,
)
from streamloader.convert.sources.places import Folder, Place
from streamloader.convert.sources.source import (
    Int64Array,
    Listing,
    ReadSamples,
    Record,
    Source,
    SplitListing,
)
from streamloader.convert.sources.split_names import files_by_split
from streamloader.errors import ConfigError

#: Row groups that are held after they were read, since neighbours in a shard share them.
_HELD_BYTES = 256 << 20
_Described = tuple[tuple[ArrowColumn, ...], tuple[str, ...]]
_SUFFIXES = {"parquet": ".parquet", "arrow": ".arrow"}


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows that are read together: a row group of Parquet, a record batch of Arrow.

    Args:
        path: of the file.
        number: of the group in it.
        rows: how many.
        bytes: of its columns, unpacked.
    """

    path: str
    number: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class TableSource(Source):
    """Rows of tables in a local folder.

    Args:
        root: the folder.
        kind: ``"parquet"`` or ``"arrow"``.
        listing: keys are the file's name and the row in it.
        columns: how each field is read.
        groups: of each split.
    """

    root: str
    kind: str
    listing: Listing
    columns: tuple[ArrowColumn, ...]
    groups: tuple[tuple[_Group, ...], ...]

    @classmethod
    def scan(cls, place: Place, kind: str) -> TableSource:
        """Read the schemas and the metadata of all files.

        Raises:
            ConfigError: tables in a bucket, without pyarrow, of different columns, or damaged.
        """
        if not isinstance(place, Folder):
            raise ConfigError(
                f"Parquet and Arrow files are read from local folders, and {place.url} is none;"
                " copy them first"
            )
        arrow = pyarrow()
        by_split = files_by_split(place, place.list_files(), _SUFFIXES[kind])
        splits, groups = [], []
        known: _Described | None = None
        for name, files in by_split.items():
            own: list[_Group] = []
            for file in files:
                described, found = _scan_file(arrow, place.url, file.path, kind)
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
        return cls(place.url, kind, listing, columns, tuple(groups))

    @contextmanager
    def reading(self) -> Iterator[ReadSamples]:
        held = _HeldGroups(self.root, self.kind, [column.name for column in self.columns])

        def read(split: int, places: Sequence[int]) -> Iterator[Record | Rejected]:
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


def _scan_file(arrow: Any, root: str, path: str, kind: str) -> tuple[_Described, list[_Group]]:
    """Return the columns and class names of a file, and its groups."""
    whole = os.path.join(root, path)
    try:
        if kind == "parquet":
            with arrow.parquet.ParquetFile(whole) as file:
                metadata = file.metadata
                parts = [metadata.row_group(n) for n in range(metadata.num_row_groups)]
                return columns_of(file.schema_arrow), [
                    _Group(path, n, part.num_rows, part.total_byte_size)
                    for n, part in enumerate(parts)
                ]
        with arrow.memory_map(whole) as mapped:
            schema, batches = _arrow_batches(arrow, mapped)
            return columns_of(schema), [
                _Group(path, n, batch.num_rows, batch.nbytes) for n, batch in enumerate(batches)
            ]
    except (OSError, arrow.ArrowException, UnicodeDecodeError) as error:
        raise _unreadable(path, kind, error) from error


def _arrow_batches(arrow: Any, mapped: Any) -> tuple[Any, list[Any]]:
    """Return schema and record batches of an Arrow file, or of a stream as datasets writes."""
    try:
        file = arrow.ipc.open_file(mapped)
    except arrow.ArrowInvalid:
        mapped.seek(0)
        stream = arrow.ipc.open_stream(mapped)
        return stream.schema, list(stream)
    return file.schema, [file.get_batch(n) for n in range(file.num_record_batches)]


def _split_listing(name: str | None, groups: Sequence[_Group]) -> SplitListing:
    keys: list[str] = []
    rows_before: dict[str, int] = {}
    sizes = []
    for group in groups:
        first = rows_before.get(group.path, 0)
        keys += [f"{group.path}/{first + row}" for row in range(group.rows)]
        rows_before[group.path] = first + group.rows
        # Rows have no sizes of their own in the metadata: each gets its share of the group.
        sizes.append(np.full(group.rows, -(-group.bytes // group.rows), dtype=np.int64))
    starts: Int64Array = np.cumsum([0, *(group.rows for group in groups)])[:-1].astype(np.int64)
    return SplitListing(name, keys, np.concatenate(sizes), groups=starts)


class _HeldGroups:
    """Groups that were read, those used last; Arrow files are mapped and not held."""

    def __init__(self, root: str, kind: str, columns: Sequence[str]) -> None:
        self._root = root
        self._kind = kind
        self._columns = list(columns)
        self._held: OrderedDict[_Group, Any] = OrderedDict()
        self._held_bytes = 0
        self._mapped: dict[str, list[Any]] = {}
        # One at a time, so that threads which need the same group do not all read it.
        self._lock = threading.Lock()

    def get(self, group: _Group) -> Any:
        """Return the table of a group."""
        with self._lock:
            if self._kind == "arrow":
                return self._get_mapped(group)
            table = self._held.get(group)
            if table is None:
                table = self._read(group)
                self._held[group] = table
                self._held_bytes += group.bytes
                while self._held_bytes > _HELD_BYTES and len(self._held) > 1:
                    oldest, _ = self._held.popitem(last=False)
                    self._held_bytes -= oldest.bytes
            else:
                self._held.move_to_end(group)
            return table

    def _read(self, group: _Group) -> Any:
        arrow = pyarrow()
        path = os.path.join(self._root, group.path)
        try:
            with arrow.parquet.ParquetFile(path) as file:
                table = file.read_row_group(group.number, columns=self._columns, use_threads=False)
            return _validated(table, group)
        except (OSError, arrow.ArrowException, UnicodeDecodeError) as error:
            raise _unreadable(group.path, self._kind, error) from error

    def _get_mapped(self, group: _Group) -> Any:
        arrow = pyarrow()
        try:
            batches = self._mapped.get(group.path)
            if batches is None:
                mapped = arrow.memory_map(os.path.join(self._root, group.path))
                _, batches = _arrow_batches(arrow, mapped)
                self._mapped[group.path] = batches
            table = self._held.get(group)
            if table is None:
                # Costs no memory but its own: the values stay in the file.
                table = _validated(arrow.Table.from_batches([batches[group.number]]), group)
                self._held[group] = table
            return table
        except (OSError, arrow.ArrowException, UnicodeDecodeError) as error:
            raise _unreadable(group.path, self._kind, error) from error


def _validated(table: Any, group: _Group) -> Any:
    """Check every offset and text: values of damaged tables would lie outside of their memory."""
    table.validate(full=True)
    if table.num_rows != group.rows:
        raise ConfigError(f"{utf8_name(group.path)} changed during the conversion")
    return table


def _unreadable(path: str, kind: str, error: Exception) -> ConfigError:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return ConfigError(f"{utf8_name(path)} cannot be read as {kind}: {reason}")

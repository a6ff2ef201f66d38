"""A folder of pictures with a table that says more of each."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamloader.convert.report import Rejected, utf8_name
from streamloader.convert.run_memory import RunMemory
from streamloader.convert.sources.folder import IMAGE
from streamloader.convert.sources.folder_layout import read_layout
from streamloader.convert.sources.label_table import LabelTable, read_table
from streamloader.convert.sources.places import FileRange, Place, SourceFile, Unreadable
from streamloader.convert.sources.source import (
    Listing,
    ReadSamples,
    Record,
    Source,
    SplitListing,
)
from streamloader.errors import ConfigError


@dataclass(frozen=True, slots=True, eq=False)
class LabelledFolder(Source):
    """Files as they are, each with the values of its row.

    Args:
        place: where the files are.
        listing: keys are the paths.
        files: of each split.
        rows: of each split, values by field.
    """

    place: Place
    listing: Listing
    files: tuple[tuple[SourceFile, ...], ...]
    rows: tuple[tuple[Mapping[str, Any], ...], ...]

    @classmethod
    def scan(
        cls,
        place: Place,
        table_path: str | os.PathLike[str],
        options: Mapping[str, Any] | None = None,
    ) -> LabelledFolder:
        """List the files and read the table.

        A picture without a row, or with several, is rejected, and so is a row without a picture.
        Folders are no classes here: the table says what a picture is.

        Args:
            place: where the files are.
            table_path: path or URL of the table.
            options: of ``open_store``, for a table in a bucket.

        Raises:
            ConfigError: a folder or table that cannot be read, or no picture with a row.
            StorageError: a bucket cannot be read.
        """
        table = read_table(table_path, options)
        layout = read_layout(place, mixed=True)
        if any(field.name == IMAGE.name for field in table.fields):
            raise ConfigError("the table has a column named image besides that of the paths")
        splits, files, rows = [], [], []
        rejects = list(layout.rejects)
        used: set[str] = set()
        for split in layout.splits:
            own = [
                (file, row)
                for file in split.pictures
                if (row := _row_of(table, split.name, file.path, used, rejects)) is not None
            ]
            if own:
                splits.append(_split_listing(split.name, own, table))
                files.append(tuple(file for file, _ in own))
                rows.append(tuple(row for _, row in own))
        if not splits:
            raise ConfigError(
                f"no picture of {utf8_name(place.url)} has a row in the table"
                f" {utf8_name(os.fspath(table_path))}, whose paths are relative to the folder"
            )
        rejects += [
            Rejected(path, "the table has a row for it, the folder no picture")
            for path in table.rows
            if path not in used
        ]
        listing = Listing(
            (IMAGE, *table.fields),
            tuple(splits),
            table.classes,
            tuple(rejects),
            layout.warnings,
        )
        return cls(place, listing, tuple(files), tuple(rows))

    @contextmanager
    def reading(self) -> Iterator[ReadSamples]:
        with self.place.reading() as read_ranges:

            def read(
                split: int, places: Sequence[int], memory: RunMemory | None = None
            ) -> Iterator[Record | Rejected]:
                files, rows = self.files[split], self.rows[split]
                contents = read_ranges.into(
                    [FileRange.whole(files[place]) for place in places], memory or RunMemory(0)
                )
                for place, content in zip(places, contents, strict=True):
                    if isinstance(content, Unreadable):
                        yield Rejected(files[place].path, content.reason)
                    else:
                        yield {"image": content, **rows[place]}

            yield read


def _row_of(
    table: LabelTable, split: str | None, path: str, used: set[str], rejects: list[Rejected]
) -> Mapping[str, Any] | None:
    """Return the row of a picture: by its path, or by that inside its split."""
    name = path
    if name not in table.rows and split is not None:
        name = path.removeprefix(f"{split}/")
    row = table.rows.get(name)
    if row is None:
        rejects.append(Rejected(path, "has no row in the table"))
        return None
    used.add(name)
    if name in table.repeated:
        rejects.append(Rejected(path, "has several rows in the table"))
        return None
    return row


def _split_listing(
    name: str | None, own: Sequence[tuple[SourceFile, Mapping[str, Any]]], table: LabelTable
) -> SplitListing:
    labels = None
    if table.classes:
        labels = np.array([row["label"] for _, row in own], dtype=np.int64)
    return SplitListing(
        name=name,
        keys=[file.path for file, _ in own],
        sizes=np.array([file.size for file, _ in own], dtype=np.int64),
        labels=labels,
    )

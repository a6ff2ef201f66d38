"""Pictures as files: in class folders or flat, of this machine or in a bucket."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamloader.convert.report import Rejected, utf8_name
from streamloader.convert.run_memory import RunMemory
from streamloader.convert.sources.folder_layout import FolderLayout, FolderSplit, read_layout
from streamloader.convert.sources.packed_files import PackedFiles
from streamloader.convert.sources.places import FileRange, Place, ReadRanges, SourceFile, Unreadable
from streamloader.convert.sources.source import (
    Listing,
    ReadPacked,
    ReadSamples,
    Record,
    Source,
    SplitListing,
)
from streamloader.dts import Field

IMAGE = Field("image", "picture")
LABEL = Field("label", "i8")

_TABLES_OF_OTHERS = frozenset({"metadata.csv", "metadata.jsonl", "metadata.parquet"})


@dataclass(frozen=True, slots=True, eq=False)
class FolderSource(Source):
    """Files as they are, and with class folders the place of the folder among the classes.

    Args:
        place: where the files are.
        listing: keys are the paths.
        files: of each split.
    """

    place: Place
    listing: Listing
    files: tuple[tuple[SourceFile, ...], ...]

    @classmethod
    def scan(cls, place: Place) -> FolderSource:
        """List a folder or bucket; see ``read_layout``."""
        layout = read_layout(place)
        listing = Listing(
            fields=(IMAGE, LABEL) if layout.classes else (IMAGE,),
            splits=tuple(map(_split_listing, layout.splits)),
            classes=tuple(map(utf8_name, layout.classes)),
            rejects=layout.rejects,
            warnings=(*layout.warnings, *_warn_tables(layout)),
        )
        return cls(place, listing, tuple(split.pictures for split in layout.splits))

    @contextmanager
    def reading(self) -> Iterator[ReadSamples]:
        with self.place.reading() as read_ranges:
            files = _ReadFiles(self, read_ranges)
            yield files if read_ranges.packs else files.__call__


class _ReadFiles(ReadPacked):
    def __init__(self, source: FolderSource, read_ranges: ReadRanges) -> None:
        self._files = source.files
        self._labels = [split.labels for split in source.listing.splits]
        self._read_ranges = read_ranges

    def __call__(
        self, split: int, places: Sequence[int], memory: RunMemory | None = None, /
    ) -> Iterator[Record | Rejected]:
        files, labels = self._files[split], self._labels[split]
        contents = self._read_ranges.into(
            [FileRange.whole(files[place]) for place in places], memory or RunMemory(0)
        )
        for place, content in zip(places, contents, strict=True):
            if isinstance(content, Unreadable):
                yield Rejected(files[place].path, content.reason)
            elif labels is None:
                yield {"image": content}
            else:
                yield {"image": content, "label": int(labels[place])}

    def packed(
        self, split: int, places: Sequence[int], memory: RunMemory
    ) -> tuple[PackedFiles, dict[str, npt.NDArray[Any]]] | None:
        files, labels = self._files[split], self._labels[split]
        found = self._read_ranges.packed([files[place] for place in places], memory)
        if found is None:
            return None
        return found, {} if labels is None else {"label": labels[list(places)]}


def _warn_tables(layout: FolderLayout) -> list[str]:
    """Say of tables that other libraries would read by their name that they are not read."""
    tables = [r.path for r in layout.rejects if r.path.rpartition("/")[2] in _TABLES_OF_OTHERS]
    return [
        f"{utf8_name(path)} is not used; give it with --labels if it says what the pictures are"
        for path in tables
    ]


def _split_listing(split: FolderSplit) -> SplitListing:
    return SplitListing(
        name=split.name,
        keys=[file.path for file in split.pictures],
        sizes=np.fromiter((file.size for file in split.pictures), np.int64, len(split.pictures)),
        labels=split.labels,
    )

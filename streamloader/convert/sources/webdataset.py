"""WebDataset: plain tars, where files of one name with different endings are one sample."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from streamloader.convert.report import Rejected
from streamloader.convert.run_memory import RunMemory
from streamloader.convert.sources.places import FileRange, Place, ReadRanges, SourceFile
from streamloader.convert.sources.source import Listing, ReadSamples, Record, Source
from streamloader.convert.sources.split_names import files_by_split
from streamloader.convert.sources.webdataset_members import Column
from streamloader.convert.sources.webdataset_scan import TarSample, TarScan


@dataclass(frozen=True, slots=True, eq=False)
class WebDatasetSource(Source):
    """Samples of tars.

    Args:
        place: where the tars are.
        listing: keys are the names without endings, after the name of the tar where there are
            several.
        columns: how its members are read.
        tars: files, of all splits together.
        samples: of each split.
    """

    place: Place
    listing: Listing
    columns: tuple[Column, ...]
    tars: tuple[SourceFile, ...]
    samples: tuple[tuple[TarSample, ...], ...]

    @classmethod
    def scan(cls, place: Place) -> WebDatasetSource:
        """Read the headers of all tars.

        Raises:
            ConfigError: no tars, damaged ones, or members that are pickles.
            StorageError: the bucket cannot be read.
        """
        by_split = files_by_split(place, place.list_files(), ".tar")
        tars = tuple(tar for files in by_split.values() for tar in files)
        scan = TarScan(place, tars)
        with place.reading() as read:
            number = 0
            for name, files in by_split.items():
                scan.begin_split(name)
                for tar in files:
                    scan.take(read, number, tar)
                    number += 1
            listing, columns, samples = scan.finish(read)
        return cls(place, listing, columns, tars, samples)

    @contextmanager
    def reading(self) -> Iterator[ReadSamples]:
        with self.place.reading() as read_ranges:

            def read(
                split: int, places: Sequence[int], memory: RunMemory | None = None
            ) -> Iterator[Record | Rejected]:
                return self._read(read_ranges, split, places, memory or RunMemory(0))

            yield read

    def _read(
        self, read_ranges: ReadRanges, split: int, places: Sequence[int], memory: RunMemory
    ) -> Iterator[Record | Rejected]:
        samples = [self.samples[split][place] for place in places]
        contents = read_ranges.into(
            [
                FileRange(self.tars[sample.tar], member.offset, member.size)
                for sample in samples
                for member in (sample.members[column.member] for column in self.columns)
            ],
            memory,
        )
        for place in places:
            key = self.listing.splits[split].keys[place]
            values: dict[str, Any] = {}
            reason = ""
            for column in self.columns:
                data = next(contents)
                try:
                    values.update(column.values(data))
                except ValueError as error:
                    reason = reason or f"{column.member}: {error}"
            yield Rejected(key, reason) if reason else values

"""The contract of a source: what it lists before the conversion, and how samples are read.

The listing is all that decides which sample goes where, so it must follow from the source alone.
A source is data: it can be pickled, and what it needs to read (files, connections) lives inside
``reading()``, in whichever process reads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from streamloader.convert.report import Rejected
from streamloader.convert.run_memory import RunMemory
from streamloader.convert.sources.packed_files import PackedFiles
from streamloader.dts import Field

Int64Array: TypeAlias = npt.NDArray[np.int64]

Record: TypeAlias = Mapping[str, Any]
"""A value for every field."""


class ReadSamples(Protocol):
    """Reads samples of a source; called from several threads at once."""

    def __call__(
        self, split: int, places: Sequence[int], memory: RunMemory | None = None, /
    ) -> Iterator[Record | Rejected]:
        """Give a record, or why there is none, for each place, in order.

        It raises only what ends the conversion, such as a storage that does not answer; what is
        wrong with one sample makes it a ``Rejected``.

        Args:
            split: place of the split in the listing.
            places: in the split.
            memory: where bytes may lie, then as memoryviews; None gives bytes of their own.
        """


class ReadPacked(ABC):
    """A ``ReadSamples`` of a source whose samples are one file and whole numbers each."""

    @abstractmethod
    def __call__(
        self, split: int, places: Sequence[int], memory: RunMemory | None = None, /
    ) -> Iterator[Record | Rejected]:
        """Give samples one by one; see ``ReadSamples``."""

    @abstractmethod
    def packed(
        self, split: int, places: Sequence[int], memory: RunMemory
    ) -> tuple[PackedFiles, dict[str, npt.NDArray[Any]]] | None:
        """Give the files of samples, and their other fields by name.

        None where that cannot be, such as for a file that is not as it was listed: the samples
        are read one by one then, which tells what is wrong.
        """


@dataclass(frozen=True, slots=True, eq=False)
class SplitListing:
    """The samples of one split, as columns, in the order of the source.

    Args:
        name: ``train``, ``val``, …; None for a source without splits.
        keys: a name for each sample, distinct within the split.
        sizes: int64 ``[len(keys)]``, bytes of each sample, as well as they are known unread.
        labels: int64 ``[len(keys)]``, where labels are known unread and there are classes.
        groups: int64, first place of each run of samples that the source can only read together;
            None where every sample is read alone.
    """

    name: str | None
    keys: Sequence[str]
    sizes: Int64Array
    labels: Int64Array | None = None
    groups: Int64Array | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Listing:
    """What a source holds.

    Args:
        fields: of every sample.
        splits: at least one; the only one has no name where the source has no splits.
        classes: class names by label, the same for all splits; empty where there are none.
        rejects: what was left out already.
        warnings: sentences for the user.
    """

    fields: tuple[Field, ...]
    splits: tuple[SplitListing, ...]
    classes: tuple[str, ...] = ()
    rejects: tuple[Rejected, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def num_samples(self) -> int:
        """Samples of all splits."""
        return sum(len(split.keys) for split in self.splits)

    @property
    def total_bytes(self) -> int:
        """Bytes of all samples."""
        return sum(int(split.sizes.sum()) for split in self.splits)


class Source(ABC):
    """Samples that can be converted.

    Attributes:
        listing: what it holds.
    """

    listing: Listing

    @abstractmethod
    def reading(self) -> AbstractContextManager[ReadSamples]:
        """Hold what reading needs, and give the function that reads."""

"""One opened data set, or several as one: their samples numbered one data set after the other."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from streamloader.dts import Schema
from streamloader.errors import SampleError
from streamloader.fetch.catalog import Catalog

_SHORT = 16


class Sources:
    """What is asked of the data sets of a loader, whether it is one or a mixture.

    Args:
        catalogs: of the data sets, one or more; their schemas agree.
    """

    def __init__(self, catalogs: Sequence[Catalog]) -> None:
        self.catalogs = tuple(catalogs)
        sizes = [catalog.num_samples for catalog in self.catalogs]
        self.first_samples: npt.NDArray[np.int64] = np.cumsum([0, *sizes[:-1]], dtype=np.int64)
        self.num_samples = sum(sizes)

    @property
    def url(self) -> str:
        """Where the data sets lie, for messages."""
        return " and ".join(catalog.url for catalog in self.catalogs)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the manifest, or of those of all data sets, in hex."""
        if len(self.catalogs) == 1:
            return self.catalogs[0].fingerprint
        whole = "\n".join(self.names)
        return hashlib.sha256(whole.encode()).hexdigest()

    @property
    def names(self) -> list[str]:
        """What tells each data set and split from any other, wherever it lies."""
        return [
            catalog.fingerprint + ("" if catalog.split is None else f":{catalog.split}")
            for catalog in self.catalogs
        ]

    @property
    def short_names(self) -> list[str]:
        """The names as messages and states have them; ``fingerprint`` holds all of each."""
        return [
            catalog.fingerprint[:_SHORT] + name[len(catalog.fingerprint) :]
            for catalog, name in zip(self.catalogs, self.names, strict=True)
        ]

    @property
    def schema(self) -> Schema:
        """The fields of a sample."""
        return self.catalogs[0].manifest.schema

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, the same in all data sets."""
        return tuple(self.catalogs[0].manifest.classes or ())

    @property
    def tail_bytes_held(self) -> int:
        return sum(catalog.tail_bytes_held for catalog in self.catalogs)

    def source_of(self, sample: int) -> int:
        """Number of the data set that has a sample."""
        return int(np.searchsorted(self.first_samples, sample, side="right")) - 1

    async def sample_error(self, sample: int, reason: str) -> SampleError:
        """The error that names one sample by its data set, shard, key and offset."""
        source = self.source_of(sample)
        number = sample - int(self.first_samples[source])
        return await self.catalogs[source].sample_error(number, reason)

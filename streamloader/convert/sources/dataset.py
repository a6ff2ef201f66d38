"""A data set of ours as a source: to cut it anew, shuffle it, filter it, or join several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from storage_backends import Truncated, open_store
from streamloader.convert.report import Rejected
from streamloader.convert.run_memory import RunMemory
from streamloader.convert.sources.source import (
    Int64Array,
    Listing,
    ReadSamples,
    Record,
    Source,
    SplitListing,
)
from streamloader.dts import NO_DEFAULT, Field, ShardIndex, SplitEntry
from streamloader.errors import ConfigError, ShardError
from streamloader.fetch import Catalog, LoopThread, all_or_cancel

_TAILS_IN_FLIGHT = 8


@dataclass(frozen=True, slots=True, eq=False)
class DatasetSource(Source):
    """Samples of a published data set, each checked against its hash.

    Args:
        url: where it is.
        options: of ``open_store``.
        fingerprint: of the revision that was listed.
        listing: keys are those of the samples; those without have their number.
        shards: int64, of each split: numbers of its shards.
        firsts: int64, of each split: place in the split of each shard's first sample.
    """

    url: str
    options: Mapping[str, Any] = field(repr=False)
    fingerprint: str
    listing: Listing
    shards: tuple[Int64Array, ...]
    firsts: tuple[Int64Array, ...]

    @classmethod
    def scan(cls, url: str, options: Mapping[str, Any]) -> DatasetSource:
        """Read the manifest and the tails of all shards.

        Raises:
            ConfigError: there is no data set.
            ShardError: it is damaged.
            StorageError: the storage failed.
        """
        with LoopThread("source-loop") as loop:
            return loop.run(_scan(url, options))

    @contextmanager
    def reading(self) -> Iterator[ReadSamples]:
        with LoopThread("source-loop") as loop:
            store = open_store(self.url, **self.options)
            loop.run(store.__aenter__())
            try:
                catalog = loop.run(Catalog.open(store, any_split=True))
                if catalog.fingerprint != self.fingerprint:
                    raise ConfigError(
                        f"the data set {self.url} was published anew while it was converted;"
                        " convert again"
                    )

                def read(
                    split: int, places: Sequence[int], _memory: RunMemory | None = None
                ) -> Iterator[Record | Rejected]:
                    return iter(loop.run(self._read(catalog, split, places)))

                yield read
            finally:
                loop.run(store.close())

    async def _read(
        self, catalog: Catalog, split: int, places: Sequence[int]
    ) -> list[Record | Rejected]:
        return await all_or_cancel([self._read_one(catalog, split, place) for place in places])

    async def _read_one(self, catalog: Catalog, split: int, place: int) -> Record | Rejected:
        firsts = self.firsts[split]
        run = int(np.searchsorted(firsts, place, side="right")) - 1
        shard, number = int(self.shards[split][run]), place - int(firsts[run])
        index = await catalog.shard_index(shard)
        start, end = (int(offset) for offset in index.offsets[number : number + 2])
        data = np.empty(end - start, dtype=np.uint8).data
        key = self.listing.splits[split].keys[place]
        try:
            await catalog.store.read_into(catalog.manifest.entry(shard).name, start, data)
            for fault in index.verify_records(number, 1, data, start):
                return Rejected(key, f"{fault.field}: {fault.reason}")
            return index.read_record(number, data, start, catalog.manifest.schema)
        except Truncated as error:
            return Rejected(key, str(error))
        except ShardError as error:
            return Rejected(key, error.reason)


async def _scan(url: str, options: Mapping[str, Any]) -> DatasetSource:
    store = open_store(url, **options)
    async with store:
        catalog = await Catalog.open(store, any_split=True)
        manifest = catalog.manifest
        runs: list[tuple[str | None, SplitEntry]] = [
            (name, run)
            for name, run in sorted(manifest.splits.items(), key=lambda item: item[1].first_shard)
        ] or [(None, SplitEntry(0, manifest.num_shards))]
        splits, shards, firsts = [], [], []
        for name, run in runs:
            numbers = np.arange(run.first_shard, run.first_shard + run.num_shards, dtype=np.int64)
            counts = manifest.shard_samples[numbers]
            split = await _list_split(catalog, name, numbers)
            splits.append(split)
            shards.append(numbers)
            firsts.append(np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64))
    fields = tuple(_without_default(f) for f in manifest.schema.fields)
    listing = Listing(fields, tuple(splits), manifest.classes)
    return DatasetSource(url, options, manifest.fingerprint, listing, tuple(shards), tuple(firsts))


def _without_default(known: Field) -> Field:
    """Every record is stored whole, so that a default has nothing to stand for."""
    return Field(known.name, known.type, known.shape, known.codec, NO_DEFAULT)


async def _list_split(catalog: Catalog, name: str | None, shards: Int64Array) -> SplitListing:
    keys: list[str] = []
    sizes, labels = [], []
    has_labels = bool(catalog.manifest.classes) and _label_is_column(catalog)
    for start in range(0, len(shards), _TAILS_IN_FLIGHT):
        some = shards[start : start + _TAILS_IN_FLIGHT].tolist()
        indexes: list[ShardIndex] = await all_or_cancel(
            [catalog.read_index(shard) for shard in some]
        )
        for index in indexes:
            first = len(keys)
            keys += [index.key(n) or f"#{first + n}" for n in range(index.num_samples)]
            sizes.append(np.diff(index.offsets).astype(np.int64))
            if has_labels:
                labels.append(index.column("label").astype(np.int64))
    return SplitListing(
        name, keys, np.concatenate(sizes), np.concatenate(labels) if has_labels else None
    )


def _label_is_column(catalog: Catalog) -> bool:
    """Tell whether every shard has its labels as whole numbers in its tail."""
    return all(
        any(c.name == "label" and c.shape == () and c.type[0] in "iu" for c in schema.columns)
        for schema in catalog.manifest.schemas
    )

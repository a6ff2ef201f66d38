"""Reads single samples of a data set, and draws a contact sheet of some."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from storage_backends import Store, open_store
from streamloader.convert.parallel import for_each
from streamloader.errors import ConfigError, SampleError
from streamloader.fetch import Catalog
from streamloader.fetch.loop import LoopThread

_READS_IN_FLIGHT = 8


@dataclass(frozen=True, slots=True)
class StoredSample:
    """One sample as it is stored.

    Args:
        number: its number in the split.
        shard: name of its shard.
        offset: byte offset of its record in the shard.
        key: its key, None if it has none.
        record: value by field: pictures and bytes as bytes, text as str, arrays as numpy arrays.
        classes: class names by label.
    """

    number: int
    shard: str
    offset: int
    key: str | None
    record: dict[str, Any]
    classes: tuple[str, ...]

    @property
    def class_name(self) -> str | None:
        """Name of the class that its label says, if any."""
        label = self.record.get("label")
        if label is None or np.ndim(label) or not 0 <= int(label) < len(self.classes):
            return None
        return self.classes[int(label)]


def read_samples(
    url: str | os.PathLike[str],
    numbers: Sequence[int],
    *,
    split: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> list[StoredSample]:
    """Read samples by number, each with its checksum verified.

    Args:
        url: a path or ``s3://bucket/prefix``.
        numbers: in the split, 0 is the first; negative ones count from the end.
        split: which split; needed where the data set has several.
        storage_options: options of ``open_store``.

    Raises:
        ConfigError: there is no data set, no such split or no such sample.
        SampleError: a sample is damaged.
        StorageError: the storage refused or failed.
    """
    store = open_store(os.fspath(url), **(storage_options or {}))
    with LoopThread("samples-loop") as loop:
        return loop.run(_read_samples(store, numbers, split))


def spread_samples(
    url: str | os.PathLike[str],
    count: int,
    *,
    split: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> list[StoredSample]:
    """Read ``count`` samples at even distances, or all if there are fewer; see ``read_samples``."""
    store = open_store(os.fspath(url), **(storage_options or {}))
    with LoopThread("samples-loop") as loop:
        return loop.run(_spread_samples(store, count, split))


async def _spread_samples(store: Store, count: int, split: str | None) -> list[StoredSample]:
    async with store:
        catalog = await Catalog.open(store, split)
        count = min(count, catalog.num_samples)
        numbers = (np.arange(count) * catalog.num_samples // max(1, count)).tolist()
        return await _read_all(catalog, numbers)


async def _read_samples(
    store: Store, numbers: Sequence[int], split: str | None
) -> list[StoredSample]:
    async with store:
        catalog = await Catalog.open(store, split)
        total = catalog.num_samples
        for number in numbers:
            if not -total <= number < total:
                raise ConfigError(f"no sample {number} in {store.url}, which has {total}")
        return await _read_all(catalog, [number % total for number in numbers])


async def _read_all(catalog: Catalog, numbers: Sequence[int]) -> list[StoredSample]:
    found: dict[int, StoredSample] = {}

    async def read(number: int) -> None:
        found[number] = await read_sample(catalog, number)

    await for_each(sorted(set(numbers)), read, at_once=_READS_IN_FLIGHT)
    return [found[number] for number in numbers]


async def read_sample(catalog: Catalog, number: int) -> StoredSample:
    """Read one sample of an opened data set and verify it.

    Raises:
        SampleError: its record is damaged.
    """
    (span,) = catalog.blocks.locate(number, 1)
    index = await catalog.shard_index(span.shard)
    start, end = (int(offset) for offset in index.offsets[span.first : span.first + 2])
    data = np.empty(end - start, dtype=np.uint8).data
    name = catalog.manifest.entry(span.shard).name
    await catalog.store.read_into(name, start, data)
    key = index.key(span.first)
    for fault in index.verify_records(span.first, 1, data, start):
        raise SampleError(
            f"{fault.field}: {fault.reason}",
            dataset=catalog.url,
            shard=name,
            sample=number,
            key=key,
            offset=fault.offset,
        )
    record = index.read_record(span.first, data, start)
    return StoredSample(number, name, start, key, record, tuple(catalog.manifest.classes))

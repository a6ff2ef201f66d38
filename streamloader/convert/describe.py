"""Says what a data set holds, from its manifest and the tails of its shards; no picture is read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from storage_backends import Store, open_store
from streamloader.convert.parallel import for_each
from streamloader.dts import Manifest, Schema
from streamloader.fetch import Catalog
from streamloader.fetch.loop import LoopThread

_TAILS_IN_FLIGHT = 8


@dataclass(frozen=True, slots=True)
class Description:
    """What a data set holds.

    Args:
        url: where it is.
        manifest: as published.
        class_counts: samples by label, int64 ``[len(manifest.classes)]``; None where the data
            set has no class names or no ``label`` field.
        picture_sizes: for each picture field, the smallest, median and largest width and height.
    """

    url: str
    manifest: Manifest
    class_counts: npt.NDArray[np.int64] | None
    picture_sizes: dict[str, PictureSizes]

    @property
    def schema(self) -> Schema:
        """Fields of the samples."""
        return self.manifest.schema

    def to_json(self) -> dict[str, Any]:
        """Return the description as JSON values."""
        manifest = self.manifest
        counts = self.class_counts
        return {
            "url": self.url,
            "samples": manifest.num_samples,
            "shards": len(manifest.shard_samples),
            "bytes": int(manifest.shard_bytes.sum()),
            "fields": [
                {"name": f.name, "type": f.type, "shape": list(f.shape), "codec": f.codec}
                for f in self.schema.fields
            ],
            "hash": self.schema.hash,
            "classes": list(manifest.classes),
            "class_counts": None if counts is None else counts.tolist(),
            "splits": split_counts(manifest),
            "pictures": {name: sizes.to_json() for name, sizes in self.picture_sizes.items()},
            "block_samples": manifest.block_samples,
            "max_block_bytes": manifest.max_block_bytes,
            "max_record_bytes": manifest.max_record_bytes,
            "export_seed": manifest.export_seed,
            "revision": manifest.rev,
            "created_by": manifest.created_by,
            "fingerprint": manifest.fingerprint,
        }


@dataclass(frozen=True, slots=True)
class PictureSizes:
    """Smallest, median and largest width and height of the pictures of one field, in pixels."""

    width: tuple[int, int, int]
    height: tuple[int, int, int]

    def to_json(self) -> dict[str, dict[str, int]]:
        """Return the sizes as JSON values."""
        names = ("min", "median", "max")
        return {
            "width": dict(zip(names, self.width, strict=True)),
            "height": dict(zip(names, self.height, strict=True)),
        }


def describe(
    url: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None
) -> Description:
    """Describe a data set, all splits of it.

    Raises:
        ConfigError: there is no data set.
        ShardError: a file of it is damaged.
        StorageError: the storage refused or failed.
    """
    store = open_store(os.fspath(url), **(storage_options or {}))
    with LoopThread("inspect-loop") as loop:
        return loop.run(_describe(store))


def split_counts(manifest: Manifest) -> dict[str, int]:
    """Return the samples of each split by name; empty without splits."""
    return {
        name: int(
            manifest.shard_samples[entry.first_shard : entry.first_shard + entry.num_shards].sum()
        )
        for name, entry in manifest.splits.items()
    }


async def _describe(store: Store) -> Description:
    async with store:
        catalog = await Catalog.open(store, any_split=True)
        columns = await _read_columns(catalog)
    manifest = catalog.manifest
    counts = None
    if "label" in columns and manifest.classes:
        labels = columns["label"]
        known = labels[(labels >= 0) & (labels < len(manifest.classes))]
        counts = np.bincount(known, minlength=len(manifest.classes))
    pictures = {
        field.name: PictureSizes(
            _spread(columns[f"{field.name}.width"]), _spread(columns[f"{field.name}.height"])
        )
        for field in manifest.schema.fields
        if field.type == "picture"
    }
    return Description(store.url, manifest, counts, pictures)


async def _read_columns(catalog: Catalog) -> dict[str, npt.NDArray[Any]]:
    """Return the label column and the picture sizes of all samples, by name."""
    schema = catalog.manifest.schema
    names = [
        column.name
        for column in schema.columns
        if column.name.endswith((".width", ".height"))
        or (column.name == "label" and column.shape == () and column.type[0] in "iu")
    ]
    parts: list[dict[str, npt.NDArray[Any]]] = [{} for _ in catalog.manifest.shard_samples]

    async def read(shard: int) -> None:
        index = await catalog.read_index(shard)
        # Copies: a view would keep the whole tail in memory.
        parts[shard] = {name: index.column(name).copy() for name in names}

    await for_each(range(len(parts)), read, at_once=_TAILS_IN_FLIGHT)
    none = np.empty(0, dtype=np.int64)
    return {name: np.concatenate([none, *(part[name] for part in parts)]) for name in names}


def _spread(values: npt.NDArray[Any]) -> tuple[int, int, int]:
    if not len(values):
        return 0, 0, 0
    return int(values.min()), int(np.median(values)), int(values.max())

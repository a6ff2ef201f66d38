"""Says what differs between two data sets, from their manifests and tails; no record is read."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from storage_backends import open_store
from streamloader.convert.parallel import for_each
from streamloader.dts import Schema, ShardIndex, SplitEntry
from streamloader.errors import ConfigError
from streamloader.fetch import Catalog, LoopThread

_TAILS_IN_FLIGHT = 8
JSON_KEYS = 1000

Digests = dict[str, bytes]


@dataclass(frozen=True, slots=True)
class Difference:
    """What differs between two data sets, A and B.

    Args:
        url_a, url_b: where they are.
        samples_a, samples_b: samples of each.
        schema: sentences on fields and hash that differ.
        classes: sentences on class names that differ.
        added: keys of samples that only B has, sorted.
        removed: keys of samples that only A has, sorted.
        changed: keys of samples whose values differ, sorted.
        moved: samples that are the same, but of another split or at another number in it.
    """

    url_a: str
    url_b: str
    samples_a: int
    samples_b: int
    schema: tuple[str, ...]
    classes: tuple[str, ...]
    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    moved: int

    @property
    def same(self) -> bool:
        """Whether both have the same samples under the same fields and classes, in any order."""
        return not (self.schema or self.classes or self.added or self.removed or self.changed)

    def to_json(self) -> dict[str, Any]:
        """Return the difference as JSON values; of the keys the first 1,000 of each kind."""
        lists = {"added": self.added, "removed": self.removed, "changed": self.changed}
        return {
            "a": self.url_a,
            "b": self.url_b,
            "same": self.same,
            "samples": [self.samples_a, self.samples_b],
            "schema": list(self.schema),
            "classes": list(self.classes),
            **{name: [_printable(key) for key in keys[:JSON_KEYS]] for name, keys in lists.items()},
            **{f"{name}_total": len(keys) for name, keys in lists.items()},
            "moved": self.moved,
        }


def compare(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> Difference:
    """Compare two data sets, sample by sample by their keys.

    Values are compared by the hashes in the tails, so both need the same hash. Compressed values
    differ where they were compressed differently. Samples without a key, and of a key that a
    split has several times, go by their number.

    Raises:
        ConfigError: there is no data set, or they have different hashes.
        ShardError: a file is damaged.
        StorageError: the storage refused or failed.
    """
    stores = [open_store(os.fspath(url), **(storage_options or {})) for url in (a, b)]

    async def run() -> Difference:
        async with AsyncExitStack() as stack:
            for store in stores:
                await stack.enter_async_context(store)
            first, second = [await Catalog.open(store, any_split=True) for store in stores]
            return await _compare(first, second)

    with LoopThread("diff-loop") as loop:
        return loop.run(run())


async def _compare(a: Catalog, b: Catalog) -> Difference:
    if a.manifest.hash != b.manifest.hash:
        raise ConfigError(
            f"{a.url} has the hash {a.manifest.hash} and {b.url} {b.manifest.hash}, so their values"
            " cannot be compared by it; convert one with the hash of the other"
        )
    common = [f for f in a.manifest.schema.fields if _same_field(f.name, a, b)]
    names = [f.name for f in common]
    known, places = await _digests(a, names)
    other, other_places = await _digests(b, names)
    both = known.keys() & other.keys()
    changed = tuple(sorted(key for key in both if known[key] != other[key]))
    return Difference(
        url_a=a.url,
        url_b=b.url,
        samples_a=a.manifest.num_samples,
        samples_b=b.manifest.num_samples,
        schema=_schema_differences(a.manifest.schema, b.manifest.schema),
        classes=_class_differences(a.manifest.classes, b.manifest.classes),
        added=tuple(sorted(other.keys() - known.keys())),
        removed=tuple(sorted(known.keys() - other.keys())),
        changed=changed,
        moved=sum(known[key] == other[key] and places[key] != other_places[key] for key in both),
    )


def _same_field(name: str, a: Catalog, b: Catalog) -> bool:
    fields = [
        {f.name: (f.type, f.shape) for f in catalog.manifest.schema.fields} for catalog in (a, b)
    ]
    return fields[0].get(name) == fields[1].get(name)


async def _digests(
    catalog: Catalog, names: Sequence[str]
) -> tuple[Digests, dict[str, tuple[str, int]]]:
    """Return a digest of the values of every sample by key, and its split and number."""
    manifest = catalog.manifest
    digests: Digests = {}
    places: dict[str, tuple[str, int]] = {}
    runs: Mapping[str, SplitEntry] = manifest.splits or {"": SplitEntry(0, manifest.num_shards)}
    for split, run in runs.items():
        shards = range(run.first_shard, run.first_shard + run.num_shards)
        parts: dict[int, list[tuple[str | None, bytes]]] = {}

        async def read(shard: int, parts: dict[int, Any] = parts) -> None:
            index = await catalog.read_index(shard)
            parts[shard] = list(zip(_keys(index), _values(index, names), strict=True))

        await for_each(shards, read, at_once=_TAILS_IN_FLIGHT)
        number = 0
        for shard in shards:
            for key, digest in parts[shard]:
                name = key if key is not None and key not in digests else f"{key or split}#{number}"
                digests[name] = digest
                places[name] = (split, number)
                number += 1
    return digests, places


def _keys(index: ShardIndex) -> list[str | None]:
    return [index.key(sample) for sample in range(index.num_samples)]


def _values(index: ShardIndex, names: Sequence[str]) -> list[bytes]:
    """Return a digest of the common fields of each sample of a shard."""
    rows: list[npt.NDArray[np.uint8]] = []
    for name in names:
        field = index.schema.field(name) if _has(index.schema, name) else None
        if field is None:
            continue
        if field.is_column:
            column = np.ascontiguousarray(index.column(name))
            rows.append(column.view(np.uint8).reshape(index.num_samples, -1))
        else:
            hashes = np.ascontiguousarray(index.hashes(name).astype("<u8"))
            rows.append(hashes.view(np.uint8).reshape(index.num_samples, -1))
    if not rows or not index.num_samples:
        return [b""] * index.num_samples
    table = np.concatenate(rows, axis=1)
    return [xxhash.xxh3_128_digest(row.tobytes()) for row in table]


def _has(schema: Schema, name: str) -> bool:
    return any(field.name == name for field in schema.fields)


def _schema_differences(a: Schema, b: Schema) -> tuple[str, ...]:
    first = {f.name: f"{f.type}{list(f.shape) or ''}" for f in a.fields}
    second = {f.name: f"{f.type}{list(f.shape) or ''}" for f in b.fields}
    found = []
    for name in sorted(first.keys() | second.keys()):
        if name not in second:
            found.append(f"only A has the field {name}")
        elif name not in first:
            found.append(f"only B has the field {name}")
        elif first[name] != second[name]:
            found.append(f"the field {name} is {first[name]} in A and {second[name]} in B")
    return tuple(found)


def _class_differences(a: Sequence[str], b: Sequence[str]) -> tuple[str, ...]:
    if tuple(a) == tuple(b):
        return ()
    found = [f"only A has the class {name}" for name in a if name not in set(b)]
    found += [f"only B has the class {name}" for name in b if name not in set(a)]
    return tuple(found) or ("the classes have other labels",)


def _printable(key: str) -> str:
    return key.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")

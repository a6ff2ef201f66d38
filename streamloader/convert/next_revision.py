"""Makes the manifest that follows on another, with more shards."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from storage_backends import Store
from streamloader.convert.parallel import for_each
from streamloader.convert.upload import StoredShard
from streamloader.dts import (
    Manifest,
    Schema,
    ShardEntry,
    SidecarEntry,
    SplitEntry,
    build_sidecar,
    sidecar_name,
)
from streamloader.fetch import Catalog

_TAILS_IN_FLIGHT = 8

Offsets = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class _Stored:
    """A shard of either revision: its line in the manifest, and where its records start."""

    entry: ShardEntry
    offsets: Offsets


async def next_manifest(
    store: Store,
    base: Manifest,
    schema: Schema,
    classes: tuple[str, ...],
    added: Sequence[StoredShard],
) -> tuple[Manifest, bytes]:
    """Return the manifest of the next revision, and its sidecar.

    Args:
        store: where the data set is.
        base: the revision before.
        schema: of the added shards.
        classes: of all samples; begin with those of ``base``.
        added: shards, each of a split if ``base`` has splits.
    """
    schemas = base.schemas if schema in base.schemas else (*base.schemas, schema)
    schema_id = schemas.index(schema)
    kept = await _stored_shards(store, base)
    new = [
        (s.split, _Stored(s.summary.entry(s.name, schema_id=schema_id), s.summary.offsets))
        for s in added
    ]
    names = list(dict.fromkeys([*_split_names(base), *(split for split, _ in new)]))
    shards: list[_Stored] = []
    splits: dict[str, SplitEntry] = {}
    starts = []
    for name in names:
        starts.append(len(shards))
        run = base.splits.get(name) if name is not None else SplitEntry(0, base.num_shards)
        if run is not None:
            shards += kept[run.first_shard : run.first_shard + run.num_shards]
        shards += [stored for split, stored in new if split == name]
        if name is not None:
            splits[name] = SplitEntry(starts[-1], len(shards) - starts[-1])
    table, max_block_bytes = build_sidecar(
        (stored.offsets for stored in shards), base.block_samples, starts
    )
    sidecar, rev = table.to_bytes(), base.rev + 1
    manifest = replace_manifest(
        base,
        rev=rev,
        schemas=schemas,
        shards=[stored.entry for stored in shards],
        splits=splits,
        classes=classes,
        max_block_bytes=max_block_bytes,
        max_record_bytes=max(
            base.max_record_bytes, *(shard.summary.max_record_bytes for shard in added)
        ),
        sidecar=SidecarEntry(sidecar_name(rev), hashlib.sha256(sidecar).hexdigest()),
    )
    return manifest, sidecar


def replace_manifest(base: Manifest, **changes: Any) -> Manifest:
    """Return a manifest that follows on another."""
    values: dict[str, Any] = {
        "dataset_uuid": base.dataset_uuid,
        "block_samples": base.block_samples,
        "parent_rev": base.rev,
        "export_seed": base.export_seed,
        "created_by": base.created_by,
        "sample_align": base.sample_align,
    }
    return Manifest(**{**values, **changes})


async def _stored_shards(store: Store, manifest: Manifest) -> list[_Stored]:
    """Read where the records of every shard start, from the tails."""
    catalog = await Catalog.open(store, any_split=True)
    offsets: list[Offsets | None] = [None] * manifest.num_shards

    async def read(shard: int) -> None:
        offsets[shard] = (await catalog.read_index(shard)).offsets.copy()

    await for_each(range(manifest.num_shards), read, at_once=_TAILS_IN_FLIGHT)
    return [
        _Stored(manifest.entry(shard), found)
        for shard, found in enumerate(offsets)
        if found is not None
    ]


def _split_names(manifest: Manifest) -> list[str | None]:
    """Return the splits in stored order; one without a name where there are none."""
    if not manifest.splits:
        return [None]
    return sorted(manifest.splits, key=lambda name: manifest.splits[name or ""].first_shard)

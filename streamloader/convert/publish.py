"""Makes a set of stored shards a data set: sizes confirmed, sidecar, manifest, pointer last.

Until the pointer is there, nothing is: a run that was interrupted leaves shards that the next
run overwrites, never a data set that is half there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from storage_backends import NotFound, Store
from streamloader.convert.options import SAMPLE_ALIGN
from streamloader.convert.parallel import for_each
from streamloader.convert.upload import StoredShard
from streamloader.dts import (
    POINTER_NAME,
    Manifest,
    Pointer,
    Schema,
    SidecarEntry,
    SplitEntry,
    build_sidecar,
    manifest_name,
    sidecar_name,
)
from streamloader.errors import ConfigError, ShardError

FIRST_REVISION = 1
CREATED_BY = "streamloader convert"
_CONFIRMATIONS_IN_FLIGHT = 16


class AlreadyPublishedError(ConfigError):
    """Another writer was faster; the files at the destination are its own now."""


@dataclass(frozen=True, slots=True)
class Publication:
    """What the manifest says besides its shards.

    Args:
        schema: fields of all shards.
        classes: class names by label.
        block_samples: samples per block.
        export_seed: seed of the stored order; None where it is not shuffled.
    """

    schema: Schema
    classes: tuple[str, ...]
    block_samples: int
    export_seed: int | None


async def require_free(store: Store) -> None:
    """Check that the destination can be used and holds no data set.

    Raises:
        ConfigError: it holds one.
        StorageError: there is no such place, or no way in.
    """
    await store.check()
    try:
        taken = [info.key async for info in store.list("manifest-")]
        taken += [info.key async for info in store.list(POINTER_NAME)]
    except NotFound:  # check() has passed, so this is a folder that is yet to be made
        return
    if taken:
        raise ConfigError(
            f"{store.url} already holds a data set ({taken[0]}); choose another destination or"
            " remove it first"
        )


async def publish(
    store: Store, shards: Sequence[StoredShard], publication: Publication
) -> Manifest:
    """Write sidecar, manifest and pointer for shards that are in the store.

    Raises:
        ShardError: a shard is not there in full.
        ConfigError: somebody else published there in the meantime.
        StorageError: the storage failed.
    """
    await _confirm_all(store, shards)
    manifest, sidecar = _manifest(shards, publication)
    name, content = manifest_name(manifest.rev), manifest.to_bytes()
    await store.put(manifest.sidecar.name, sidecar)
    if not await store.put_if_absent(name, content):
        raise AlreadyPublishedError(
            f"another writer published {name} at {store.url} in the meantime; choose another"
            " destination"
        )
    pointer = Pointer(manifest.rev, name, hashlib.sha256(content).hexdigest())
    try:
        await store.put(POINTER_NAME, pointer.to_bytes())
    except BaseException:
        # Nothing can read it without the pointer, and it would keep the next run from trying.
        await store.delete(name)
        raise
    return manifest


async def _confirm_all(store: Store, shards: Sequence[StoredShard]) -> None:
    """Ask the store for every shard: what it acknowledged must be there, whole."""

    async def confirm(shard: StoredShard) -> None:
        info = await store.info(shard.name)
        if info.size != shard.summary.bytes:
            raise ShardError(
                f"the store has {info.size} bytes of it, {shard.summary.bytes} were written;"
                " is another conversion writing to the same place?",
                shard=shard.name,
            )

    await for_each(shards, confirm, at_once=_CONFIRMATIONS_IN_FLIGHT)


def split_samples(shards: Sequence[StoredShard]) -> dict[str, int]:
    """Return the samples of each split by name; empty without splits."""
    counts: dict[str, int] = {}
    for shard in shards:
        if shard.split is not None:
            counts[shard.split] = counts.get(shard.split, 0) + shard.summary.samples
    return counts


def _manifest(shards: Sequence[StoredShard], publication: Publication) -> tuple[Manifest, bytes]:
    """Return the manifest and the bytes of the sidecar that it names."""
    splits = _splits(shards)
    split_starts = [entry.first_shard for entry in splits.values()] or [0]
    offsets = (shard.summary.offsets for shard in shards)
    table, max_block_bytes = build_sidecar(offsets, publication.block_samples, split_starts)
    sidecar = table.to_bytes()
    digests = "".join(shard.summary.sha256 for shard in shards)
    manifest = Manifest(
        dataset_uuid=hashlib.sha256(digests.encode("ascii")).digest()[:16],
        rev=FIRST_REVISION,
        schemas=(publication.schema,),
        shards=[shard.summary.entry(shard.name) for shard in shards],
        splits=splits,
        classes=publication.classes,
        block_samples=publication.block_samples,
        max_block_bytes=max_block_bytes,
        max_record_bytes=max(shard.summary.max_record_bytes for shard in shards),
        sidecar=SidecarEntry(sidecar_name(FIRST_REVISION), hashlib.sha256(sidecar).hexdigest()),
        export_seed=publication.export_seed,
        created_by=CREATED_BY,
        sample_align=SAMPLE_ALIGN,
    )
    return manifest, sidecar


def _splits(shards: Sequence[StoredShard]) -> dict[str, SplitEntry]:
    splits: dict[str, SplitEntry] = {}
    for number, shard in enumerate(shards):
        if shard.split is not None:
            known = splits.get(shard.split, SplitEntry(number, 0))
            splits[shard.split] = SplitEntry(known.first_shard, known.num_shards + 1)
    return splits

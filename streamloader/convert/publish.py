"""Makes a set of stored shards a data set: confirmed, sidecar, manifest, pointer last.

Until the pointer is there, nothing is: a run that was interrupted leaves shards and a journal,
never a data set that is half there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from storage_backends import NotFound, Store
from streamloader.convert.journal import confirm_shard
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
from streamloader.errors import ConfigError

FIRST_REVISION = 1
CREATED_BY = "streamloader convert"
_MANIFEST_MAX_BYTES = 256 << 20
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


async def published_names(store: Store) -> list[str]:
    """Return the manifests and the pointer at a destination; empty where no data set is.

    Raises:
        StorageError: there is no such place, or no way in.
    """
    await store.check()
    try:
        taken = [info.key async for info in store.list("manifest-")]
        taken += [info.key async for info in store.list(POINTER_NAME)]
    except NotFound as error:
        if error.code == "NoSuchBucket":
            raise
        return []  # check() has passed, so this is a folder that is yet to be made
    return taken


async def require_free(store: Store) -> None:
    """Check that the destination can be used and holds no data set.

    Raises:
        ConfigError: it holds one.
        StorageError: there is no such place, or no way in.
    """
    taken = await published_names(store)
    if taken:
        raise holds_a_data_set(store, taken[0])


def holds_a_data_set(store: Store, name: str) -> ConfigError:
    """The error of a destination that is taken."""
    return ConfigError(
        f"{store.url} already holds a data set ({name}); choose another destination, replace it"
        " with --overwrite, or add to it with `streamloader append`"
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
    await confirm_all(store, shards)
    manifest, sidecar = first_manifest(shards, publication)
    await publish_manifest(store, manifest, sidecar, resumable=False)
    return manifest


async def publish_manifest(
    store: Store, manifest: Manifest, sidecar: bytes, *, resumable: bool
) -> None:
    """Publish a manifest: its sidecar first, the pointer last.

    A manifest of the same bytes may be there: from a run that was killed before the pointer, or
    from another run of the same conversion. Who writes the pointer has published.

    Args:
        store: the destination.
        manifest: what is published.
        sidecar: content of its sidecar.
        resumable: leave the manifest if the pointer cannot be written, for the run that goes on.

    Raises:
        AlreadyPublishedError: somebody else did.
        StorageError: the storage failed.
    """
    name, content = manifest_name(manifest.rev), manifest.to_bytes()
    await store.put(manifest.sidecar.name, sidecar)
    if (
        not await store.put_if_absent(name, content)
        and await store.read(name, max_bytes=_MANIFEST_MAX_BYTES) != content
    ):
        raise _too_late(store, name)
    pointer = Pointer(manifest.rev, name, hashlib.sha256(content).hexdigest())
    try:
        await _put_pointer(store, pointer)
    except AlreadyPublishedError:
        raise
    except BaseException:
        if not resumable:
            # Nothing can read it without the pointer, and it would keep the next run from trying.
            await store.delete(name)
        raise


async def _put_pointer(store: Store, pointer: Pointer) -> None:
    if pointer.rev > FIRST_REVISION:
        await store.put(POINTER_NAME, pointer.to_bytes())
    elif not await store.put_if_absent(POINTER_NAME, pointer.to_bytes()):
        raise _too_late(store, POINTER_NAME)


def _too_late(store: Store, name: str) -> AlreadyPublishedError:
    return AlreadyPublishedError(
        f"another writer published {name} at {store.url} in the meantime; this run added nothing"
        " to it, choose another destination if it should have"
    )


async def confirm_all(store: Store, shards: Sequence[StoredShard]) -> None:
    """Ask the store for every shard: what it acknowledged must be there, whole.

    Raises:
        ShardError: a shard is not there in full.
    """

    async def confirm(shard: StoredShard) -> None:
        await confirm_shard(store, shard.summary.entry(shard.name))

    await for_each(shards, confirm, at_once=_CONFIRMATIONS_IN_FLIGHT)


def split_samples(shards: Sequence[StoredShard]) -> dict[str, int]:
    """Return the samples of each split by name; empty without splits."""
    counts: dict[str, int] = {}
    for shard in shards:
        if shard.split is not None:
            counts[shard.split] = counts.get(shard.split, 0) + shard.summary.samples
    return counts


def first_manifest(
    shards: Sequence[StoredShard], publication: Publication
) -> tuple[Manifest, bytes]:
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

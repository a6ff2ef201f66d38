"""Removes data sets, and what broken conversions left; never a file of anybody else.

A file is ours if a manifest or a journal names it, or if it has the name that we give to such
files and, for shards, begins like one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from storage_backends import NotFound, Store, Truncated, UnfinishedWrite
from streamloader.convert.journal import PLAN_NAME, PREFIX, read_plan
from streamloader.convert.parallel import for_each
from streamloader.dts import POINTER_NAME, Manifest, Pointer, manifest_name
from streamloader.errors import ConfigError, ShardError

_IN_FLIGHT = 16
_MANIFEST_MAX_BYTES = 256 << 20
_POINTER_MAX_BYTES = 4096
_MANIFEST = re.compile(r"manifest-\d{6}\.json", re.ASCII)
_SIDECAR = re.compile(r"offsets-\d{6}\.bin", re.ASCII)
_REJECTS = re.compile(r"rejects(-\d{6})?\.jsonl", re.ASCII)
_SHARD = re.compile(r"([A-Za-z0-9_.-]+-)?\d{5,}\.dts", re.ASCII)
_SHARD_MAGIC = b"\x89DTS\r\n\x1a\n"


@dataclass(frozen=True, slots=True)
class Rest:
    """One thing that a broken conversion left.

    Args:
        name: of the object.
        bytes: its size.
        write: an unfinished write; None for objects.
    """

    name: str
    bytes: int | None
    write: UnfinishedWrite | None = None


async def remove_data_set(store: Store) -> None:
    """Remove a data set and every unfinished conversion; the pointer first, so that none reads it.

    Raises:
        ShardError: its manifest is damaged, so that nothing says which shards it has.
    """
    names = await _own_names(store, published=True)
    await store.delete(POINTER_NAME)
    first = [name for name in names if _MANIFEST.fullmatch(name)]
    await for_each(first, store.delete, at_once=_IN_FLIGHT)
    rest = [name for name in names if not _MANIFEST.fullmatch(name)]
    await for_each(rest, store.delete, at_once=_IN_FLIGHT)


async def find_rests(store: Store) -> list[Rest]:
    """List what belongs to no published revision and was written by a conversion.

    Unfinished writes count where they are of an object that would be ours by its name.

    Raises:
        ConfigError: there is a manifest and nothing that says whether it was published.
        ShardError: a manifest is damaged, so that nothing says which shards are needed.
        StorageError: the storage failed.
    """
    names = await _own_names(store, published=False)
    rests = [Rest(name, size) for name, size in sorted(names.items())]
    rests += [
        Rest(write.key, write.size, write)
        async for write in store.unfinished()
        if write.upload_id is None or _SHARD.fullmatch(write.key) or _is_ours_by_name(write.key)
    ]
    return rests


async def remove_rests(store: Store, rests: list[Rest]) -> None:
    """Remove what ``find_rests`` has listed; the plan last, since it names the others."""
    writes = [rest.write for rest in rests if rest.write is not None]
    names = [rest.name for rest in rests if rest.write is None]
    await for_each(writes, store.discard, at_once=_IN_FLIGHT)
    plan = [name for name in names if name == PLAN_NAME]
    others = [name for name in names if name != PLAN_NAME]
    await for_each(others, store.delete, at_once=_IN_FLIGHT)
    await for_each(plan, store.delete, at_once=_IN_FLIGHT)


async def _own_names(store: Store, *, published: bool) -> dict[str, int]:
    """Return names and sizes of our files that are, or are not, part of the published revisions."""
    try:
        sizes = {info.key: info.size async for info in store.list()}
    except NotFound as error:
        if error.code == "NoSuchBucket":
            raise
        return {}
    kept = await _published_names(store, sizes)
    plan = await read_plan(store)
    if not published and plan is None and not kept and any(map(_MANIFEST.fullmatch, sizes)):
        raise ConfigError(
            f"{store.url} has a manifest and neither {POINTER_NAME} nor an unfinished conversion,"
            " so it may be a data set that lost its pointer; nothing was removed, restore"
            f" {POINTER_NAME} or remove the files by hand"
        )
    planned = set(plan.shards) if plan is not None else set()
    own: dict[str, int] = {}
    for name, size in sizes.items():
        if name in kept:
            if published:
                own[name] = size
        elif _is_ours_by_name(name) or name in planned or await _is_shard(store, name, size):
            own[name] = size
    return own


async def _published_names(store: Store, sizes: dict[str, int]) -> set[str]:
    """Return everything that the pointer's revision and those before it are made of."""
    if POINTER_NAME not in sizes:
        return set()
    pointer = Pointer.parse(await store.read(POINTER_NAME, max_bytes=_POINTER_MAX_BYTES))
    kept = {POINTER_NAME}
    for name in sizes:
        if not _MANIFEST.fullmatch(name) or name > manifest_name(pointer.rev):
            continue
        manifest = Manifest.parse(await store.read(name, max_bytes=_MANIFEST_MAX_BYTES), name)
        kept |= {name, manifest.sidecar.name, rejects_name(manifest.rev)}
        kept.update(entry.name for entry in manifest.shards)
    if manifest_name(pointer.rev) not in kept:
        raise ShardError("the pointer names it, but it is not there", shard=pointer.manifest)
    return kept


def rejects_name(revision: int) -> str:
    """Name of the list of what the conversion of a revision left out."""
    return "rejects.jsonl" if revision == 1 else f"rejects-{revision:06d}.jsonl"


def _is_ours_by_name(name: str) -> bool:
    return name.startswith(PREFIX) or any(
        pattern.fullmatch(name) for pattern in (_MANIFEST, _SIDECAR, _REJECTS)
    )


async def _is_shard(store: Store, name: str, size: int) -> bool:
    if not _SHARD.fullmatch(name) or size < len(_SHARD_MAGIC):
        return False
    head = bytearray(len(_SHARD_MAGIC))
    try:
        await store.read_into(name, 0, head)
    except (NotFound, Truncated):
        return False
    return bytes(head) == _SHARD_MAGIC

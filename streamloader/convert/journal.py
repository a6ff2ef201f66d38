"""What a conversion that is not published yet has done, kept beside its shards.

``unfinished.plan`` says which conversion it is, and one ``unfinished.<shard>`` a shard says that
the shard is complete and what it holds. All are written once and never changed, so that they work
in a bucket, and are removed when the data set is published. A conversion is known by the digest of
its plan: whoever has the same plan writes the same bytes, so it does not matter which of two runs
stored a shard, and a run that was killed needs no lock to be broken.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from storage_backends import NotFound, StorageError, Store, Truncated
from streamloader.convert.boot import boot_id
from streamloader.convert.parallel import for_each
from streamloader.convert.pipeline import ShardResult
from streamloader.convert.plan import Plan, ShardPlan
from streamloader.convert.report import Rejected, RejectKind
from streamloader.convert.upload import StoredShard
from streamloader.dts import ShardEntry, ShardIndex, ShardSummary, canonical_json, manifest_name
from streamloader.errors import ConfigError, ShardError

PREFIX = "unfinished."
PLAN_NAME = f"{PREFIX}plan"
_VERSION = 1
_ENTRY_MAX_BYTES = 256 << 20
_IN_FLIGHT = 16


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """The plan of an unfinished conversion, as far as it is kept.

    Args:
        digest: of the plan.
        shards: names of the shards it may have written.
        revision: of the data set that it makes.
    """

    digest: str
    shards: tuple[str, ...]
    revision: int

    def to_bytes(self) -> bytes:
        """Content of ``unfinished.plan``."""
        return canonical_json(
            {
                "version": _VERSION,
                "digest": self.digest,
                "shards": list(self.shards),
                "revision": self.revision,
            }
        )

    @classmethod
    def parse(cls, data: bytes, url: str) -> Self:
        """Read what ``to_bytes`` wrote.

        Raises:
            ConfigError: it is damaged or of another version.
        """
        try:
            value = json.loads(data)
            if value["version"] != _VERSION:
                raise ValueError(f"version {value['version']!r}")
            return cls(str(value["digest"]), tuple(map(str, value["shards"])), value["revision"])
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{PLAN_NAME} at {url} cannot be read ({error}); remove the unfinished conversion"
                " with `streamloader clean`"
            ) from error


async def read_plan(store: Store) -> StoredPlan | None:
    """Return the plan of the unfinished conversion at a destination; None if there is none."""
    try:
        data = await store.read(PLAN_NAME, max_bytes=_ENTRY_MAX_BYTES)
    except NotFound as error:
        if error.code == "NoSuchBucket":
            raise
        return None
    return StoredPlan.parse(data, store.url)


class Journal:
    """The journal of one conversion.

    Args:
        store: the destination, already entered.
        plan: of the conversion.
        revision: of the data set that it makes.
    """

    def __init__(self, store: Store, plan: Plan, revision: int) -> None:
        self._store = store
        self._plan = StoredPlan(plan.digest, tuple(shard.name for shard in plan.shards), revision)
        self._begun = False
        self._refusal: ConfigError | None = None
        self._beginning = asyncio.Lock()

    def is_of(self, stored: StoredPlan) -> bool:
        """Whether a journal that was found belongs to this conversion."""
        return stored.digest == self._plan.digest

    async def begin(self) -> None:
        """Claim the destination for this plan; does it once, before the first shard is stored.

        Raises:
            ConfigError: a conversion with another plan was faster.
        """
        async with self._beginning:
            if self._refusal is not None:
                raise self._refusal
            if self._begun:
                return
            if await self._store.put_if_absent(PLAN_NAME, self._plan.to_bytes()):
                await self._require_unpublished()
            else:
                await self.require_own()
            self._begun = True

    async def _require_unpublished(self) -> None:
        """Check that no other run began and ended since the destination was looked at.

        Its shards may have the names of ours. A run publishes before it gives the destination
        up, so there is no moment at which this could miss it.
        """
        if not await self.is_published():
            return
        await self._store.delete(PLAN_NAME)
        self._refusal = ConfigError(
            f"another conversion published {manifest_name(self._plan.revision)} at"
            f" {self._store.url} in the meantime; choose another destination"
        )
        raise self._refusal

    async def is_published(self) -> bool:
        """Tell whether the revision that this plan makes is there, whoever made it."""
        try:
            await self._store.info(manifest_name(self._plan.revision))
        except NotFound:
            return False
        return True

    async def require_own(self) -> None:
        """Check that the destination is still that of this plan.

        Raises:
            ConfigError: another conversion has taken it.
        """
        stored = await read_plan(self._store)
        if stored is None or not self.is_of(stored):
            raise ConfigError(
                f"another conversion took {self._store.url} in the meantime; nothing of this one"
                " was published, choose another destination"
            )

    async def record(self, result: ShardResult) -> None:
        """Note that a shard is complete."""
        await write_entry(self._store, result)

    async def recorded(
        self, shards: Sequence[ShardPlan], splits: Sequence[str | None]
    ) -> dict[str, ShardResult]:
        """Return the shards that are complete, by name, each confirmed by the store.

        Args:
            shards: as planned.
            splits: names of the splits.
        """
        noted = {info.key async for info in self._store.list(PREFIX)}
        candidates = [shard for shard in shards if _entry_name(shard.name) in noted]
        found: dict[str, ShardResult] = {}

        async def look(shard: ShardPlan) -> None:
            result = await self._read_entry(shard, splits[shard.split])
            if result is not None:
                found[shard.name] = result

        await for_each(candidates, look, at_once=_IN_FLIGHT)
        return found

    async def end(self) -> tuple[str, ...]:
        """Remove what is needed only until a data set is published; returns warnings.

        Besides the journal these are uploads of its shards: runs that were killed have left them,
        and so does a server whose answer to their beginning got lost. A run of the same plan
        that is still at work has lost already.
        """
        warnings = []
        try:
            await self._discard_uploads()
        except StorageError as error:
            # Not everybody who may write may list uploads.
            warnings.append(
                f"uploads that broken runs may have left were not removed ({error}); have the"
                " bucket drop unfinished uploads by itself"
            )
        await self.remove()
        return tuple(warnings)

    async def _discard_uploads(self) -> None:
        shards = frozenset(self._plan.shards)
        left = [
            write
            async for write in self._store.unfinished()
            if write.upload_id is not None and write.key in shards
        ]
        await for_each(left, self._store.discard, at_once=_IN_FLIGHT)

    async def remove(self) -> None:
        """Remove the journal: entries first, so that what is left always has its plan."""
        names = [info.key async for info in self._store.list(PREFIX) if info.key != PLAN_NAME]
        await for_each(names, self._store.delete, at_once=_IN_FLIGHT)
        await self._store.delete(PLAN_NAME)

    async def _read_entry(self, plan: ShardPlan, split: str | None) -> ShardResult | None:
        """Return what a journal entry says, None where the shard is not there as it says."""
        try:
            data = await self._store.read(_entry_name(plan.name), max_bytes=_ENTRY_MAX_BYTES)
        except NotFound:
            return None
        try:
            value = json.loads(data)
            if "boot" in value and (self._store.is_durable or value["boot"] != boot_id()):
                # Of a shard that the disk may not have: the shard is stored again.
                return None
            entry = ShardEntry(plan.name, **{**value["shard"], "uuid": plan.uuid})
            index = await confirm_shard(self._store, entry)
            rejects = tuple(Rejected(p, why, RejectKind(kind)) for p, why, kind in value["rejects"])
            bytes_in, max_record_bytes = int(value["bytes_in"]), int(value["max_record_bytes"])
        except (ValueError, KeyError, TypeError, ShardError, NotFound, Truncated):
            # An entry that is damaged, or of a shard that is: the shard is stored again.
            return None
        summary = ShardSummary(
            bytes=entry.bytes,
            samples=entry.samples,
            tail_bytes=entry.tail_bytes,
            uuid=entry.uuid,
            tail_crc32=entry.tail_crc32,
            sha256=entry.sha256,
            offsets=index.offsets.copy(),
            max_record_bytes=max_record_bytes,
        )
        return ShardResult(plan.name, StoredShard(plan.name, split, summary), rejects, bytes_in)


async def write_entry(store: Store, result: ShardResult) -> None:
    """Note in the journal of a store that a shard is complete; one without samples is not noted."""
    if result.shard is not None:
        await store.put(_entry_name(result.name), _packed(result, store))


async def confirm_shard(store: Store, entry: ShardEntry) -> ShardIndex:
    """Ask the store for a shard: it must be there in full, and end with the tail it was given.

    Raises:
        ShardError: it has another size, or its tail another checksum.
        StorageError: the storage failed, or has no such shard.
    """
    info = await store.info(entry.name)
    if info.size != entry.bytes:
        raise ShardError(
            f"the store has {info.size} bytes of it, {entry.bytes} were written;"
            " is another conversion writing to the same place?",
            shard=entry.name,
        )
    tail = bytearray(entry.tail_bytes)
    await store.read_into(entry.name, entry.bytes - entry.tail_bytes, tail)
    return ShardIndex.parse(tail, name=entry.name, file_bytes=entry.bytes, entry=entry)


def _entry_name(shard: str) -> str:
    return PREFIX + shard.removesuffix(".dts")


def _packed(result: ShardResult, store: Store) -> bytes:
    assert result.shard is not None
    summary = result.shard.summary
    entry: dict[str, Any] = summary.entry(result.name).to_object()
    del entry["name"]
    value: dict[str, Any] = {
        "shard": entry,
        "max_record_bytes": summary.max_record_bytes,
        "bytes_in": result.bytes_in,
        "rejects": [[r.path, r.reason, r.kind.value] for r in result.rejects],
    }
    if not store.is_durable:
        value["boot"] = boot_id()
    # ASCII, since a path may hold bytes that are not UTF-8, as surrogates.
    return json.dumps(value, sort_keys=True).encode("ascii")

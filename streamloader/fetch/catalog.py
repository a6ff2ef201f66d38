"""An opened data set: its manifest, its block table, and the tails of its shards on demand."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from typing import Any

import numpy as np
import numpy.typing as npt

from storage_backends import NotFound, Store
from streamloader.dts import BlockTable, Manifest, Pointer, ShardIndex, Sidecar
from streamloader.errors import ConfigError, SampleError, ShardError
from streamloader.fetch.cancel import all_or_cancel
from streamloader.fetch.rows import RowLayout

POINTER_NAME = "latest.json"
_POINTER_MAX_BYTES = 4096
_MANIFEST_MAX_BYTES = 256 << 20
_SIDECAR_MAX_BYTES = 8 << 30
DEFAULT_TAIL_BYTES = 256 << 20


class Catalog:
    """A data set as its manifest describes it, with shard tails kept up to a byte limit.

    Args:
        store: where the data set lies; owned by the caller and already entered.
        blocks: block table of the chosen split; None only while no split was chosen for a
            data set that has several (``inspect`` and ``verify`` look at all of them).
    """

    def __init__(
        self,
        store: Store,
        manifest: Manifest,
        sidecar: Sidecar,
        blocks: BlockTable | None,
        *,
        split: str | None = None,
        tail_limit_bytes: int = DEFAULT_TAIL_BYTES,
    ) -> None:
        self.store = store
        self.url = store.url
        self.manifest = manifest
        self.sidecar = sidecar
        self.split = split
        self._blocks = blocks
        self._tails = _TailCache(self, tail_limit_bytes)

    @classmethod
    async def open(
        cls,
        store: Store,
        split: str | None = None,
        *,
        any_split: bool = False,
        tail_limit_bytes: int = DEFAULT_TAIL_BYTES,
    ) -> Catalog:
        """Reads pointer, manifest and sidecar, each checked against the digest before it.

        Raises:
            ConfigError: no data set is published there, or the split does not exist.
            ShardError: a file is damaged or is not the one that was published.
            StorageError: the storage refused or failed.
        """
        manifest = await read_manifest(store)
        sidecar = await _read_sidecar(store, manifest)
        blocks = None
        if not any_split or split is not None or not manifest.splits:
            blocks = BlockTable(manifest, sidecar, split)
        return cls(store, manifest, sidecar, blocks, split=split, tail_limit_bytes=tail_limit_bytes)

    @property
    def blocks(self) -> BlockTable:
        if self._blocks is None:
            raise ConfigError(
                f"{self.url} has the splits {', '.join(self.manifest.splits)}: choose one"
            )
        return self._blocks

    @property
    def num_samples(self) -> int:
        """Samples of the chosen split."""
        return self.blocks.num_samples

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the manifest, in hex."""
        return self.manifest.fingerprint

    @property
    def tail_bytes_held(self) -> int:
        return self._tails.held_bytes

    def limit_tails(self, limit_bytes: int) -> None:
        """Another bound on the tails that are kept, before any was read."""
        self._tails.limit_bytes = limit_bytes

    def row_layout(self) -> RowLayout:
        """Row layout of the samples, with the fields of all shards."""
        return RowLayout.of(self.manifest.schema)

    async def shard_index(self, shard: int) -> ShardIndex:
        """The checked index of one shard, from the cache or from the store."""
        return await self._tails.get(shard)

    def held_indexes(self, shards: list[int]) -> list[ShardIndex] | None:
        """The indexes of some shards, if all of them are in the cache."""
        return self._tails.held(shards)

    async def expansion(self) -> float:
        """Bytes that decompression adds for each stored byte, from the first shard with samples."""
        names = [f.name for f in self.manifest.schema.payload_fields if f.codec != "none"]
        if not names or not self.blocks.num_samples:
            return 0.0
        index = await self.shard_index(self.blocks.locate(0, 1)[0].shard)
        stored = index.payload_end - index.data_offset
        held = {field.name for field in index.schema.payload_fields}
        raw = sum(int(index.raw_lengths(n).sum(dtype=np.int64)) for n in names if n in held)
        return raw / stored if stored else 0.0

    async def column(self, name: str) -> npt.NDArray[Any]:
        """A column of every sample of the chosen split, [N, *shape], from the tails alone."""
        known = [column.name for column in self.manifest.schema.columns]
        if name not in known:
            raise ConfigError(f"no column {name!r} in {self.url}; it has {', '.join(known)}")
        return np.concatenate([index.column(name) for index in await self._all_indexes()])

    async def keys(self) -> list[str | None]:
        """The key of every sample of the chosen split, from the tails alone."""
        indexes = await self._all_indexes()
        return [index.key(i) for index in indexes for i in range(index.num_samples)]

    async def _all_indexes(self) -> list[ShardIndex]:
        spans = self.blocks.locate(0, self.blocks.num_samples)
        return await all_or_cancel([self.read_index(span.shard) for span in spans])

    async def sample_error(self, sample: int, reason: str) -> SampleError:
        """The error that names one sample of the chosen split by shard, key and offset."""
        span = self.blocks.locate(sample, 1)[0]
        index = await self.shard_index(span.shard)
        return SampleError(
            reason,
            dataset=self.url,
            shard=self.manifest.entry(span.shard).name,
            sample=sample,
            key=index.key(span.first),
            offset=int(index.offsets[span.first]),
        )

    async def read_index(self, shard: int) -> ShardIndex:
        """Reads and checks the tail of one shard, past the cache."""
        entry = self.manifest.entry(shard)
        tail = np.empty(entry.tail_bytes, dtype=np.uint8)
        await self.store.read_into(entry.name, entry.bytes - entry.tail_bytes, tail.data)
        return ShardIndex.parse(
            tail.data,
            name=entry.name,
            file_bytes=entry.bytes,
            entry=entry,
            schema=self.manifest.schema_of(shard),
        )


class _TailCache:
    """Parsed tails by shard, least recently used first out, one read per shard at a time."""

    def __init__(self, catalog: Catalog, limit_bytes: int) -> None:
        self._catalog = catalog
        self.limit_bytes = limit_bytes
        self._held: OrderedDict[int, ShardIndex] = OrderedDict()
        self._loading: dict[int, asyncio.Task[ShardIndex]] = {}
        self.held_bytes = 0

    def held(self, shards: list[int]) -> list[ShardIndex] | None:
        """The indexes of some shards, None if not all of them are held."""
        if any(shard not in self._held for shard in shards):
            return None
        for shard in shards:
            self._held.move_to_end(shard)
        return [self._held[shard] for shard in shards]

    async def get(self, shard: int) -> ShardIndex:
        index = self._held.get(shard)
        if index is not None:
            self._held.move_to_end(shard)
            return index
        task = self._loading.get(shard)
        if task is None:
            task = asyncio.create_task(self._load(shard))
            self._loading[shard] = task
            task.add_done_callback(lambda _: self._loading.pop(shard, None))
        return await asyncio.shield(task)

    async def _load(self, shard: int) -> ShardIndex:
        index = await self._catalog.read_index(shard)
        self._held[shard] = index
        self.held_bytes += self._tail_bytes(shard)
        while self.held_bytes > self.limit_bytes and len(self._held) > 1:
            oldest, _ = self._held.popitem(last=False)
            self.held_bytes -= self._tail_bytes(oldest)
        return index

    def _tail_bytes(self, shard: int) -> int:
        return int(self._catalog.manifest.tail_bytes[shard])


async def read_manifest(store: Store) -> Manifest:
    """The manifest that the pointer of a data set names, checked against its digest."""
    try:
        pointer_bytes = await store.read(POINTER_NAME, max_bytes=_POINTER_MAX_BYTES)
    except NotFound as error:
        if error.code == "NoSuchBucket":
            raise
        raise ConfigError(
            f"no data set at {store.url}: it has no {POINTER_NAME}; check the URL, or write a"
            " data set there with `streamloader convert`"
        ) from error
    pointer = Pointer.parse(pointer_bytes, name=POINTER_NAME)
    try:
        data = await store.read(pointer.manifest, max_bytes=_MANIFEST_MAX_BYTES)
    except NotFound as error:
        raise ShardError(
            f"{POINTER_NAME} names it, but {store.url} does not hold it: the data set is"
            " incomplete; convert again or restore the file",
            shard=pointer.manifest,
        ) from error
    digest = hashlib.sha256(data).hexdigest()
    if digest != pointer.sha256:
        raise ShardError(
            f"SHA-256 is {digest}, but {POINTER_NAME} names {pointer.sha256}",
            shard=pointer.manifest,
        )
    return Manifest.parse(data, name=pointer.manifest)


async def _read_sidecar(store: Store, manifest: Manifest) -> Sidecar:
    name = manifest.sidecar.name
    try:
        data = await store.read(name, max_bytes=_SIDECAR_MAX_BYTES)
    except NotFound as error:
        raise ShardError(
            f"the manifest names it, but {store.url} does not hold it: the data set is"
            " incomplete; convert again or restore the file",
            shard=name,
        ) from error
    return Sidecar.parse(data, name=name, expected_sha256=manifest.sidecar.sha256)

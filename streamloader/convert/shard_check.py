"""The checks behind ``verify``: of the sidecar, and of every shard from front to back."""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from storage_backends import NotFound, Store, Truncated
from streamloader.convert.faults import Fault, fault_of
from streamloader.convert.parallel import for_each
from streamloader.convert.shard_places import ShardPlace, shard_places
from streamloader.decode import PictureFault, check_picture
from streamloader.dts import (
    Manifest,
    RecordFault,
    ShardEntry,
    ShardIndex,
    Sidecar,
    decompress,
)
from streamloader.errors import ShardError

SHARDS_IN_FLIGHT = 3
CHUNK_BYTES = 4 << 20
_SIDECAR_MAX_BYTES = 8 << 30

VerifyProgress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class CheckSettings:
    """How thorough, and with which threads.

    Args:
        pool: threads for hashing and decoding.
        num_threads: threads of the pool.
        decode: decode every picture.
        sha256: compare the digest of whole shards.
    """

    pool: ThreadPoolExecutor
    num_threads: int
    decode: bool
    sha256: bool


class ManifestChecker:
    """Checks everything that one manifest names, once.

    Args:
        store: where the data set is; already entered.
        manifest: as read and checked against its digest.
        settings: how thorough.
        progress: called with (samples checked, samples in all).
    """

    def __init__(
        self,
        store: Store,
        manifest: Manifest,
        settings: CheckSettings,
        progress: VerifyProgress | None = None,
    ) -> None:
        self._store = store
        self._manifest = manifest
        self._settings = settings
        self._progress = progress
        self.samples = 0
        self.bytes_read = 0

    async def run(self) -> list[Fault]:
        """Return the faults, in the order of the shards and of the samples in them."""
        faults: list[Fault] = []
        sidecar: Sidecar | None = None
        try:
            sidecar = await self._read_sidecar()
        except ShardError as error:
            faults.append(fault_of(error))
        places = shard_places(self._manifest)
        found: list[list[Fault]] = [[] for _ in places]

        async def check(place: ShardPlace) -> None:
            found[place.shard] = await self._check_shard(place, sidecar)

        await for_each(places, check, at_once=SHARDS_IN_FLIGHT)
        return faults + [fault for shard in found for fault in shard]

    async def _read_sidecar(self) -> Sidecar:
        named = self._manifest.sidecar
        try:
            data = await self._store.read(named.name, max_bytes=_SIDECAR_MAX_BYTES)
        except NotFound as error:
            raise ShardError("named by the manifest but missing", shard=named.name) from error
        self.bytes_read += len(data)
        return Sidecar.parse(
            data,
            name=named.name,
            expected_sha256=named.sha256,
            expected_blocks=self._manifest.num_blocks,
        )

    async def _check_shard(self, place: ShardPlace, sidecar: Sidecar | None) -> list[Fault]:
        entry = self._manifest.entry(place.shard)
        check = _ShardCheck(self._store, entry, place, self._settings, self._count)
        try:
            index = await check.open()
            faults = await check.check_payload(index)
        except ShardError as error:
            return [*check.faults, fault_of(error)]
        except NotFound:
            return [Fault(entry.name, "the manifest names it, but it is missing")]
        except Truncated as error:
            return [*check.faults, Fault(entry.name, f"cut short: {error}")]
        faults += check_labels(index, place, len(self._manifest.classes))
        if sidecar is not None:
            faults += check_blocks(index, place, sidecar, self._manifest.block_samples)
        return faults

    def _count(self, samples: int, read_bytes: int) -> None:
        self.samples += samples
        self.bytes_read += read_bytes
        if self._progress is not None:
            self._progress(self.samples, self._manifest.num_samples)


class _ShardCheck:
    """One shard, read once from front to back."""

    def __init__(
        self,
        store: Store,
        entry: ShardEntry,
        place: ShardPlace,
        settings: CheckSettings,
        count: Callable[[int, int], None],
    ) -> None:
        self._store = store
        self._entry = entry
        self._place = place
        self._settings = settings
        self._count = count
        self._digest = hashlib.sha256()
        self._tail = memoryview(b"")
        self.faults: list[Fault] = []

    async def open(self) -> ShardIndex:
        """Read the tail and check every bound and checksum in it."""
        entry = self._entry
        info = await self._store.info(entry.name)
        if info.size != entry.bytes:
            raise ShardError(
                f"has {info.size} bytes, the manifest says {entry.bytes}", shard=entry.name
            )
        self._tail = await self._read(entry.bytes - entry.tail_bytes, entry.bytes)
        return ShardIndex.parse(self._tail, name=entry.name, file_bytes=entry.bytes, entry=entry)

    async def check_payload(self, index: ShardIndex) -> list[Fault]:
        """Check head, records, padding and, if wanted, pixels and the digest of the whole."""
        head = await self._read(0, index.data_offset)
        self._digest.update(head)
        index.check_head(head)
        await self._check_records(index)
        if self._settings.sha256:
            await self._in_pool(self._digest.update, self._tail)
            self._check_digest()
        return self.faults

    async def _check_records(self, index: ShardIndex) -> None:
        """Read chunks one after the other while earlier ones are checked in the pool."""
        offsets = index.offsets.astype(np.int64)
        most_ahead = 1 + 2 * self._settings.num_threads // SHARDS_IN_FLIGHT
        ahead: deque[tuple[int, asyncio.Future[list[Fault]]]] = deque()
        try:
            for first, stop in _chunks(offsets):
                start = int(offsets[first])
                # The gap before the tail is looked at with the last records.
                end = index.tail_offset if stop == index.num_samples else int(offsets[stop])
                data = await self._read(start, end)
                if self._settings.sha256:
                    await self._in_pool(self._digest.update, data)
                check = self._in_pool(self._check_chunk, index, first, stop - first, data, start)
                ahead.append((stop - first, check))
                if len(ahead) > most_ahead:
                    await self._take(*ahead.popleft())
            while ahead:
                await self._take(*ahead.popleft())
        finally:
            for _, check in ahead:
                check.cancel()

    async def _take(self, num_samples: int, check: asyncio.Future[list[Fault]]) -> None:
        self.faults += await check
        self._count(num_samples, 0)

    def _check_chunk(
        self, index: ShardIndex, first: int, count: int, data: memoryview, start: int
    ) -> list[Fault]:
        """Check ``count`` records from ``first`` on; ``data`` begins at file offset ``start``."""
        name, base = self._entry.name, self._place.first_sample
        records = index.verify_records(first, count, data, start)
        faults = [
            Fault(name, _record_reason(r), base + r.sample_in_shard, r.offset) for r in records
        ]
        if self._settings.decode:
            damaged = {record.sample_in_shard for record in records}
            for field in index.schema.payload_fields:
                if field.type == "picture":
                    faults += self._decode(index, field.name, first, count, data, start, damaged)
        return sorted(faults, key=lambda fault: (fault.sample or 0, fault.offset or 0))

    def _decode(
        self,
        index: ShardIndex,
        field: str,
        first: int,
        count: int,
        data: memoryview,
        start: int,
        damaged: set[int],
    ) -> list[Fault]:
        faults = []
        offsets, lengths = index.field_ranges(field, first, count)
        raw_lengths = index.raw_lengths(field)[first : first + count]
        ranges = zip(offsets.tolist(), lengths.tolist(), raw_lengths.tolist(), strict=True)
        stored_as, dictionary = index.schema.field(field), index.dictionary(field)
        for sample, (offset, length, raw_bytes) in enumerate(ranges, start=first):
            if sample in damaged:
                continue
            stored = data[offset - start : offset - start + length]
            try:
                raw = decompress(stored_as, stored, raw_bytes, dictionary=dictionary)
                check_picture(memoryview(raw))
            except (PictureFault, ShardError) as fault:
                number = self._place.first_sample + sample
                faults.append(Fault(self._entry.name, f"{field}: {fault}", number, offset))
        return faults

    def _check_digest(self) -> None:
        digest = self._digest.hexdigest()
        if digest != self._entry.sha256:
            reason = f"SHA-256 is {digest}, the manifest says {self._entry.sha256}"
            self.faults.append(Fault(self._entry.name, reason))

    async def _read(self, start: int, end: int) -> memoryview:
        data = np.empty(end - start, dtype=np.uint8).data
        await self._store.read_into(self._entry.name, start, data)
        self._count(0, end - start)
        return data

    def _in_pool(self, call: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._settings.pool, partial(call, *args))


def check_labels(index: ShardIndex, place: ShardPlace, num_classes: int) -> list[Fault]:
    """Find labels that name no class."""
    if not num_classes or not any(column.name == "label" for column in index.schema.columns):
        return []
    labels = index.column("label")
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        return []
    wrong = np.flatnonzero((labels < 0) | (labels >= num_classes))
    return [
        Fault(
            index.name,
            f"label is {labels[i]}, but there are {num_classes} classes",
            place.first_sample + int(i),
        )
        for i in wrong
    ]


def check_blocks(
    index: ShardIndex, place: ShardPlace, sidecar: Sidecar, block_samples: int
) -> list[Fault]:
    """Find blocks that the sidecar puts elsewhere than the shard does."""
    inside = place.block_samples_inside(block_samples)
    said = sidecar.offsets[place.first_block : place.first_block + len(inside)]
    true = index.offsets[:-1][inside.start :: block_samples]
    if len(said) == len(true) and np.array_equal(said, true):
        return []
    return [Fault(index.name, "the sidecar puts its blocks at other offsets than the shard does")]


def _record_reason(fault: RecordFault) -> str:
    return f"{fault.field}: {fault.reason}" if fault.field else fault.reason


def _chunks(offsets: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Cut records into runs of a few MiB, at least one record each."""
    first, num_samples = 0, len(offsets) - 1
    while first < num_samples:
        stop = int(np.searchsorted(offsets, offsets[first] + CHUNK_BYTES, side="right")) - 1
        stop = min(max(stop, first + 1), num_samples)
        yield first, stop
        first = stop

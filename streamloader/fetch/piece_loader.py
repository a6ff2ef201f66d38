"""Brings one piece into the arena: read, check, rows, and what is not stored as it is used."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from streamloader.dts import Ranges, RecordFault, ShardIndex, ShardSpan
from streamloader.fetch.arena import ALIGN_BYTES, Arena, aligned
from streamloader.fetch.cache import BlockCache
from streamloader.fetch.cache_index import Extent
from streamloader.fetch.cancel import all_or_cancel
from streamloader.fetch.catalog import Catalog
from streamloader.fetch.expand import Expander
from streamloader.fetch.piece import LoadedPiece, Room
from streamloader.fetch.piece_group import GroupReader, PlacedPiece, Stop, divide
from streamloader.fetch.rows import BAD_LENGTH, RowLayout
from streamloader.fetch.underway import Underway
from streamloader.monitor import Counters
from streamloader.order import Order, Selection
from streamloader.topology import allowed_cpus

T = TypeVar("T")

_LEAST_THREADS, _MOST_THREADS = 4, 8
#: The event loop checks so much itself, in less time than a thread takes to begin.
_CHECK_HERE_BYTES = 2 << 20
_ROOM_PER_PART_BYTES = 2 * ALIGN_BYTES
#: Pieces between their room and the end of their reading, of which the places are remembered.
_PLACES_KEPT = 1024


@dataclass(frozen=True, slots=True)
class _Span:
    """Part of a piece that lies in one shard, and where its bytes go in the arena.

    ``block`` is what the cache would keep: offset and bytes of the whole block in this shard.
    """

    shard: int
    block: Extent
    first: int
    count: int
    offset: int
    nbytes: int
    base: int
    index: ShardIndex


class PieceLoader:
    """Reads pieces of a data set into the arena; runs on one event loop.

    Args:
        catalog: the data set.
        arena: memory that the caller has allocated from.
        selection: what sample numbers of the plan mean; None if they are the data set's own.
        max_reads: ranged reads in flight at once.
        verify: check every sample's hash.
        cache: where blocks are looked for first, and kept when they are verified.
        layout: of the rows; by default the data set's own.
    """

    def __init__(
        self,
        catalog: Catalog,
        arena: Arena,
        *,
        counters: Counters,
        selection: Selection | None,
        max_reads: int,
        verify: bool,
        cache: BlockCache | None = None,
        layout: RowLayout | None = None,
    ) -> None:
        self._catalog = catalog
        self._arena = arena
        self._counters = counters
        self._selection = selection
        self._layout = layout or catalog.row_layout()
        self._expander = Expander.of(catalog.manifest.schemas, catalog.manifest.schema)
        self._reads = asyncio.Semaphore(max_reads)
        self._verify = verify
        self._cache = cache
        self._underway = Underway()
        threads = min(_MOST_THREADS, max(_LEAST_THREADS, allowed_cpus() // 2))
        self._threads = ThreadPoolExecutor(threads, "streamloader-pieces")
        self._group_reader: GroupReader | None = None
        if self._cache is None and not self._expander:
            self._group_reader = GroupReader.open(catalog, arena, self._layout, verify=verify)
        # Asked for when a piece gets its room, and again when it is read.
        self._parts_of = lru_cache(_PLACES_KEPT)(self._find_parts)

    def close(self) -> None:
        self._threads.shutdown(wait=True)

    def begin_epoch(self, order: Order) -> None:  # noqa: ARG002 - what a mixture goes by
        """An epoch's pass over the data set begins."""
        if self._cache is not None:
            self._cache.begin_epoch()

    async def room_for(self, first: int, count: int) -> int:
        """Bytes that suffice for a piece; known without its tails unless values expand."""
        if self._expander:
            return await self.exact_room(first, count)
        parts = self._parts_of(first, count)
        nbytes = count * self._catalog.manifest.max_record_bytes
        if self._selection is None:
            blocks = self._catalog.blocks
            nbytes = min(nbytes, int(blocks.block_bytes[first // blocks.block_samples]))
        return nbytes + _ROOM_PER_PART_BYTES * len(parts) + count * self._layout.stride

    async def exact_room(self, first: int, count: int) -> int:
        """Bytes that a piece takes, once the tails of its shards are read."""
        nbytes = count * self._layout.stride + ALIGN_BYTES
        for part in self._parts_of(first, count):
            index = await self._catalog.shard_index(part.shard)
            start, end = index.offsets[part.first], index.offsets[part.first + part.count]
            nbytes += aligned(int(end - start)) + _ROOM_PER_PART_BYTES
            nbytes += self._expander.room(index, part.first, part.count)
        return nbytes

    def divide(self, rooms: Sequence[Room]) -> list[list[Room]]:
        """Divides pieces that are needed together into groups that are loaded at once each."""
        return [[room] for room in rooms] if self._group_reader is None else divide(rooms)

    async def load_group(self, rooms: Sequence[Room]) -> list[LoadedPiece]:
        """Fills the rooms of a group; as ``load`` otherwise."""
        loaded: Sequence[LoadedPiece | None] = [None] * len(rooms)
        if self._group_reader is not None:
            loaded = await self._read_group(self._group_reader, rooms)
        return [
            await self.load(room.first, room.count, room.base) if piece is None else piece
            for room, piece in zip(rooms, loaded, strict=True)
        ]

    async def _read_group(
        self, reader: GroupReader, rooms: Sequence[Room]
    ) -> list[LoadedPiece | None]:
        parts = [self._parts_of(room.first, room.count) for room in rooms]
        shards = [part.shard for own in parts for part in own]
        indexes = self._catalog.held_indexes(shards)
        if indexes is None:
            indexes = await all_or_cancel([self._catalog.shard_index(s) for s in shards])
        following = iter(indexes)
        placed = [
            PlacedPiece(room, own, [next(following) for _ in own])
            for room, own in zip(rooms, parts, strict=True)
        ]
        stop = Stop()
        return await self._in_thread(reader.read, placed, stop, hurry=stop.set)

    async def load(self, first: int, count: int, base: int) -> LoadedPiece:
        """Fills the room at ``base``; samples that cannot be used are told, not raised.

        Raises:
            StorageError: the storage refused or failed.
            ShardError: the tail of a shard is damaged.
        """
        with ExitStack() as underway:
            return await self._load(first, count, base, underway)

    async def _load(self, first: int, count: int, base: int, underway: ExitStack) -> LoadedPiece:
        """As ``load``; what is meant for the cache is underway until ``underway`` is closed."""
        spans = await self._read_spans(first, count, base, underway)
        rows_base = base + sum(aligned(span.nbytes) for span in spans)
        rows = self._rows_view(rows_base, count)
        end = aligned(rows_base + count * self._layout.stride)
        faults: dict[int, str] = {}
        done = 0
        for span in spans:
            part = rows[done : done + span.count]
            ranges = span.index.record_ranges(span.first, span.count)
            self._layout.fill(part, span.index, span.first, span.base - span.offset, ranges)
            for fault in await self._check(span, ranges):
                place = fault.sample_in_shard - span.first
                faults[first + done + place] = fault.reason
                for name in self._layout.payload:
                    part[f"{name}@length"][place] = BAD_LENGTH
            if self._expander:
                end, wrong = await self._in_thread(
                    self._expander.write, self._arena.array, end, part, span.index, span.first
                )
                faults.update({first + done + row: reason for row, reason in wrong.items()})
            done += span.count
        return LoadedPiece(rows_base, end - base, sum(span.nbytes for span in spans), faults)

    def _find_parts(self, first: int, count: int) -> list[ShardSpan]:
        """Runs of samples of single shards that a piece of the plan consists of."""
        runs = [(first, count)] if self._selection is None else self._selection.runs(first, count)
        return [part for run in runs for part in self._catalog.blocks.locate(*run)]

    async def _read_spans(
        self, first: int, count: int, base: int, underway: ExitStack
    ) -> list[_Span]:
        """Reads a piece; the tails of its shards come first, or beside it where they may."""
        parts = self._parts_of(first, count)
        indexes = self._catalog.held_indexes([part.shard for part in parts])
        if indexes is None:
            extents = self._block_extents(first, count)
            if extents is not None:
                reads = self._read_extents(parts, extents, extents, base, underway)
                indexes, _ = await all_or_cancel([self._read_indexes(parts), reads])
                return _spans(parts, extents, extents, base, indexes)
            indexes = await self._read_indexes(parts)
        extents = []
        for part, index in zip(parts, indexes, strict=True):
            start, end = index.offsets[part.first], index.offsets[part.first + part.count]
            extents.append((int(start), int(end - start)))
        blocks = self._blocks_around(first, parts, extents)
        await self._read_extents(parts, extents, blocks, base, underway)
        return _spans(parts, extents, blocks, base, indexes)

    async def _read_indexes(self, parts: list[ShardSpan]) -> list[ShardIndex]:
        return await all_or_cancel([self._catalog.shard_index(part.shard) for part in parts])

    def _block_extents(self, first: int, count: int) -> list[Extent] | None:
        """(offset, bytes) in the shards of a whole block, known without their tails."""
        blocks = self._catalog.blocks
        block, within = divmod(first, blocks.block_samples)
        if self._selection is not None or within or count != blocks.samples_of(block)[1]:
            return None
        return [(offset, nbytes) for _, offset, nbytes in blocks.block_span_bytes(block)]

    def _blocks_around(
        self, first: int, parts: list[ShardSpan], extents: list[Extent]
    ) -> list[Extent]:
        """The blocks that a piece is part of: those of an epoch are cut elsewhere in the next.

        The pieces of a selection are not parts of blocks, and stand for themselves.
        """
        if self._selection is not None or self._cache is None:
            return extents
        blocks = self._catalog.blocks
        spans = blocks.block_span_bytes(first // blocks.block_samples)
        by_shard = {shard: (offset, nbytes) for shard, offset, nbytes in spans}
        return [by_shard[part.shard] for part in parts]

    async def _read_extents(
        self,
        parts: list[ShardSpan],
        extents: list[Extent],
        blocks: list[Extent],
        base: int,
        underway: ExitStack,
    ) -> None:
        if self._cache is not None:
            ranges = [(part.shard, extent) for part, extent in zip(parts, extents, strict=True)]
            await self._underway.settled(ranges)
            underway.enter_context(self._underway.announced(ranges))
        reads = []
        for part, extent, block in zip(parts, extents, blocks, strict=True):
            reads.append(self._read(part.shard, extent, block, base))
            base += aligned(extent[1])
        if len(reads) == 1:
            await reads[0]
        else:
            await all_or_cancel(reads)

    async def _read(self, shard: int, extent: Extent, block: Extent | None, base: int) -> None:
        """Reads from the cache, if ``block`` says where it would be, else from the store."""
        offset, nbytes = extent
        if not nbytes:
            return
        view = self._arena.array[base : base + nbytes].data
        if (
            self._cache is not None
            and block is not None
            and await self._cache.read_into(shard, block, offset, view)
        ):
            return
        async with self._reads:
            name = self._catalog.manifest.table.names[shard]
            await self._catalog.store.read_into(name, offset, view)

    async def _check(self, span: _Span, ranges: Ranges) -> list[RecordFault]:
        """Faults that remain after a second read from the store."""
        if not self._verify:
            return []
        faults = await self._verify_span(span, ranges)
        if faults:
            self._counters.add("fetch.checksum_rereads")
            if self._cache is not None:
                self._cache.discard(span.shard, span.block)
            await self._read(span.shard, (span.offset, span.nbytes), None, span.base)
            faults = await self._verify_span(span, ranges)
        if self._cache is not None and span.nbytes and not faults:
            view = self._arena.array[span.base : span.base + span.nbytes].data
            await self._cache.keep(span.shard, (span.offset, span.nbytes), view)
        return faults

    async def _verify_span(self, span: _Span, ranges: Ranges) -> list[RecordFault]:
        data = self._arena.array[span.base : span.base + span.nbytes].data
        verify = partial(span.index.verify_records, ranges=ranges)
        if span.index.is_checked_natively and span.nbytes <= _CHECK_HERE_BYTES:
            return verify(span.first, span.count, data, span.offset)
        return await self._in_thread(verify, span.first, span.count, data, span.offset)

    async def _in_thread(
        self, function: Callable[..., T], *args: Any, hurry: Callable[[], None] | None = None
    ) -> T:
        """Runs a function that uses the arena; it has ended whenever this returns or raises."""
        job = asyncio.get_running_loop().run_in_executor(self._threads, function, *args)
        try:
            return await asyncio.shield(job)
        except asyncio.CancelledError:
            if hurry is not None:
                hurry()
            await asyncio.wait([job])
            raise

    def _rows_view(self, base: int, count: int) -> npt.NDArray[np.void]:
        end = base + count * self._layout.stride
        return self._arena.array[base:end].view(self._layout.dtype)


def _spans(
    parts: list[ShardSpan],
    extents: list[Extent],
    blocks: list[Extent],
    base: int,
    indexes: list[ShardIndex],
) -> list[_Span]:
    spans = []
    for part, (offset, nbytes), block, index in zip(parts, extents, blocks, indexes, strict=True):
        spans.append(_Span(part.shard, block, part.first, part.count, offset, nbytes, base, index))
        base += aligned(nbytes)
    return spans

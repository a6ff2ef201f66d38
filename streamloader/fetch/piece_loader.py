"""Brings one piece into the arena: read, check, rows, and what is not stored as it is used."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import lru_cache, partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from streamloader.dts import Ranges, RecordFault, ShardSpan
from streamloader.fetch.arena import ALIGN_BYTES, Arena, aligned
from streamloader.fetch.cache import BlockCache
from streamloader.fetch.cancel import all_or_cancel
from streamloader.fetch.catalog import Catalog
from streamloader.fetch.expand import Expander
from streamloader.fetch.piece import LoadedPiece, Room
from streamloader.fetch.piece_group import GroupReader, PlacedPiece, Stop, divide
from streamloader.fetch.piece_reader import PieceReader, Span
from streamloader.fetch.rows import BAD_LENGTH, RowLayout
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
        self._places = self._layout.places()
        self._expander = Expander.of(catalog.manifest.schemas, catalog.manifest.schema)
        self._reader = PieceReader(
            catalog, arena, selection=selection, max_reads=max_reads, cache=cache
        )
        self._verify = verify
        self._cache = cache
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
        spans = await self._reader.read(self._parts_of(first, count), first, count, base, underway)
        rows_base = base + sum(aligned(span.nbytes) for span in spans)
        rows = self._rows_view(rows_base, count)
        end = aligned(rows_base + count * self._layout.stride)
        faults: dict[int, str] = {}
        done = 0
        for span in spans:
            part = rows[done : done + span.count]
            if not await self._is_taken(span, rows_base + done * self._layout.stride):
                for place, reason in (await self._take_carefully(span, part)).items():
                    faults[first + done + place] = reason
            if self._expander:
                end, wrong = await self._in_thread(
                    self._expander.write, self._arena.array, end, part, span.index, span.first
                )
                faults.update({first + done + row: reason for row, reason in wrong.items()})
            done += span.count
        return LoadedPiece(rows_base, end - base, sum(span.nbytes for span in spans), faults)

    async def _is_taken(self, span: Span, rows: int) -> bool:
        """Writes the rows of a span in one native call; False if it cannot, or one is unsound."""
        if not span.index.is_checked_natively:
            return False
        start = int(span.index.offsets[span.first])
        take = partial(span.index.row_source(self._places).take, verify=self._verify)
        args = (span.first, span.count, self._arena.array, span.base + start - span.offset, rows)
        if span.nbytes <= _CHECK_HERE_BYTES:
            good = take(*args)
        else:
            good = await self._in_thread(take, *args)
        if good:
            await self._keep(span)
        return good

    async def _take_carefully(self, span: Span, rows: npt.NDArray[np.void]) -> dict[int, str]:
        """Writes the rows of a span, read a second time if it is damaged; faults by row."""
        ranges = span.index.record_ranges(span.first, span.count)
        self._layout.fill(rows, span.index, span.first, span.base - span.offset, ranges)
        faults: dict[int, str] = {}
        for fault in await self._check(span, ranges):
            place = fault.sample_in_shard - span.first
            faults[place] = fault.reason
            for name in self._layout.payload:
                rows[f"{name}@length"][place] = BAD_LENGTH
        return faults

    def _find_parts(self, first: int, count: int) -> list[ShardSpan]:
        """Runs of samples of single shards that a piece of the plan consists of."""
        runs = [(first, count)] if self._selection is None else self._selection.runs(first, count)
        return [part for run in runs for part in self._catalog.blocks.locate(*run)]

    async def _check(self, span: Span, ranges: Ranges) -> list[RecordFault]:
        """Faults that remain after a second read from the store."""
        if not self._verify:
            return []
        faults = await self._verify_span(span, ranges)
        if faults:
            self._counters.add("fetch.checksum_rereads")
            if self._cache is not None:
                self._cache.discard(span.shard, span.block)
            await self._reader.read_again(span)
            faults = await self._verify_span(span, ranges)
        if not faults:
            await self._keep(span)
        return faults

    async def _keep(self, span: Span) -> None:
        if self._cache is not None and self._verify and span.nbytes:
            view = self._arena.array[span.base : span.base + span.nbytes].data
            await self._cache.keep(span.shard, (span.offset, span.nbytes), view)

    async def _verify_span(self, span: Span, ranges: Ranges) -> list[RecordFault]:
        data = self._arena.array[span.base : span.base + span.nbytes].data
        verify = partial(span.index.verify_records, ranges=ranges)
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

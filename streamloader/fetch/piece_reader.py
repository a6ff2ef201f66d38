"""Reads the bytes of a piece into the arena, from the cache or from the store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from streamloader.dts import ShardIndex, ShardSpan
from streamloader.fetch.arena import Arena, aligned
from streamloader.fetch.cache import BlockCache
from streamloader.fetch.cache_index import Extent
from streamloader.fetch.cancel import all_or_cancel
from streamloader.fetch.catalog import Catalog
from streamloader.fetch.underway import Underway
from streamloader.order import Selection


@dataclass(frozen=True, slots=True)
class Span:
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


class PieceReader:
    """Reads pieces of a data set; runs on one event loop.

    Args:
        catalog, arena, selection, max_reads, cache: as of ``PieceLoader``.
    """

    def __init__(
        self,
        catalog: Catalog,
        arena: Arena,
        *,
        selection: Selection | None,
        max_reads: int,
        cache: BlockCache | None,
    ) -> None:
        self._catalog = catalog
        self._arena = arena
        self._selection = selection
        self._reads = asyncio.Semaphore(max_reads)
        self._cache = cache
        self._underway = Underway()

    async def read(
        self,
        parts: Sequence[ShardSpan],
        first: int,
        count: int,
        base: int,
        underway: ExitStack,
    ) -> list[Span]:
        """Reads a piece; the tails of its shards come first, or beside it where they may.

        Args:
            parts: runs of samples of single shards that it consists of.
            first, count: its samples, numbered as the plan does.
            base: where it goes in the arena.
            underway: until it is closed, others that want these bytes wait, if there is a cache.
        """
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

    async def _read_indexes(self, parts: Sequence[ShardSpan]) -> list[ShardIndex]:
        return await all_or_cancel([self._catalog.shard_index(part.shard) for part in parts])

    def _block_extents(self, first: int, count: int) -> list[Extent] | None:
        """(offset, bytes) in the shards of a whole block, known without their tails."""
        blocks = self._catalog.blocks
        block, within = divmod(first, blocks.block_samples)
        if self._selection is not None or within or count != blocks.samples_of(block)[1]:
            return None
        return [(offset, nbytes) for _, offset, nbytes in blocks.block_span_bytes(block)]

    def _blocks_around(
        self, first: int, parts: Sequence[ShardSpan], extents: list[Extent]
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
        parts: Sequence[ShardSpan],
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

    async def read_again(self, span: Span) -> None:
        """Reads a span from the store, whatever the cache has."""
        await self._read(span.shard, (span.offset, span.nbytes), None, span.base)


def _spans(
    parts: Sequence[ShardSpan],
    extents: list[Extent],
    blocks: list[Extent],
    base: int,
    indexes: list[ShardIndex],
) -> list[Span]:
    spans = []
    for part, (offset, nbytes), block, index in zip(parts, extents, blocks, indexes, strict=True):
        spans.append(Span(part.shard, block, part.first, part.count, offset, nbytes, base, index))
        base += aligned(nbytes)
    return spans

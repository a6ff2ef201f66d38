"""Which byte ranges of which shards a cache holds, as far as this process knows."""

from __future__ import annotations

from bisect import bisect_left

#: Offset in a shard, and bytes.
Extent = tuple[int, int]


class KeptExtents:
    """Extents by shard: of whole blocks, and of the parts that epochs cut blocks into."""

    def __init__(self) -> None:
        self._by_shard: dict[int, list[Extent]] = {}

    def add(self, shard: int, extent: Extent) -> None:
        extents = self._by_shard.setdefault(shard, [])
        place = bisect_left(extents, extent)
        if extents[place : place + 1] != [extent]:
            extents.insert(place, extent)

    def remove(self, shard: int, extent: Extent) -> None:
        """Forgets an extent, if it is known."""
        extents = self._by_shard.get(shard, [])
        place = bisect_left(extents, extent)
        if extents[place : place + 1] == [extent]:
            del extents[place]

    def within(self, shard: int, block: Extent) -> list[Extent]:
        """What is kept of one block, by offset."""
        extents = self._by_shard.get(shard, [])
        first = bisect_left(extents, (block[0], 0))
        return extents[first : bisect_left(extents, (block[0] + block[1], 0))]

    def cover(self, shard: int, block: Extent, wanted: Extent) -> list[Extent]:
        """Extents that one after the other hold all of ``wanted``, part of ``block``; else none."""
        at, end = wanted[0], wanted[0] + wanted[1]
        chosen: list[Extent] = []
        kept = self.within(shard, block)
        while at < end:
            reaching = [extent for extent in kept if extent[0] <= at < extent[0] + extent[1]]
            if not reaching:
                return []
            chosen.append(max(reaching, key=sum))
            at = sum(chosen[-1])
        return chosen

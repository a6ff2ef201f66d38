"""Which parts of shards are on their way into the cache, so that nobody reads them twice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from streamloader.fetch.cache_index import Extent


class Underway:
    """Ranges of shards that are being read and kept; used on one event loop.

    The pieces of an epoch do not overlap. Those of the next one do, and begin while the last ones
    of this epoch are still coming.
    """

    def __init__(self) -> None:
        self._coming: dict[int, list[tuple[Extent, asyncio.Future[None]]]] = {}

    async def settled(self, wanted: Sequence[tuple[int, Extent]]) -> None:
        """Waits until nothing of some ranges, each with the number of its shard, is underway."""
        while (other := self._overlapping(wanted)) is not None:
            await asyncio.shield(other)

    @contextmanager
    def announced(self, ranges: Sequence[tuple[int, Extent]]) -> Iterator[None]:
        """Inside the block these ranges are underway."""
        done = asyncio.get_running_loop().create_future()
        for shard, extent in ranges:
            self._coming.setdefault(shard, []).append((extent, done))
        try:
            yield
        finally:
            for shard in {shard for shard, _ in ranges}:
                self._coming[shard] = [each for each in self._coming[shard] if each[1] is not done]
                if not self._coming[shard]:
                    del self._coming[shard]
            done.set_result(None)

    def _overlapping(self, wanted: Sequence[tuple[int, Extent]]) -> asyncio.Future[None] | None:
        for shard, (start, nbytes) in wanted:
            for (other, other_bytes), done in self._coming.get(shard, ()):
                if other < start + nbytes and start < other + other_bytes:
                    return done
        return None

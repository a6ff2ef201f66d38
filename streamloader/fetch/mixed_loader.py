"""Pieces of several data sets, each brought into the arena by the loader of its own data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from streamloader.fetch.piece_loader import LoadedPiece, PieceLoader
from streamloader.fetch.sources import Sources
from streamloader.order import GapOrder, MixedOrder, Order


class MixedPieceLoader:
    """Does what a ``PieceLoader`` does, for samples that are numbered through all data sets.

    Args:
        sources: the data sets.
        loaders: one for each, in the same order.
    """

    def __init__(self, sources: Sources, loaders: Sequence[PieceLoader]) -> None:
        self._loaders = tuple(loaders)
        self._sources = sources
        self._passes = [-1] * len(self._loaders)

    def close(self) -> None:
        for loader in self._loaders:
            loader.close()

    def begin_epoch(self, order: Order) -> None:
        """A cache counts passes over its data set, which need not begin with the epoch."""
        whole = order.whole if isinstance(order, GapOrder) else order
        assert isinstance(whole, MixedOrder)
        for source, which in enumerate(whole.first_passes):
            if which != self._passes[source]:
                self._passes[source] = which
                self._loaders[source].begin_epoch(order)

    async def room_for(self, first: int, count: int) -> int:
        """As of ``PieceLoader``."""
        loader, start = self._loader_of(first)
        return await loader.room_for(first - start, count)

    async def exact_room(self, first: int, count: int) -> int:
        """As of ``PieceLoader``."""
        loader, start = self._loader_of(first)
        return await loader.exact_room(first - start, count)

    async def load(self, first: int, count: int, base: int) -> LoadedPiece:
        """As of ``PieceLoader``."""
        loader, start = self._loader_of(first)
        piece = await loader.load(first - start, count, base)
        if not piece.faults:
            return piece
        return replace(piece, faults={start + n: reason for n, reason in piece.faults.items()})

    def _loader_of(self, sample: int) -> tuple[PieceLoader, int]:
        source = self._sources.source_of(sample)
        return self._loaders[source], int(self._sources.first_samples[source])

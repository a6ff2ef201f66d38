"""Pieces of several data sets, each brought into the arena by the loader of its own data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from streamloader.fetch.piece import LoadedPiece, Room
from streamloader.fetch.piece_loader import PieceLoader
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

    def divide(self, rooms: Sequence[Room]) -> list[list[Room]]:
        """As of ``PieceLoader``; each group is of one data set."""
        own: list[list[Room]] = [[] for _ in self._loaders]
        for room in rooms:
            own[self._sources.source_of(room.first)].append(room)
        return [
            group
            for loader, mine in zip(self._loaders, own, strict=True)
            for group in loader.divide(mine)
        ]

    async def load_group(self, rooms: Sequence[Room]) -> list[LoadedPiece]:
        """As of ``PieceLoader``."""
        loader, start = self._loader_of(rooms[0].first)
        pieces = await loader.load_group(
            [replace(room, first=room.first - start) for room in rooms]
        )
        return [
            replace(piece, faults={start + n: reason for n, reason in piece.faults.items()})
            if piece.faults
            else piece
            for piece in pieces
        ]

    def _loader_of(self, sample: int) -> tuple[PieceLoader, int]:
        source = self._sources.source_of(sample)
        return self._loaders[source], int(self._sources.first_samples[source])

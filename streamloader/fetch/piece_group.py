"""Brings pieces that are needed together into the arena, in a thread that may block.

A local piece comes in less time than an event loop spends on it: a task, a wait and the arithmetic
around each. Here a thread goes through several of them, with three calls into native code for each.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from storage_backends import BlockingReader, StorageError
from streamloader.dts import ShardIndex, ShardSpan
from streamloader.fetch.arena import Arena, aligned
from streamloader.fetch.catalog import Catalog
from streamloader.fetch.rows import RowLayout

#: A thread gets pieces of so many bytes at a time: enough to be worth it, and few enough that
#: several threads share a batch.
_GROUP_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Room:
    """A piece, and the room that it has in the arena.

    Attributes:
        first, count: its samples, numbered as the plan does.
        base: where its room begins.
        nbytes: of the room.
    """

    first: int
    count: int
    base: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class LoadedPiece:
    """A piece in the arena.

    Attributes:
        rows_base: arena offset of its rows.
        nbytes: bytes of the arena that it takes.
        stored_bytes: bytes that were read for it.
        faults: reasons of samples that cannot be used, by number in the plan.
    """

    rows_base: int
    nbytes: int
    stored_bytes: int
    faults: dict[int, str]


@dataclass(frozen=True, slots=True)
class PlacedPiece:
    """A piece whose shards are known.

    Attributes:
        parts: runs of samples of single shards that it consists of.
        indexes: of their shards.
    """

    room: Room
    parts: Sequence[ShardSpan]
    indexes: Sequence[ShardIndex]


class GroupReader:
    """Reads pieces whose samples are stored as they are used; safe to use from several threads.

    Args:
        reader: of the data set's store.
        verify: check every sample's hash.
    """

    def __init__(
        self,
        catalog: Catalog,
        arena: Arena,
        layout: RowLayout,
        *,
        reader: BlockingReader,
        verify: bool,
    ) -> None:
        self._names = catalog.manifest.table.names
        self._memory = arena.array
        self._places = layout.places()
        self._reader = reader
        self._verify = verify

    def read(
        self, pieces: Sequence[PlacedPiece], cancelled: threading.Event
    ) -> list[LoadedPiece | None]:
        """Fills the rooms of pieces.

        Returns:
            For each what was loaded. None if anything about it is not as it should be, and for all
            that are left when ``cancelled`` is set: what is wrong is another's to find out.
        """
        return [self._read_piece(piece, cancelled) for piece in pieces]

    def _read_piece(self, piece: PlacedPiece, cancelled: threading.Event) -> LoadedPiece | None:
        base = piece.room.base
        places = []
        for part, index in zip(piece.parts, piece.indexes, strict=True):
            start, end = index.offsets[part.first], index.offsets[part.first + part.count]
            places.append((base, int(start), int(end - start)))
            base += aligned(int(end - start))
        rows = rows_base = base
        for part, index, (at, offset, nbytes) in zip(
            piece.parts, piece.indexes, places, strict=True
        ):
            if cancelled.is_set() or not self._is_read(part.shard, offset, at, nbytes, cancelled):
                return None
            source = index.row_source(self._places)
            if not source.take(part.first, part.count, self._memory, at, rows, verify=self._verify):
                return None
            rows += part.count * self._places.stride
        stored = sum(nbytes for _, _, nbytes in places)
        return LoadedPiece(rows_base, aligned(rows) - piece.room.base, stored, {})

    def _is_read(
        self, shard: int, offset: int, at: int, nbytes: int, cancelled: threading.Event
    ) -> bool:
        if not nbytes:
            return True
        view = self._memory[at : at + nbytes].data
        try:
            self._reader.read_into(self._names[shard], offset, view, cancelled)
        except StorageError:
            # The piece is read again by itself, and what is the matter is told then.
            return False
        return True


def divide(rooms: Sequence[Room]) -> list[list[Room]]:
    """Pieces in groups of about four MiB, in order."""
    groups: list[list[Room]] = []
    nbytes = 0
    for room in rooms:
        if not groups or nbytes + room.nbytes > _GROUP_BYTES:
            groups.append([])
            nbytes = 0
        groups[-1].append(room)
        nbytes += room.nbytes
    return groups

"""Brings pieces that are needed together into the arena, in a thread that may block.

A local piece comes in less time than an event loop spends on it: a task, a wait and the arithmetic
around each. Here a thread takes several of them, and one native call reads and checks them all, so
that the interpreter's lock is asked for once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storage_backends import OpenFiles, StorageError
from streamloader.dts import TAKE_RECORDS_ADDRESS, ShardIndex, ShardSpan, is_hashed_natively
from streamloader.fetch.arena import Arena, aligned
from streamloader.fetch.catalog import Catalog
from streamloader.fetch.native_kernel import ffi, lib
from streamloader.fetch.piece import LoadedPiece, Room
from streamloader.fetch.rows import RowLayout

#: A thread gets pieces of so many bytes at a time: enough to be worth it, and few enough that
#: several threads share a batch.
_GROUP_BYTES = 6 << 20
#: Files that a thread holds open at once, beyond those that the store keeps anyway.
_OPEN_FILES = 8

IS_NATIVE = lib is not None
"""Whether pieces can be read together here."""

# As sl_part in native/pieces.h.
_PART_DTYPE = np.dtype(
    [
        ("fd", "<i8"),
        ("offset", "<i8"),
        ("nbytes", "<i8"),
        ("at", "<i8"),
        ("source", "<u8"),
        ("first", "<i8"),
        ("count", "<i8"),
        ("rows", "<i8"),
        ("outcome", "<i8"),
        ("read_ns", "<i8"),
    ]
)


class Stop:
    """Ends a native call early, from another thread."""

    def __init__(self) -> None:
        self.flag = ffi.new("int32_t *", 0)

    def set(self) -> None:
        self.flag[0] = 1


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
        files: the data set's store.
        verify: check every sample's hash.
    """

    @staticmethod
    def open(
        catalog: Catalog, arena: Arena, layout: RowLayout, *, verify: bool
    ) -> GroupReader | None:
        """None where there are no files, or no native code for them."""
        files = catalog.store.open_files
        native = IS_NATIVE and all(is_hashed_natively(s) for s in catalog.manifest.schemas)
        if files is None or not native:
            return None
        return GroupReader(catalog, arena, layout, files=files, verify=verify)

    def __init__(
        self,
        catalog: Catalog,
        arena: Arena,
        layout: RowLayout,
        *,
        files: OpenFiles,
        verify: bool,
    ) -> None:
        self._names = catalog.manifest.table.names
        self._memory = arena.array
        self._places = layout.places()
        self._files = files
        self._verify = verify

    def read(self, pieces: Sequence[PlacedPiece], stop: Stop) -> list[LoadedPiece | None]:
        """Fills the rooms of pieces.

        Returns:
            For each what was loaded. None if anything about it is not as it should be, and for all
            that are left when ``stop`` is set: what is wrong is another's to find out.
        """
        shards = [part.shard for piece in pieces for part in piece.parts]
        # Kept until the native code, which has their addresses, is done.
        sources = [index.row_source(self._places) for piece in pieces for index in piece.indexes]
        addresses = iter([source.address for source in sources])
        parts: list[tuple[int, ...]] = []
        placed = [self._place(piece, addresses, parts) for piece in pieces]
        table = np.array(parts, _PART_DTYPE)
        for start in range(0, len(parts), _OPEN_FILES):
            end = start + _OPEN_FILES
            self._bring(table[start:end], shards[start:end], stop)
        del sources
        good = table["outcome"] == 1
        done = 0
        loaded: list[LoadedPiece | None] = []
        for piece, result in zip(pieces, placed, strict=True):
            last = done + len(piece.parts)
            loaded.append(result if good[done:last].all() else None)
            done = last
        return loaded

    def _place(
        self, piece: PlacedPiece, addresses: Iterator[int], parts: list[tuple[int, ...]]
    ) -> LoadedPiece:
        """Where a piece goes; adds a row of ``_PART_DTYPE`` for each of its parts."""
        base = piece.room.base
        spans = []
        for part, index in zip(piece.parts, piece.indexes, strict=True):
            start = int(index.offsets[part.first])
            nbytes = int(index.offsets[part.first + part.count]) - start
            spans.append((base, start, nbytes))
            base += aligned(nbytes)
        rows = base
        for part, (at, start, nbytes) in zip(piece.parts, spans, strict=True):
            source = next(addresses)
            parts.append((0, start, nbytes, at, source, part.first, part.count, rows, 0, 0))
            rows += part.count * self._places.stride
        stored = sum(nbytes for _, _, nbytes in spans)
        return LoadedPiece(base, aligned(rows) - piece.room.base, stored, {})

    def _bring(self, table: npt.NDArray[np.void], shards: list[int], stop: Stop) -> None:
        try:
            with self._files.opened([self._names[shard] for shard in shards]) as descriptors:
                table["fd"] = descriptors
                lib.sl_bring_parts(
                    ffi.from_buffer("sl_part[]", table, require_writable=True),
                    len(table),
                    ffi.from_buffer("uint8_t[]", self._memory, require_writable=True),
                    len(self._memory),
                    self._places.stride,
                    self._verify,
                    TAKE_RECORDS_ADDRESS,
                    stop.flag,
                )
        except StorageError:
            # Each piece is read again by itself, and what is the matter is told then.
            return
        done = table[table["read_ns"] > 0]
        self._files.count(done["nbytes"].tolist(), (done["read_ns"] / 1e9).tolist())


def divide(rooms: Sequence[Room]) -> list[list[Room]]:
    """Pieces in groups of about six MiB, in order."""
    groups: list[list[Room]] = []
    nbytes = 0
    for room in rooms:
        if not groups or nbytes + room.nbytes > _GROUP_BYTES:
            groups.append([])
            nbytes = 0
        groups[-1].append(room)
        nbytes += room.nbytes
    return groups

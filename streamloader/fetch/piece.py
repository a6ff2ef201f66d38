"""A piece: what is read of a block at once, before and after it is in the arena."""

from __future__ import annotations

from dataclasses import dataclass


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

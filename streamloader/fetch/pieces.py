"""Which pieces are in memory, for whom, and for how long.

A *piece* is a run of samples of one block that one lane reads. A demand (the samples of one
batch) names its pieces by id; the table finds their slots, counts their users and says when
a piece is finished. All of it is a few numpy operations per demand, none per sample.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The distinct pieces of one demand.

    Attributes:
        ids: piece ids, ascending, int64 [p].
        place: for each row of the demand the place of its piece in ``ids``, int64 [rows].
        rows: rows per piece, int64 [p].
        first, count, last_demand: per piece, int64 [p].
    """

    ids: Int64
    place: Int64
    rows: Int64
    first: Int64
    count: Int64
    last_demand: Int64

    @staticmethod
    def of(piece: Int64, first: Int64, count: Int64, last_demand: Int64) -> Wanted:
        ids, example, place, rows = np.unique(
            piece, return_index=True, return_inverse=True, return_counts=True
        )
        return Wanted(ids, place, rows, first[example], count[example], last_demand[example])


class PieceTable:
    """Slots of the pieces that are loading or in memory.

    A piece leaves when nobody uses it and it is *finished*: every sample of it was demanded,
    or no later demand can name it.
    """

    def __init__(self, capacity: int = 1024) -> None:
        self._slot_of: dict[int, int] = {}
        self._spare = list(range(capacity - 1, -1, -1))
        self._ids = np.zeros(capacity, np.int64)
        self._is_held = np.zeros(capacity, np.bool_)
        self.users = np.zeros(capacity, np.int64)
        self.unclaimed = np.zeros(capacity, np.int64)
        self.last_demand = np.zeros(capacity, np.int64)
        self.base = np.zeros(capacity, np.int64)
        self.rows_base = np.zeros(capacity, np.int64)
        self.first = np.zeros(capacity, np.int64)
        self.ready = np.zeros(capacity, np.bool_)
        self._finished = np.zeros(capacity, np.bool_)

    def __len__(self) -> int:
        return len(self._slot_of)

    def slots_of(self, ids: Int64) -> Int64:
        """Slot of each piece, -1 for one that is not in the table."""
        slot_of = self._slot_of.get
        return np.array([slot_of(piece, -1) for piece in ids.tolist()], np.int64)

    def add(self, piece: int, *, first: int, count: int, last_demand: int, base: int) -> int:
        """Enters a piece whose bytes will lie at ``base`` of the arena; returns its slot."""
        if not self._spare:
            self._grow()
        slot = self._spare.pop()
        self._slot_of[piece] = slot
        self._ids[slot] = piece
        self._is_held[slot] = True
        self.users[slot] = 0
        self.unclaimed[slot] = count
        self.last_demand[slot] = last_demand
        self.base[slot] = base
        self.first[slot] = first
        self.ready[slot] = False
        self._finished[slot] = False
        return slot

    def use(self, slots: Int64, rows: Int64, users: Int64 | int = 1) -> None:
        """One demand claims ``rows`` samples of each of the pieces, as so many users."""
        self.users[slots] += users
        self.unclaimed[slots] -= rows
        self._finished[slots[self.unclaimed[slots] <= 0]] = True

    def release(self, slots: Int64, users: Int64 | int = 1) -> Int64:
        """So many users are done with the pieces; returns the slots that nobody needs now."""
        self.users[slots] -= users
        over: Int64 = slots[(self.users[slots] == 0) & self._finished[slots]]
        return over

    def finish_up_to(self, demand: int) -> Int64:
        """No demand after ``demand`` is planned with these pieces; returns idle slots."""
        over = np.flatnonzero(self._is_held & (self.last_demand <= demand))
        self._finished[over] = True
        idle: Int64 = over[self.users[over] == 0]
        return idle

    def idle(self, keep: Int64) -> Int64:
        """Slots that are ready and unused, without ``keep``; those used last come first."""
        is_idle = self._is_held & (self.users == 0) & self.ready
        is_idle[keep] = False
        slots = np.flatnonzero(is_idle)
        return slots[np.argsort(-self.last_demand[slots], kind="stable")]

    def remove(self, slots: Int64) -> None:
        self._is_held[slots] = False
        for piece in self._ids[slots].tolist():
            del self._slot_of[piece]
        self._spare.extend(slots.tolist())

    def all_slots(self) -> Int64:
        return np.flatnonzero(self._is_held)

    def _grow(self) -> None:
        old = len(self.users)
        for name in (
            "_ids", "_is_held", "users", "unclaimed", "last_demand", "base", "rows_base",
            "first", "ready", "_finished",
        ):  # fmt: skip
            values = getattr(self, name)
            setattr(self, name, np.concatenate([values, np.zeros(old, values.dtype)]))
        self._spare = list(range(2 * old - 1, old - 1, -1))

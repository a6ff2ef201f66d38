"""Which batch comes next: the one that was planned next, or one of whatever has come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from streamloader.fetch.pieces import Int64, PieceTable, Wanted
from streamloader.monitor import Counters
from streamloader.order import ArrivalPlan, ArrivalPool, BatchPlan, BatchRows

_MAX_PLANNED = 256


@dataclass(frozen=True, slots=True)
class Turn:
    """A batch whose pieces are in memory.

    Attributes:
        slots: of the piece of each row, [b].
        held: slots of the pieces that the batch uses, distinct, [p].
        users: as how many users of each piece it counts, [p] or for all of them.
    """

    rows: BatchRows
    slots: Int64
    held: Int64
    users: Int64 | int


class Turns(Protocol):
    """Takes in planned batches whose pieces are on their way, and gives those that have come."""

    def users(self, wanted: Wanted) -> Int64 | int:
        """As how many users of each of its pieces a planned batch counts."""
        ...

    async def room(self, plan: BatchPlan) -> None:
        """Returns when the next planned batch may be put."""
        ...

    async def put(self, plan: BatchPlan, wanted: Wanted, slots: Int64) -> None:
        """Takes in the next planned batch; ``slots`` are those of ``wanted.ids``."""
        ...

    async def end(self) -> None:
        """No more batches are put."""
        ...

    async def next(self) -> Turn | None:
        """Waits for the next batch, None after the last."""
        ...


class InTurn:
    """Planned batches as they were planned.

    Args:
        table: of the pieces.
        change: waits until something of the table or of the turns may have changed.
        counters: told how long each batch kept the loader waiting, as ``fetch.wait_s``.
    """

    def __init__(
        self, table: PieceTable, change: Callable[[], Awaitable[None]], counters: Counters
    ) -> None:
        self._table = table
        self._change = change
        self._counters = counters
        self._planned: asyncio.Queue[Turn | None] = asyncio.Queue(_MAX_PLANNED)

    def users(self, wanted: Wanted) -> int:  # noqa: ARG002 - one for the batch as a whole
        return 1

    async def room(self, plan: BatchPlan) -> None:
        """The queue bounds it."""

    async def put(self, plan: BatchPlan, wanted: Wanted, slots: Int64) -> None:
        await self._planned.put(Turn(plan, slots[wanted.place], slots, 1))

    async def end(self) -> None:
        await self._planned.put(None)

    async def next(self) -> Turn | None:
        turn = await self._planned.get()
        if turn is not None:
            started = time.perf_counter()
            while not self._table.ready[turn.held].all():
                await self._change()
            self._counters.observe("fetch.wait_s", time.perf_counter() - started)
        return turn


class ByArrival:
    """Batches of the first planned rows that have come.

    Args:
        plan: of the batches that are put.
        table, change, counters: as of ``InTurn``.
        changed: to be called when rows were taken.
    """

    def __init__(
        self,
        plan: ArrivalPlan,
        table: PieceTable,
        change: Callable[[], Awaitable[None]],
        counters: Counters,
        changed: Callable[[], None],
    ) -> None:
        self._pool = ArrivalPool(plan)
        self._table = table
        self._change = change
        self._changed = changed
        self._counters = counters
        self._left = plan.num_batches

    def users(self, wanted: Wanted) -> Int64:
        return wanted.rows

    async def room(self, plan: BatchPlan) -> None:
        while not self._pool.has_room(plan):
            await self._change()

    async def put(self, plan: BatchPlan, wanted: Wanted, slots: Int64) -> None:
        self._pool.add(plan, slots[wanted.place])
        self._changed()

    async def end(self) -> None:
        """The plan says how many there are."""

    async def next(self) -> Turn | None:
        if not self._left:
            return None
        started = time.perf_counter()
        while (taken := self._pool.take(self._table.ready)) is None:
            await self._change()
        self._counters.observe("fetch.wait_s", time.perf_counter() - started)
        self._left -= 1
        self._changed()
        rows, slots = taken
        held, users = np.unique(slots, return_counts=True)
        return Turn(rows, slots, held, users)

"""Reads the pieces that a plan will need, in the order of need, within a bound of bytes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from streamloader.dts import copy_rows
from streamloader.errors import ConfigError
from streamloader.fetch.arena import Arena
from streamloader.fetch.cache import BlockCache
from streamloader.fetch.catalog import Catalog
from streamloader.fetch.mixed_loader import MixedPieceLoader
from streamloader.fetch.piece import Room
from streamloader.fetch.piece_loader import PieceLoader
from streamloader.fetch.pieces import Int64, PieceTable, Wanted
from streamloader.fetch.planner import Planner
from streamloader.fetch.sources import Sources
from streamloader.fetch.turns import ByArrival, InTurn, Turn, Turns
from streamloader.monitor import Counters
from streamloader.order import ArrivalPlan, BatchRows, RankPlan, Selection


@dataclass(slots=True)
class Fetched:
    """The samples of one batch, in memory and verified.

    Attributes:
        plan: which samples, numbered as the plan does.
        samples: their numbers in the data set, or through all data sets of a mixture, int64 [b].
        rows: row per sample, of the catalog's ``RowLayout`` dtype, [b].
        faults: reason by row, for samples whose content failed its checksum twice.
        release: to be called once, from any thread, when the bytes are no longer needed.
    """

    plan: BatchRows
    samples: Int64
    rows: npt.NDArray[np.void]
    faults: dict[int, str]
    release: Callable[[], None]


@dataclass(slots=True)
class _Run:
    """What lives as long as one pass over a plan.

    ``admitted`` are the pieces, by slot, that have their room and are not being loaded yet.
    """

    plan: RankPlan | ArrivalPlan
    table: PieceTable
    turns: Turns
    tasks: asyncio.TaskGroup = field(default_factory=asyncio.TaskGroup)
    admitted: dict[int, Room] = field(default_factory=dict)
    loading: int = 0
    faults: dict[int, dict[int, str]] = field(default_factory=dict)
    outstanding: int = 0
    over: bool = False


class Prefetcher:
    """Keeps the pieces of coming batches in the arena; runs on one event loop.

    Args:
        catalog: the data set, or several as one.
        arena: memory for blocks and rows; its size is the bound.
        selection: what sample numbers of the plan mean; None if they are the data set's own.
        max_reads: ranged reads in flight at once of each data set; None: as many as serve its
            store well.
        verify: check every sample's hash when its piece arrives.
        caches: one for each data set, opened, and closed by the caller; with none everything is
            read from the store.
    """

    def __init__(
        self,
        catalog: Catalog | Sources,
        arena: Arena,
        *,
        counters: Counters,
        selection: Selection | None = None,
        max_reads: int | None = None,
        verify: bool = True,
        caches: Sequence[BlockCache] = (),
    ) -> None:
        sources = catalog if isinstance(catalog, Sources) else Sources([catalog])
        reads = [max_reads or each.store.parallel_reads for each in sources.catalogs]
        self._arena = arena
        self._counters = counters
        self._selection = selection
        self._layout = sources.catalogs[0].row_layout()
        own_caches: Sequence[BlockCache | None] = caches or [None] * len(reads)
        loaders = [
            PieceLoader(
                each,
                arena,
                counters=counters,
                selection=selection,
                max_reads=own_reads,
                verify=verify,
                cache=cache,
                layout=self._layout,
            )
            for each, own_reads, cache in zip(sources.catalogs, reads, own_caches, strict=True)
        ]
        self._loader = loaders[0] if len(loaders) == 1 else MixedPieceLoader(sources, loaders)
        self._planner = Planner()
        self._runs: list[_Run] = []
        self._changed = asyncio.Event()
        self._delivering = asyncio.Lock()
        self._loading = asyncio.Semaphore(sum(reads))

    async def run(
        self,
        plan: RankPlan | ArrivalPlan,
        deliver: Callable[[Fetched], Awaitable[None]],
        on_planned: Callable[[], None] = lambda: None,
    ) -> None:
        """Delivers every batch of ``plan``; returns when all of them are released.

        The batches of a ``RankPlan`` are as planned. Those of an ``ArrivalPlan`` have the rows that
        came first, within its look-ahead.

        A second run may begin once the first one has called ``on_planned``: all its pieces have
        room then, so only one of the two waits for memory. It reads at once, and delivers when the
        first one has delivered everything.

        Any failure cancels what is under way, waits for it, and is raised as it was.
        """
        run = self._new_run(plan)
        self._runs.append(run)
        self._loader.begin_epoch(plan.order)
        try:
            async with run.tasks:
                run.tasks.create_task(self._plan_ahead(run, on_planned))
                run.tasks.create_task(self._dispatch(run, deliver))
        except BaseExceptionGroup as failures:
            raise _first_failure(failures) from None
        finally:
            run.over = True
            self._runs.remove(run)
            for slot in run.table.all_slots().tolist():
                self._arena.free(int(run.table.base[slot]))
            self._changed.set()

    def _new_run(self, plan: RankPlan | ArrivalPlan) -> _Run:
        table = PieceTable()
        turns: Turns = InTurn(table, self._change, self._counters)
        if isinstance(plan, ArrivalPlan):
            turns = ByArrival(plan, table, self._change, self._counters, self._changed.set)
        return _Run(plan, table, turns)

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def close(self) -> None:
        self._loader.close()
        self._planner.close()

    async def _plan_ahead(self, run: _Run, on_planned: Callable[[], None]) -> None:
        async for plan, wanted in self._planner.plans(run.plan):
            await run.turns.room(plan)
            slots = run.table.slots_of(wanted.ids)
            for place in np.flatnonzero(slots < 0).tolist():
                slots[place] = await self._admit(run, wanted, place, slots)
            self._start_loads(run)
            run.table.use(slots, wanted.rows, run.turns.users(wanted))
            run.outstanding += 1
            self._drop(run, run.table.finish_up_to(plan.number))
            await run.turns.put(plan, wanted, slots)
        on_planned()
        await run.turns.end()

    async def _admit(self, run: _Run, wanted: Wanted, place: int, slots: Int64) -> int:
        """Makes room for a piece; returns its slot."""
        first, count = int(wanted.first[place]), int(wanted.count[place])
        room = await self._reserve(run, first, count, slots[slots >= 0])
        slot = run.table.add(
            int(wanted.ids[place]),
            first=first,
            count=count,
            last_demand=int(wanted.last_demand[place]),
            base=room.base,
        )
        run.admitted[slot] = room
        return slot

    def _start_loads(self, run: _Run) -> None:
        """Starts to read what was admitted."""
        slot_of = {room.base: slot for slot, room in run.admitted.items()}
        rooms = list(run.admitted.values())
        run.admitted.clear()
        # Pieces of a planned batch are of use together; where batches are made of what has come,
        # none may wait for another.
        by_itself = isinstance(run.plan, ArrivalPlan)
        for group in [[r] for r in rooms] if by_itself else self._loader.divide(rooms):
            run.loading += 1
            run.tasks.create_task(self._load(run, [slot_of[r.base] for r in group], group))

    async def _reserve(self, run: _Run, first: int, count: int, keep: Int64) -> Room:
        nbytes = await self._loader.room_for(first, count)
        while True:
            start = self._arena.allocate(nbytes)
            if start is not None:
                return Room(first, count, start, nbytes)
            self._start_loads(run)
            if run.outstanding == 0 and not any(len(r.table) for r in self._runs if r is not run):
                idle = run.table.idle(keep)
                if len(idle):
                    self._counters.add("fetch.evicted_pieces")
                    self._drop(run, idle[:1])
                    continue
                exact = await self._loader.exact_room(first, count)
                if exact < nbytes:
                    nbytes = exact
                    continue
                if not run.loading:
                    raise ConfigError(
                        f"memory_limit leaves {self._arena.nbytes:,} bytes for blocks, too few"
                        f" for the pieces of one batch ({nbytes:,} more are needed): raise"
                        " memory_limit or lower batch_size"
                    )
            self._counters.add("fetch.waits_for_memory")
            await self._change()

    async def _load(self, run: _Run, slots: list[int], rooms: list[Room]) -> None:
        async with self._loading:
            started = time.perf_counter()
            pieces = await self._loader.load_group(rooms)
            # What the page cache holds comes without any wait: the loop must see to other things
            # after a few such pieces, above all to batches that are ready.
            await asyncio.sleep(0)
        elapsed_s = time.perf_counter() - started
        for slot, room, piece in zip(slots, rooms, pieces, strict=True):
            if piece.faults:
                run.faults[slot] = piece.faults
            self._arena.shrink(room.base, piece.nbytes)
            run.table.rows_base[slot] = piece.rows_base
            run.table.ready[slot] = True
            self._counters.observe("fetch.piece_s", elapsed_s)
        run.loading -= 1
        self._counters.add("fetch.pieces", len(pieces))
        self._counters.add("fetch.bytes", sum(piece.stored_bytes for piece in pieces))
        self._changed.set()

    async def _dispatch(self, run: _Run, deliver: Callable[[Fetched], Awaitable[None]]) -> None:
        async with self._delivering:
            loop = asyncio.get_running_loop()
            while (turn := await run.turns.next()) is not None:
                await deliver(self._collect(run, turn, loop))
        while run.outstanding:
            await self._change()

    def _collect(self, run: _Run, turn: Turn, loop: asyncio.AbstractEventLoop) -> Fetched:
        plan, table, slots = turn.rows, run.table, turn.slots
        places = plan.samples - table.first[slots]
        offsets = table.rows_base[slots] + places * self._layout.stride
        rows = np.empty(len(offsets), self._layout.dtype)
        copy_rows(self._arena.array, offsets, rows, None)
        faults = _faults_of(run, plan.samples, slots) if run.faults else {}

        def release() -> None:
            loop.call_soon_threadsafe(self._release, run, turn)

        samples = plan.samples if self._selection is None else self._selection.samples(plan.samples)
        return Fetched(plan, samples, rows, faults, release)

    def _release(self, run: _Run, turn: Turn) -> None:
        if run.over:
            return  # its memory went back as a whole, and may be another run's by now
        run.outstanding -= 1
        self._drop(run, run.table.release(turn.held, turn.users))
        self._changed.set()

    def _drop(self, run: _Run, slots: Int64) -> None:
        slots = slots[run.table.ready[slots]]
        if not len(slots):
            return
        for slot in slots.tolist():
            self._arena.free(int(run.table.base[slot]))
            run.faults.pop(slot, None)
        run.table.remove(slots)
        self._changed.set()


def _faults_of(run: _Run, samples: Int64, slots: Int64) -> dict[int, str]:
    """Reasons by row of a demand: ``slots`` and plan's numbers of its samples, [b] each."""
    faults: dict[int, str] = {}
    for slot in run.faults.keys() & set(slots.tolist()):
        reasons = run.faults[slot]
        for row in np.flatnonzero(slots == slot).tolist():
            reason = reasons.get(int(samples[row]))
            if reason is not None:
                faults[row] = reason
    return faults


def _first_failure(group: BaseExceptionGroup[BaseException]) -> BaseException:
    failure: BaseException = group
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return failure

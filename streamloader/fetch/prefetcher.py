"""Reads the pieces that a plan will need, in the order of need, within a bound of bytes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from streamloader.dts import RecordFault, ShardIndex, ShardSpan
from streamloader.errors import ConfigError
from streamloader.fetch.arena import Arena
from streamloader.fetch.cancel import all_or_cancel
from streamloader.fetch.catalog import Catalog
from streamloader.fetch.pieces import Int64, PieceTable, Wanted
from streamloader.fetch.rows import BAD_LENGTH, gather
from streamloader.monitor import Counters
from streamloader.order import BatchPlan, RankPlan, Selection

_MAX_PLANNED = 256
_VERIFY_THREADS = 2
_ROWS_PER_STRETCH = 8192


@dataclass(slots=True)
class Fetched:
    """The samples of one batch, in memory and verified.

    Attributes:
        plan: which samples, numbered as the plan does.
        samples: their numbers in the data set, int64 [b].
        rows: row per sample, of the catalog's ``RowLayout`` dtype, [b].
        faults: reason by row, for samples whose content failed its checksum twice.
        release: to be called once, from any thread, when the bytes are no longer needed.
    """

    plan: BatchPlan
    samples: Int64
    rows: npt.NDArray[np.void]
    faults: dict[int, str]
    release: Callable[[], None]


@dataclass(slots=True)
class _Planned:
    plan: BatchPlan
    wanted: Wanted
    slots: Int64


@dataclass(frozen=True, slots=True)
class _Span:
    """Part of a piece that lies in one shard, and where its bytes go in the arena."""

    shard: int
    first: int
    count: int
    offset: int
    nbytes: int
    base: int
    index: ShardIndex


@dataclass(slots=True)
class _Run:
    """What lives as long as one pass over a plan."""

    plan: RankPlan
    table: PieceTable = field(default_factory=PieceTable)
    planned: asyncio.Queue[_Planned | None] = field(
        default_factory=lambda: asyncio.Queue(_MAX_PLANNED)
    )
    loads: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    faults: dict[int, dict[int, str]] = field(default_factory=dict)
    outstanding: int = 0
    over: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class Prefetcher:
    """Keeps the pieces of coming batches in the arena; runs on one event loop.

    Args:
        catalog: the data set.
        arena: memory for blocks and rows; its size is the bound.
        selection: what sample numbers of the plan mean; None if they are the data set's own.
        max_reads: ranged reads in flight at once.
        verify: check every sample's hash when its piece arrives.
    """

    def __init__(
        self,
        catalog: Catalog,
        arena: Arena,
        *,
        counters: Counters,
        selection: Selection | None = None,
        max_reads: int = 32,
        verify: bool = True,
    ) -> None:
        self._catalog = catalog
        self._arena = arena
        self._counters = counters
        self._selection = selection
        self._layout = catalog.row_layout()
        self._reads = asyncio.Semaphore(max_reads)
        self._verify = verify
        self._verifiers = ThreadPoolExecutor(_VERIFY_THREADS, "streamloader-verify")
        self._planner = ThreadPoolExecutor(1, "streamloader-plan")

    async def run(self, plan: RankPlan, deliver: Callable[[Fetched], Awaitable[None]]) -> None:
        """Delivers every batch of ``plan`` in order; returns when all of them are released.

        Any failure cancels what is under way, waits for it, and is raised as it was.
        """
        run = _Run(plan)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._plan_ahead(run, group))
                group.create_task(self._dispatch(run, deliver))
        except BaseExceptionGroup as failures:
            raise _first_failure(failures) from None
        finally:
            run.over = True
            for slot in run.table.all_slots().tolist():
                self._arena.free(int(run.table.base[slot]))

    def close(self) -> None:
        self._verifiers.shutdown(wait=True)
        self._planner.shutdown(wait=True)

    async def _plan_ahead(self, run: _Run, group: asyncio.TaskGroup) -> None:
        async for plan, wanted in self._plans(run.plan):
            slots = run.table.slots_of(wanted.ids)
            for place in np.flatnonzero(slots < 0).tolist():
                slots[place] = await self._admit(run, group, wanted, place, slots)
            run.table.use(slots, wanted.rows)
            run.outstanding += 1
            self._drop(run, run.table.finish_up_to(plan.number))
            await run.planned.put(_Planned(plan, wanted, slots))
        await run.planned.put(None)

    async def _plans(self, plan: RankPlan) -> AsyncIterator[tuple[BatchPlan, Wanted]]:
        """Plans in a thread of their own, a stretch ahead: arithmetic is not the loop's work."""
        loop = asyncio.get_running_loop()
        stretch = max(1, _ROWS_PER_STRETCH // plan.batch_size)
        begins = range(0, plan.num_batches, stretch)
        jobs = (
            loop.run_in_executor(self._planner, _plan_stretch, plan, begin, stretch)
            for begin in begins
        )
        following = next(jobs, None)
        while following is not None:
            stretch_now = await following
            following = next(jobs, None)
            for planned in stretch_now:
                yield planned

    async def _admit(
        self, run: _Run, group: asyncio.TaskGroup, wanted: Wanted, place: int, slots: Int64
    ) -> int:
        """Makes room for a piece and starts to read it; returns its slot."""
        first, count = int(wanted.first[place]), int(wanted.count[place])
        base = await self._reserve(run, first, count, slots[slots >= 0])
        slot = run.table.add(
            int(wanted.ids[place]),
            first=first,
            count=count,
            last_demand=int(wanted.last_demand[place]),
            base=base,
        )
        run.loads[slot] = group.create_task(self._load(run, slot, first, count, base))
        return slot

    def _parts_of(self, first: int, count: int) -> list[ShardSpan]:
        """Runs of samples of single shards that a piece of the plan consists of."""
        runs = [(first, count)] if self._selection is None else self._selection.runs(first, count)
        return [part for run in runs for part in self._catalog.blocks.locate(*run)]

    def _room_for(self, first: int, count: int) -> int:
        """Bytes that suffice for a piece before the tails of its shards are known."""
        largest = self._catalog.manifest.max_record_bytes
        parts = self._parts_of(first, count)
        nbytes = count * largest
        if self._selection is None:
            blocks = self._catalog.blocks
            nbytes = min(nbytes, int(blocks.block_bytes[first // blocks.block_samples]))
        return nbytes + 128 * len(parts) + count * self._layout.stride

    async def _exact_room(self, first: int, count: int) -> int:
        """Bytes that a piece takes, once the tails of its shards are read."""
        nbytes = count * self._layout.stride
        for part in self._parts_of(first, count):
            offsets = (await self._catalog.shard_index(part.shard)).offsets
            nbytes += _padded(int(offsets[part.first + part.count] - offsets[part.first]) + 64)
        return nbytes

    async def _reserve(self, run: _Run, first: int, count: int, keep: Int64) -> int:
        nbytes = self._room_for(first, count)
        while True:
            start = self._arena.allocate(nbytes)
            if start is not None:
                return start
            if run.outstanding == 0:
                idle = run.table.idle(keep)
                if len(idle):
                    self._counters.add("fetch.evicted_pieces")
                    self._drop(run, idle[:1])
                    continue
                exact = await self._exact_room(first, count)
                if exact < nbytes:
                    nbytes = exact
                    continue
                if not run.loads:
                    raise ConfigError(
                        f"memory_limit leaves {self._arena.nbytes:,} bytes for blocks, too few"
                        f" for the pieces of one batch ({nbytes:,} more are needed): raise"
                        " memory_limit or lower batch_size"
                    )
            self._counters.add("fetch.waits_for_memory")
            run.changed.clear()
            await run.changed.wait()

    async def _load(self, run: _Run, slot: int, first: int, count: int, base: int) -> None:
        started = time.perf_counter()
        spans = await self._read_spans(first, count, base)
        used = sum(_padded(span.nbytes) for span in spans)
        rows_base = base + used
        rows = self._rows_view(rows_base, count)
        faults: dict[int, str] = {}
        done = 0
        for span in spans:
            part = rows[done : done + span.count]
            self._layout.fill(part, span.index, span.first, span.base - span.offset)
            for fault in await self._check(span):
                place = done + fault.sample_in_shard - span.first
                faults[first + place] = fault.reason
                for name in self._layout.payload:
                    rows[f"{name}@length"][place] = BAD_LENGTH
            done += span.count
        if faults:
            run.faults[slot] = faults
        self._arena.shrink(base, used + count * self._layout.stride)
        run.table.rows_base[slot] = rows_base
        run.table.nbytes[slot] = used
        run.table.ready[slot] = True
        del run.loads[slot]
        self._counters.add("fetch.pieces")
        self._counters.add("fetch.bytes", sum(span.nbytes for span in spans))
        self._counters.observe("fetch.piece_s", time.perf_counter() - started)
        run.changed.set()

    async def _read_spans(self, first: int, count: int, base: int) -> list[_Span]:
        """Reads a piece; a whole block needs no tail to know where it lies."""
        blocks = self._catalog.blocks
        block = first // blocks.block_samples
        parts = self._parts_of(first, count)
        tails = [self._catalog.shard_index(part.shard) for part in parts]
        starts_block = self._selection is None and first % blocks.block_samples == 0
        if starts_block and count == blocks.samples_of(block)[1]:
            extents = [(offset, nbytes) for _, offset, nbytes in blocks.block_span_bytes(block)]
            reads = self._reads_of(parts, extents, base)
            found = await all_or_cancel([*tails, *reads])
            return _spans(parts, extents, base, found[: len(parts)])
        indexes = await all_or_cancel(tails)
        extents = []
        for part, index in zip(parts, indexes, strict=True):
            start, end = index.offsets[part.first], index.offsets[part.first + part.count]
            extents.append((int(start), int(end - start)))
        await all_or_cancel(self._reads_of(parts, extents, base))
        return _spans(parts, extents, base, indexes)

    def _reads_of(
        self, parts: list[ShardSpan], extents: list[tuple[int, int]], base: int
    ) -> list[Coroutine[Any, Any, None]]:
        reads = []
        for part, (offset, nbytes) in zip(parts, extents, strict=True):
            reads.append(self._read(part.shard, offset, nbytes, base))
            base += _padded(nbytes)
        return reads

    async def _read(self, shard: int, offset: int, nbytes: int, base: int) -> None:
        if not nbytes:
            return
        async with self._reads:
            view = self._arena.array[base : base + nbytes].data
            name = self._catalog.manifest.entry(shard).name
            await self._catalog.store.read_into(name, offset, view)

    async def _check(self, span: _Span) -> list[RecordFault]:
        """Faults that remain after a second read from the store."""
        if not self._verify:
            return []
        faults = await self._verify_span(span)
        if faults:
            self._counters.add("fetch.checksum_rereads")
            await self._read(span.shard, span.offset, span.nbytes, span.base)
            faults = await self._verify_span(span)
        return faults

    async def _verify_span(self, span: _Span) -> list[RecordFault]:
        data = self._arena.array[span.base : span.base + span.nbytes].data
        job = asyncio.get_running_loop().run_in_executor(
            self._verifiers,
            span.index.verify_records,
            span.first,
            span.count,
            data,
            span.offset,
        )
        try:
            return await asyncio.shield(job)
        except asyncio.CancelledError:
            await asyncio.wait([job])
            raise

    async def _dispatch(self, run: _Run, deliver: Callable[[Fetched], Awaitable[None]]) -> None:
        loop = asyncio.get_running_loop()
        while (planned := await run.planned.get()) is not None:
            started = time.perf_counter()
            while not run.table.ready[planned.slots].all():
                run.changed.clear()
                await run.changed.wait()
            self._counters.observe("fetch.wait_s", time.perf_counter() - started)
            await deliver(self._collect(run, planned, loop))
        while run.outstanding:
            run.changed.clear()
            await run.changed.wait()

    def _collect(self, run: _Run, planned: _Planned, loop: asyncio.AbstractEventLoop) -> Fetched:
        plan, table = planned.plan, run.table
        slots = planned.slots[planned.wanted.place]
        places = plan.samples - table.first[slots]
        offsets = table.rows_base[slots] + places * self._layout.stride
        rows = gather(self._arena.array, offsets, self._layout.stride)
        faults: dict[int, str] = {}
        for slot in planned.slots[np.isin(planned.slots, list(run.faults))].tolist():
            reasons = run.faults[slot]
            for row in np.flatnonzero(slots == slot).tolist():
                reason = reasons.get(int(plan.samples[row]))
                if reason is not None:
                    faults[row] = reason

        def release() -> None:
            loop.call_soon_threadsafe(self._release, run, planned.slots)

        samples = plan.samples if self._selection is None else self._selection.samples(plan.samples)
        return Fetched(plan, samples, rows.view(self._layout.dtype)[:, 0], faults, release)

    def _release(self, run: _Run, slots: Int64) -> None:
        if run.over:
            return  # its memory went back as a whole, and may be another run's by now
        run.outstanding -= 1
        self._drop(run, run.table.release(slots))
        run.changed.set()

    def _drop(self, run: _Run, slots: Int64) -> None:
        slots = slots[run.table.ready[slots]]
        if not len(slots):
            return
        for slot in slots.tolist():
            self._arena.free(int(run.table.base[slot]))
            run.faults.pop(slot, None)
        run.table.remove(slots)
        run.changed.set()

    def _rows_view(self, base: int, count: int) -> npt.NDArray[np.void]:
        end = base + count * self._layout.stride
        return self._arena.array[base:end].view(self._layout.dtype)


def _plan_stretch(plan: RankPlan, begin: int, count: int) -> list[tuple[BatchPlan, Wanted]]:
    batches = [plan.batch(n) for n in range(begin, min(begin + count, plan.num_batches))]
    return [
        (b, Wanted.of(b.piece, b.piece_first, b.piece_count, b.piece_last_batch)) for b in batches
    ]


def _spans(
    parts: list[ShardSpan],
    extents: list[tuple[int, int]],
    base: int,
    indexes: list[ShardIndex],
) -> list[_Span]:
    spans = []
    for part, (offset, nbytes), index in zip(parts, extents, indexes, strict=True):
        spans.append(_Span(part.shard, part.first, part.count, offset, nbytes, base, index))
        base += _padded(nbytes)
    return spans


def _first_failure(group: BaseExceptionGroup[BaseException]) -> BaseException:
    failure: BaseException = group
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return failure


def _padded(nbytes: int) -> int:
    return -(-nbytes // 64) * 64

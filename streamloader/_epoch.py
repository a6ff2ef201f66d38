"""One pass over (the rest of) an epoch: from the plan to batches in the consumer's hands."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from streamloader._assemble import AssembleJob, Filled, Recipe, host_fields, stand_in
from streamloader._packing import pack
from streamloader._run import Run
from streamloader.decode import AbortWord
from streamloader.errors import SampleError
from streamloader.fetch import Fetched, Running
from streamloader.order import LoaderState
from streamloader.transfer import RingExhausted, Slot, lease_arrays

if TYPE_CHECKING:
    from streamloader._delivery import Delivery
    from streamloader._engine import Engine

logger = logging.getLogger("streamloader.loader")


class EpochRun(Run):
    """Plans, fetches, decodes and hands over the batches of one epoch from one position.

    Args:
        engine: threads, memory and data set; shared by the runs of a loader, which follow one
            another: the next may begin once this one ``is_planned``.
        cursor: from where it goes on, with the bad samples that earlier parts of this epoch
            skipped.
        rank, world_size: whose batches.
        delivery: told of the run's beginning and end, and of each filled batch in batch order.
        on_planned: called when another run may begin, in the event loop's thread.
        skipped_digest: of the bad samples skipped before.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        cursor: LoaderState,
        rank: int,
        world_size: int,
        delivery: Delivery,
        on_planned: Callable[[], object] = lambda: None,
        skipped_digest: int = 0,
    ) -> None:
        super().__init__(
            engine,
            engine.settings,
            engine.choice,
            cursor=cursor,
            rank=rank,
            world_size=world_size,
            delivery=delivery,
            on_wait=engine.wake,
            skipped_digest=skipped_digest,
        )
        settings = engine.settings
        self._engine = engine
        self._on_planned = on_planned
        self._recipe = Recipe(
            fields=engine.fields,
            decoder=engine.decoder,
            arena=engine.arena,
            workers=engine.num_workers,
            batch_size=settings.batch_size,
            seed=settings.seed,
            epoch=cursor.epoch,
            mixture=engine.choice.mixture,
            router=engine.router,
        )
        self._abort = AbortWord()
        self._running: Running[None] | None = None

    def start(self) -> None:
        self._delivery.begin(self)
        self._engine.runs.add(self)
        self._running = self._engine.loop_thread.submit(self._main())

    def stop(self) -> None:
        self._abort.set()
        super().stop()
        self._engine.runs.discard(self)

    def _end_work(self) -> None:
        if self._running is not None:
            self._running.stop()
        self._engine.pool.cancel(self)

    def describe_stall(self) -> str:
        with self._lock:
            in_work = len(self._undelivered)
        number = self.outbox.next_number
        if in_work:
            return f"batch {number} is being decoded ({in_work} batches in work)"
        if self._engine.ring.exhausted_by_consumer():
            return "every slot is held by the consumer"
        return f"the blocks of batch {number} have not come from {self._engine.catalog.url}"

    async def _main(self) -> None:
        try:
            await self._engine.prefetcher.run(self.plan, self._deliver, self._planned)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - handed to the consumer, who raises it
            self.outbox.fail(error)

    def _planned(self) -> None:
        self.is_planned = True
        self._on_planned()

    async def _deliver(self, fetched: Fetched) -> None:
        slot = await self._free_slot()
        with self._lock:
            self._undelivered.add(slot)
        job = AssembleJob(
            self._recipe,
            fetched,
            slot,
            abort=self._abort,
            on_done=self._filled,
            on_failure=self.outbox.fail,
        )
        self._engine.pool.submit(job, self)

    async def _free_slot(self) -> Slot:
        ring, freed = self._engine.ring, self._engine.slot_freed
        while True:
            freed.clear()
            slot = ring.try_acquire()
            if slot is not None:
                return slot
            if self._delivery.consumer_waits(self) and ring.exhausted_by_consumer():
                raise RingExhausted(
                    f"the training loop holds {ring.max_slots} batches and waits for another,"
                    f" but memory_limit ({self._engine.memory.limit_bytes:,} bytes) allows no"
                    " more slots: drop batches, copy what you keep, or raise memory_limit"
                )
            await freed.wait()

    def _filled(self, filled: Filled) -> None:
        if filled.faults and not self._accept_faults(filled):
            return
        filled.slot.mark_filled(len(filled.samples))
        if self.settings.user_code and not self._abort.is_set():
            self._run_user_code(filled)
        else:
            for field in self._engine.packed:
                filled.variable.update(pack(field, filled.variable[field.name]))
        self.outbox.put(filled.plan.number, filled)

    def _run_user_code(self, filled: Filled) -> None:
        """Leases the slot to the user's functions; what they return is the batch."""
        self.taken(filled)
        batch = host_fields(self._engine.fields, lease_arrays(filled.slot), filled.variable)
        filled.mapped = self.settings.user_code.apply(batch)

    def _accept_faults(self, filled: Filled) -> bool:
        """Applies ``on_error`` to a batch with bad rows; False if the run is over."""
        settings = self._engine.settings
        row = min(filled.faults)
        if settings.on_error == "raise" or self._abort.is_set():
            self._engine.loop_thread.submit(self._fail(filled, row))
            return False
        too_many = self._count_bad(len(filled.faults))
        if too_many is not None:
            self._engine.loop_thread.submit(self._fail(filled, row, too_many))
            return False
        stand_in(filled, self._engine.fields)
        self._report_skipped(filled, sorted(filled.faults))
        return True

    def _named_error(self, filled: Filled, row: int) -> BaseException:
        return self._engine.loop_thread.run(self._sample_error(filled, row))

    def _report_skipped(self, filled: Filled, rows: list[int]) -> None:
        self._engine.loop_thread.submit(self._name_skipped(filled, rows))

    async def _fail(self, filled: Filled, row: int, too_many: str | None = None) -> None:
        error: BaseException
        try:
            error = await self._sample_error(filled, row)
        except Exception as failure:  # noqa: BLE001 - handed to the consumer, who raises it
            error = failure
            error.add_note(f"while naming a bad sample: {filled.faults[row]}")
        if too_many is not None:
            error.add_note(too_many)
        self.outbox.fail(error)

    async def _name_skipped(self, filled: Filled, rows: list[int]) -> None:
        for row in rows:
            logger.warning("skipped: %s", await self._sample_error(filled, row))

    async def _sample_error(self, filled: Filled, row: int) -> SampleError:
        sample = int(filled.samples[row])
        return await self._engine.catalog.sample_error(sample, filled.faults[row])

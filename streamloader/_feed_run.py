"""In the trainer's process: a run whose batches a feed process fills."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, cast

from streamloader._assemble import Filled, draws
from streamloader._carried import received_work
from streamloader._feed_channel import Batch, Start
from streamloader._routing import EngineWork
from streamloader._run import Run
from streamloader._world import World
from streamloader.order import LoaderState, state_after
from streamloader.transfer import Slot

if TYPE_CHECKING:
    from streamloader._delivery import Delivery
    from streamloader._feed_engine import FeedEngine

logger = logging.getLogger("streamloader.loader")


class FeedRun(Run):
    """Takes in the batches of one run, also those of a feed process that replaced another.

    Args:
        engine: has the feed process.
        number: of the run, in messages.
        cursor: epoch, position and skipped samples at its beginning.
        world: whose batches.
        delivery: as for ``Run``.
        skipped_digest: of the samples that were skipped before.
    """

    def __init__(
        self,
        engine: FeedEngine,
        number: int,
        cursor: LoaderState,
        world: World,
        delivery: Delivery,
        skipped_digest: int,
    ) -> None:
        super().__init__(
            engine,
            engine.settings,
            engine.choice,
            cursor=cursor,
            rank=world.rank,
            world_size=world.world_size,
            delivery=delivery,
            on_wait=lambda: engine.consumer_waits(self),
            skipped_digest=skipped_digest,
        )
        self.number = number
        self._engine = engine
        self._world = world
        self._arrived = 0
        self._begun_at = 0
        self._cursor = cursor

    def start(self) -> None:
        self._delivery.begin(self)
        self._engine.begin(self)

    def rest(self) -> Start:
        """Asks a feed process for all the batches that have not come yet."""
        self._begun_at = self._arrived
        return Start(
            run=self.number,
            cursor=dataclasses.replace(self._cursor, skipped=self._bad_rows),
            rank=self._world.rank,
            world_size=self._world.world_size,
            gpu_share=self._engine.gpu_share,
        )

    def arrived(self, slot: Slot | None, message: Batch) -> None:
        """Takes in a batch, in the thread that reads from the feed process."""
        plan = dataclasses.replace(message.plan, number=self._begun_at + message.plan.number)
        filled = Filled(
            cast(Slot, slot),  # None beside what the user's code made, which has left its slot
            plan,
            message.samples,
            message.variable,
            message.faults,
            self._engine_work(slot, message),
            mapped=message.mapped,
        )
        if slot is not None:
            with self._lock:
                self._undelivered.add(slot)
        self._arrived = plan.number + 1
        self._cursor = state_after(self._cursor, self.plan, plan)
        self._count_bad(len(message.faults))
        if not self.outbox.put(plan.number, filled):
            self._release_undelivered()

    def _engine_work(self, slot: Slot | None, message: Batch) -> EngineWork | None:
        if message.carried is None:
            return None
        assert slot is not None
        assert self._engine.decoder is not None
        return received_work(
            message.carried,
            slot,
            draws(self._engine.choice.mixture, message.samples, message.plan),
            self._engine.decoder,
            seed=self.settings.seed,
            epoch=self.epoch,
        )

    def _end_work(self) -> None:
        self._engine.end(self)

    def describe_stall(self) -> str:
        described: str | None = self._engine.ask(self)
        return described or "the feed process does not answer"

    def _report_skipped(self, filled: Filled, rows: list[int]) -> None:
        for row in rows:
            logger.warning("skipped: %s", self._named_error(filled, row))

    def _named_error(self, filled: Filled, row: int) -> BaseException:
        return self._engine.sample_error(int(filled.samples[row]), filled.faults[row])

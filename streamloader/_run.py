"""What every run has, wherever its batches are filled: plan, outbox, and the consumer's count."""

from __future__ import annotations

import dataclasses
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

from streamloader._assemble import Filled, stand_in
from streamloader._continuing import plan_of
from streamloader._outbox import Outbox
from streamloader._own_process import OwnProcess
from streamloader._settings import Settings
from streamloader.order import LoaderState, mix64, state_after
from streamloader.transfer import Slot, TransferStation

if TYPE_CHECKING:
    from streamloader._choice import Choice
    from streamloader._delivery import Delivery

_DIGEST_MASK = (1 << 64) - 1


class Run(ABC):
    """One pass over (the rest of) an epoch.

    Args:
        owner: the engine that the run works with.
        settings: of the loader.
        choice: which samples an epoch draws.
        cursor: from where it goes on, with the bad samples that earlier parts of this epoch
            skipped.
        rank, world_size: whose batches.
        delivery: told of the run's beginning and end, and of each filled batch in batch order.
        on_wait: called when the consumer is about to wait.
        skipped_digest: of the bad samples skipped before.

    Attributes:
        is_planned: another run may begin beside this one.
        station: that moves its batches to a device, if there is one.
        outbox: filled batches on their way to the consumer.
    """

    def __init__(
        self,
        owner: OwnProcess,
        settings: Settings,
        choice: Choice,
        *,
        cursor: LoaderState,
        rank: int,
        world_size: int,
        delivery: Delivery,
        on_wait: Callable[[], None],
        skipped_digest: int,
    ) -> None:
        self.settings = settings
        self._owner = owner
        self._delivery = delivery
        self._stopping = threading.Lock()
        self._stopped = False
        self.epoch = cursor.epoch
        self.skipped = cursor.skipped
        self.skipped_digest = skipped_digest
        self.plan = plan_of(choice, settings, cursor, rank=rank, world_size=world_size)
        self.is_planned = False
        self.station: TransferStation | None = None
        self.outbox: Outbox[Filled] = Outbox(
            self.plan.num_batches,
            on_wait=on_wait,
            on_ready=lambda filled: delivery.ready(self, filled),
        )
        self._lock = threading.Lock()
        share = -(-choice.num_samples // world_size)
        self._bad_limit = settings.max_bad_fraction * share
        self._bad_rows = cursor.skipped
        self._undelivered: set[Slot] = set()

    @abstractmethod
    def start(self) -> None:
        """Begins; once."""

    @abstractmethod
    def _end_work(self) -> None:
        """Ends what fills the run's slots, and waits for it; called once."""

    def stop(self) -> None:
        """Ends the run: nothing of it touches a slot afterwards. Idempotent.

        In a forked process it does nothing: the work is the parent's.
        """
        if self._owner.is_forked:
            return
        self.outbox.close()
        with self._stopping:
            if self._stopped:
                return
            if self.station is not None:
                # It may read compressed pictures, whose memory goes back next.
                self.station.close()
            self._end_work()
            self._release_undelivered()
            self._delivery.end(self)
            self._stopped = True

    @abstractmethod
    def describe_stall(self) -> str:
        """Which stage has not delivered, for the error of a stalled wait."""

    @abstractmethod
    def _named_error(self, filled: Filled, row: int) -> BaseException:
        """The error for a bad row, which says where its sample is stored; waits for that."""

    @abstractmethod
    def _report_skipped(self, filled: Filled, rows: list[int]) -> None:
        """Names bad rows that were skipped in the log."""

    def accept_late_faults(self, filled: Filled, faults: dict[int, str]) -> None:
        """Applies ``on_error`` to bad rows that turned up on the way to the device.

        Called in a thread of the station. Raises what ends the run; else the slot is in order.
        """
        filled.faults.update(faults)
        too_many = self._count_bad(len(faults))
        if self.settings.on_error == "raise" or too_many is not None:
            error = self._named_error(filled, min(faults))
            if too_many is not None and self.settings.on_error == "skip":
                error.add_note(too_many)
            raise error
        stand_in(filled, self._delivery.fields)
        self._report_skipped(filled, sorted(faults))

    def _count_bad(self, rows: int) -> str | None:
        """Counts bad rows; says so if there are too many for the run to go on."""
        with self._lock:
            self._bad_rows += rows
            bad = self._bad_rows
        if bad <= self._bad_limit:
            return None
        return (
            f"{bad} bad samples are more than max_bad_fraction={self.settings.max_bad_fraction}"
            " of this rank's epoch allows"
        )

    def take(self) -> Filled | None:
        """The next filled batch, None after the last; raises as ``Outbox.get``."""
        return self.outbox.get(self.settings.stall_timeout_s, self.describe_stall)

    def taken(self, filled: Filled) -> None:
        """This batch's slot is no longer the run's to give back."""
        with self._lock:
            self._undelivered.discard(filled.slot)

    def state_after(self, before: LoaderState, filled: Filled) -> LoaderState:
        """The loader's state once the consumer has this batch."""
        self._count_skipped(filled)
        return dataclasses.replace(
            state_after(before, self.plan, filled.plan),
            epoch=self.epoch,
            skipped=self.skipped,
            skipped_digest=f"{self.skipped_digest:016x}" if self.skipped else "",
        )

    def _count_skipped(self, filled: Filled) -> None:
        """Counts the bad samples of a batch that the consumer takes; padding is none."""
        for row in filled.faults:
            if not filled.plan.valid[row]:
                continue
            self.skipped += 1
            sample = int(filled.samples[row])
            self.skipped_digest = (self.skipped_digest + int(mix64(sample))) & _DIGEST_MASK

    def _release_undelivered(self) -> None:
        with self._lock:
            left, self._undelivered = self._undelivered, set()
        for slot in left:
            slot.release()

"""In the feed process: filled slots go to the trainer's process."""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from streamloader._assemble import Filled
from streamloader._carried import carried_spec, carry
from streamloader._delivery import Delivery
from streamloader._feed_channel import Batch, Channel, NewSlot, RunFailed
from streamloader._feed_errors import SentError
from streamloader._outbox import Closed
from streamloader._routing import table_spec
from streamloader.decode import PixelFormat
from streamloader.topology import NumaNode
from streamloader.transfer import HostMemory, Slot, SlotLayout

if TYPE_CHECKING:
    from streamloader._fields import BatchFields
    from streamloader._run import Run

NO_SLOT = -1


class FeedDelivery(Delivery):
    """Slots are unnamed shared files; each goes to the trainer once, and comes back by number.

    Args:
        channel: to the trainer.
        slot_pixels: how pictures lie in a slot.
        gpu: of the trainer; None if batches are for the CPU.
        engines: that GPU's engines decode pictures, which lie in the slots for them.
    """

    def __init__(
        self, channel: Channel, slot_pixels: PixelFormat, *, gpu: int | None, engines: bool
    ) -> None:
        super().__init__(self._new_memory, slot_pixels, gpu)
        self._channel = channel
        self.decodes_on_device = engines
        self._unannounced: dict[int, int] = {}
        self._waiting: set[Run] = set()

    def _new_memory(self, nbytes: int, *, node: NumaNode | None = None) -> HostMemory:
        descriptor = os.memfd_create("streamloader-slot", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, nbytes)
        memory = HostMemory(nbytes, node=node, descriptor=descriptor)
        self._unannounced[memory.address] = descriptor
        return memory

    def slot_layout(self, fields: BatchFields, batch_size: int, room_bytes: int) -> SlotLayout:
        if not self.decodes_on_device:
            return super().slot_layout(fields, batch_size, room_bytes)
        tables = map(table_spec, fields.pictures)
        carried = [carried_spec(field, room_bytes) for field in fields.pictures]
        return SlotLayout.build((*fields.slot, *tables), batch_size, last=carried)

    def begin(self, run: Run) -> None:
        """The run's thread carries its batches; see ``carry``."""

    def ready(self, run: Run, filled: Filled) -> None:
        """The run's thread takes it."""

    def deliver(self, run: Run, filled: Filled) -> dict[str, Any]:
        raise NotImplementedError("batches of a feed process are made in the trainer's process")

    def end(self, run: Run) -> None:
        self._waiting.discard(run)

    def stats(self) -> dict[str, Any]:
        return {}

    def consumer_waits(self, run: Run) -> bool:
        return run in self._waiting

    def consumer_goes_on(self, runs: list[Run]) -> None:
        """The training loop got a batch."""
        self._waiting.difference_update(runs)

    def consumer_began_to_wait(self, run: Run) -> None:
        """The training loop waits for a batch of this run, and has taken all that there were."""
        self._waiting.add(run)

    def carry(self, number: int, run: Run) -> None:
        """Sends every batch of a run, in order; runs in a thread of the run's own."""
        try:
            while (filled := run.outbox.get(threading.TIMEOUT_MAX, run.describe_stall)) is not None:
                self._send(number, run, filled)
        except Closed:
            return
        except BaseException as error:  # noqa: BLE001 - handed to the trainer, who raises it
            error.add_note("in the feed process:\n" + "".join(traceback.format_exception(error)))
            self._channel.send(RunFailed(number, SentError.of(error)))

    def _send(self, number: int, run: Run, filled: Filled) -> None:
        slot = NO_SLOT
        carried = None if filled.engine is None else carry(filled.engine, filled.slot.views)
        if filled.mapped is None:
            self._announce(filled.slot)
            filled.slot.mark_sent()
            run.taken(filled)
            slot = filled.slot.index
        self._channel.send(
            Batch(
                number,
                slot,
                filled.plan,
                filled.samples,
                filled.variable,
                filled.faults,
                carried,
                filled.mapped,
            )
        )

    def _announce(self, slot: Slot) -> None:
        descriptor = self._unannounced.pop(slot.memory.address, None)
        if descriptor is not None:
            self._channel.send(NewSlot(slot.index, slot.memory.nbytes), descriptor)
            os.close(descriptor)


def started(target: Callable[[], None], name: str) -> threading.Thread:
    """A thread of the feed that runs ``target``."""
    thread = threading.Thread(target=target, name=f"streamloader-feed-{name}", daemon=False)
    thread.start()
    return thread

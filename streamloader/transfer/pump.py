"""The thread side of a transfer station: from filled host slots to device slots.

Two threads. One enqueues copies and never waits for one to run (it waits for the engines of the
GPU where they decode). The other waits on the host for
each copy, in order, and gives its host slot back. All that happens reaches the first as a message
in one mailbox, whose ``put`` is safe inside finalisers.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
from collections import deque
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from types import TracebackType

from streamloader.transfer.backend import DeviceBackend, Event
from streamloader.transfer.device_slot import DeviceSlot, SlotReturn
from streamloader.transfer.filling import Filling
from streamloader.transfer.returns import ReturnBox
from streamloader.transfer.slot import Slot, SlotState


@dataclass(frozen=True, slots=True)
class Departure:
    """A filled host slot that waits for its copy."""

    host: Slot
    tag: object


@dataclass(frozen=True, slots=True)
class Arrival:
    """A batch whose copy is enqueued; its bytes are there once ``copied`` is reached."""

    slot: DeviceSlot
    tag: object
    rows: int
    copied: Event


@dataclass(frozen=True, slots=True)
class Failure:
    """What ended the pump, with the traceback it had there."""

    error: BaseException
    traceback: TracebackType | None


class Pump:
    """Moves batches in the order of :meth:`put`. It holds no reference to its station.

    Attributes:
        arrivals: batches in order; None once, and for ever after, when nothing more will come.
        device_slots: the slots that exist.
        failure: what ended it early, if anything did.
        moved_batches, moved_bytes: copies enqueued so far.
    """

    def __init__(
        self,
        name: str,
        filling: Filling,
        backend: DeviceBackend,
        *,
        device_slots: int,
        max_device_slots: int,
    ) -> None:
        self.arrivals: SimpleQueue[Arrival | None] = SimpleQueue()
        self.returned: ReturnBox[SlotReturn] = ReturnBox(self.wake)
        self.failure: Failure | None = None
        self.moved_batches = 0
        self.moved_bytes = 0
        self._filling = filling
        self._backend = backend
        self._max_device_slots = max_device_slots
        self._copy_stream = backend.new_stream()
        self.device_slots: list[DeviceSlot] = []
        self._writable = deque(self._make_device_slot() for _ in range(device_slots))
        self._mailbox: SimpleQueue[Departure | None] = SimpleQueue()
        self._copies: SimpleQueue[tuple[Event, Slot] | None] = SimpleQueue()
        self._departures: deque[Departure] = deque()
        # Host slots that a copy may still read, nobody knows: kept from being written or freed.
        self._undefined: list[Slot] = []
        self._stopping = False
        self._ended = False
        # Daemon threads, because the interpreter would wait for others before it runs `stop`.
        self._threads = (
            threading.Thread(target=self._enqueue_copies, name=name, daemon=True),
            threading.Thread(target=self._await_copies, name=f"{name}-done", daemon=True),
        )
        atexit.register(self.stop)
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:
            self.request_stop()
            atexit.unregister(self.stop)
            raise

    def put(self, departure: Departure) -> None:
        """Takes a host slot that is IN_FLIGHT; gives it back at once if the pump has ended."""
        self._mailbox.put(departure)
        if self._ended:
            self._release_departures()

    def wake(self) -> None:
        """Makes the thread look again at what it may do. Safe inside finalisers."""
        self._mailbox.put(None)

    def request_stop(self) -> None:
        """Ends both threads soon and waits for nothing. Safe inside finalisers."""
        self._stopping = True
        self.arrivals.put(None)
        self.wake()

    def stop(self) -> None:
        """Ends both threads and waits for them: for the copies enqueued so far, no more."""
        self.request_stop()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def _fail(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = Failure(error, error.__traceback__)
        self.request_stop()

    def _enqueue_copies(self) -> None:
        try:
            while not self._stopping:
                self._take_message()
                self._collect_returned()
                self._enqueue_what_fits()
        except BaseException as error:  # noqa: BLE001 - handed to receive, which nobody else reaches
            self._fail(error)
        finally:
            self._copies.put(None)

    def _take_message(self) -> None:
        message = self._mailbox.get()
        if message is not None:
            self._departures.append(message)

    def _collect_returned(self) -> None:
        for back in self.returned.take_all():
            if isinstance(back.released, BaseException):
                raise back.released
            back.slot.advance(SlotState.WRITABLE)
            back.slot.released = back.released
            self._writable.append(back.slot)

    def _enqueue_what_fits(self) -> None:
        while self._departures and not self._stopping:
            if not self._writable:
                if not self._may_grow():
                    return
                self._writable.append(self._make_device_slot())
            self._enqueue_copy(self._departures.popleft(), self._writable.popleft())

    def _may_grow(self) -> bool:
        return len(self.device_slots) < self._max_device_slots and all(
            slot.leased for slot in self.device_slots
        )

    def _make_device_slot(self) -> DeviceSlot:
        index = len(self.device_slots)
        nbytes = self._filling.layout.nbytes
        try:
            memory = self._backend.allocate(nbytes, self._copy_stream)
        except Exception as error:
            error.add_note(
                f"while making device slot {index} of {nbytes} bytes; a smaller batch "
                "or fewer batches held at once need less"
            )
            raise
        slot = DeviceSlot(index, memory)
        self.device_slots.append(slot)
        return slot

    def _enqueue_copy(self, departure: Departure, slot: DeviceSlot) -> None:
        host = departure.host
        try:
            if slot.released is not None:
                self._backend.stream_wait(self._copy_stream, slot.released)
                slot.released = None
            moved = self._filling.fill(host, departure.tag, slot.memory, self._copy_stream)
            copied = self._backend.record_event(self._copy_stream)
        except BaseException:
            self._undefined.append(host)
            raise
        slot.advance(SlotState.IN_FLIGHT)
        self.moved_batches += 1
        self.moved_bytes += moved
        self.arrivals.put(Arrival(slot, departure.tag, host.rows, copied))
        self._copies.put((copied, host))

    def _await_copies(self) -> None:
        while (copy := self._copies.get()) is not None:
            self._await_copy(*copy)
        self._end()

    def _await_copy(self, copied: Event, host: Slot) -> None:
        try:
            # The host itself must know that the copy has run before anyone writes the slot again.
            self._backend.synchronize(copied)
            host.release()
        except BaseException as error:  # noqa: BLE001 - handed to receive, which nobody else reaches
            self._undefined.append(host)
            self._fail(error)

    def _end(self) -> None:
        self._ended = True
        self._release_departures()
        self.returned.close()
        # A run and its station know each other, and their device memory is not to wait until the
        # garbage collector comes: in a forked process that would free it, which CUDA cannot do.
        self._filling.close()
        self.device_slots.clear()
        self._writable.clear()
        atexit.unregister(self.stop)

    def _release_departures(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                self._departures.popleft().host.release()
        with contextlib.suppress(Empty):
            while True:
                if (departure := self._mailbox.get_nowait()) is not None:
                    departure.host.release()

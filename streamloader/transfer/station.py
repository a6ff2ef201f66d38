"""The transfer station: filled host slots in, batches on the device out, in order."""

from __future__ import annotations

import contextlib
import gc
import weakref
from dataclasses import dataclass
from queue import Empty

from streamloader.errors import ConfigError
from streamloader.transfer.backend import DeviceBackend, DeviceMemory, Stream, Tensor
from streamloader.transfer.device_slot import DeviceBatch, DeviceLease, DeviceSlot
from streamloader.transfer.filling import Filling, PlainCopy
from streamloader.transfer.layout import SlotLayout
from streamloader.transfer.pump import Arrival, Departure, Pump
from streamloader.transfer.ring import RingExhausted
from streamloader.transfer.slot import Slot, SlotState


@dataclass(frozen=True, slots=True)
class StationStats:
    """What a station has done and holds at one moment.

    Attributes:
        moved_batches: copies enqueued.
        moved_bytes: their bytes.
        device_slots: slots that exist on the device.
        held_device_slots: how many of them the consumer holds.
    """

    moved_batches: int
    moved_bytes: int
    device_slots: int
    held_device_slots: int


class TransferStation:
    """Moves batches to one device on a copy stream of its own, beside the consumer's work.

    One thread sends and one receives; they may be the same.

    Args:
        device: the device's name, for threads and messages ("cuda:0").
        layout: layout of the host slots.
        backend: the device.
        device_slots: slots made at once; two let a copy run beside the step on the batch before.
        max_device_slots: how many may exist when the consumer holds on to batches.
        static_buffers: deliver every batch at the same device addresses, as CUDA graphs need them:
            a batch is then valid until the next :meth:`receive`, which overwrites it behind the
            work that the stream current there holds.
        filling: how device slots get their bytes; None copies the host slot as it is.
        static_memory: the memory of the static buffers, ``filling.layout.nbytes`` bytes,
            so that stations which follow one another share their addresses; None allocates it.

    Raises:
        ConfigError: fewer than two device slots, or a maximum below them.
    """

    def __init__(
        self,
        device: str,
        layout: SlotLayout,
        backend: DeviceBackend,
        device_slots: int = 2,
        *,
        max_device_slots: int = 8,
        static_buffers: bool = False,
        filling: Filling | None = None,
        static_memory: DeviceMemory | None = None,
    ) -> None:
        if not 2 <= device_slots <= max_device_slots:
            raise ConfigError(
                "a transfer station needs 2 <= device_slots <= max_device_slots, got "
                f"device_slots={device_slots}, max_device_slots={max_device_slots}"
            )
        self.device = device
        self._layout = layout
        filling = PlainCopy(layout, backend) if filling is None else filling
        self._device_layout = filling.layout
        self._backend = backend
        self._max_device_slots = max_device_slots
        self._closed = False
        if static_buffers and static_memory is None:
            static_memory = backend.allocate(filling.layout.nbytes, backend.current_stream())
        self._static = static_memory if static_buffers else None
        ordinal = device.rpartition(":")[2]
        self._pump = Pump(
            f"streamloader-transfer-{ordinal if ordinal.isdecimal() else 0}",
            filling,
            backend,
            device_slots=device_slots,
            max_device_slots=max_device_slots,
        )
        # A station that is dropped without close must not leave threads behind.
        self._stop_when_dropped = weakref.finalize(self, self._pump.request_stop)

    def send(self, slot: Slot, tag: object) -> None:
        """FILLED -> IN_FLIGHT: queues the batch in ``slot`` for its copy and returns at once.

        The slot goes back to its ring by itself, once the host knows that the copy has run.

        Args:
            slot: a host slot of this station's layout.
            tag: comes back with the batch.

        Raises:
            RuntimeError: the slot is not FILLED, or the station is closed.
            ValueError: a slot of another layout.
            BaseException: what ended the station's thread, with its traceback.
        """
        if slot.ring.layout != self._layout:
            raise ValueError(f"{slot} has another layout than the station of {self.device}")
        self._check_alive()
        slot.mark_in_flight()
        self._pump.put(Departure(slot, tag))

    def receive(self, timeout_s: float | None = None) -> tuple[object, DeviceBatch]:
        """The next batch in the order of :meth:`send`, and its tag.

        The stream that is current for the device in the calling thread waits for this batch's copy;
        the host does not. Work on the batch belongs on that stream, or on one that this stream
        waits for before the batch is dropped.

        Args:
            timeout_s: seconds to wait for a batch; None waits until one comes or the station ends.

        Raises:
            TimeoutError: no batch in time.
            RingExhausted: the consumer holds every device slot there may be.
            RuntimeError: the station is closed, before or while waiting.
            BaseException: what ended the station's thread, with its traceback.
        """
        self._check_alive()
        self._check_not_exhausted()
        try:
            arrival = self._pump.arrivals.get(timeout=timeout_s)
        except Empty:
            raise TimeoutError(
                f"no batch was copied to {self.device} within {timeout_s} s; see which stage "
                "before the transfer is slow or stuck"
            ) from None
        if arrival is None:
            self._pump.arrivals.put(None)
            self._check_alive()
            raise self._closed_error()
        return arrival.tag, self._deliver(arrival)

    def _deliver(self, arrival: Arrival) -> DeviceBatch:
        backend, slot = self._backend, arrival.slot
        stream = backend.current_stream()
        slot.advance(SlotState.READABLE)
        # Made first: whatever fails from here on, the slot goes back with the lease.
        lease = DeviceLease(slot, stream, backend, self._pump.returned)
        backend.stream_wait(stream, arrival.copied)
        if self._static is None:
            tensors = backend.tensors(slot.memory, self._device_layout, arrival.rows, lease)
            # The pump may have waited for this to make another slot.
            self._pump.wake()
        else:
            tensors = self._to_static(slot, arrival.rows, stream)
        return DeviceBatch(tensors, arrival.rows, self.device)

    def _to_static(self, slot: DeviceSlot, rows: int, stream: Stream) -> dict[str, Tensor]:
        used_bytes = self._device_layout.used_bytes(rows)
        self._backend.copy_on_device(slot.memory, self._static, used_bytes, stream)
        return self._backend.tensors(
            self._static, self._device_layout, self._layout.batch_size, self._static
        )

    def _held(self) -> int:
        return sum(slot.leased for slot in tuple(self._pump.device_slots))

    def _check_not_exhausted(self) -> None:
        if self._held() < self._max_device_slots:
            return
        # Batches in unreachable cycles, a caught exception's frames say, are not really held.
        gc.collect()
        if self._held() >= self._max_device_slots:
            raise RingExhausted(
                f"the training loop holds all {self._max_device_slots} device slots of "
                f"{self.device} and waits for one more batch; drop batches, clone what is kept, "
                "or raise memory_limit"
            )

    def _check_alive(self) -> None:
        failure = self._pump.failure
        if failure is not None:
            raise failure.error.with_traceback(failure.traceback)
        if self._closed:
            raise self._closed_error()

    def _closed_error(self) -> RuntimeError:
        return RuntimeError(f"the transfer station of {self.device} is closed")

    def stats(self) -> StationStats:
        """Counts of this moment."""
        return StationStats(
            moved_batches=self._pump.moved_batches,
            moved_bytes=self._pump.moved_bytes,
            device_slots=len(self._pump.device_slots),
            held_device_slots=self._held(),
        )

    def close(self) -> None:
        """Ends the station: waits for the copies that were enqueued and for nothing else.

        Batches that were sent but not received are dropped and their host slots given back; batches
        that the consumer holds stay valid. A :meth:`receive` that waits raises RuntimeError. May be
        called twice and from any thread.
        """
        self._closed = True
        self._stop_when_dropped.detach()
        self._pump.stop()
        with contextlib.suppress(Empty):
            while True:
                self._pump.arrivals.get_nowait()
        self._pump.arrivals.put(None)

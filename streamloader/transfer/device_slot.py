"""Slots on the device and what the consumer holds of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from streamloader.transfer.backend import DeviceBackend, DeviceMemory, Event, Stream, Tensor
from streamloader.transfer.returns import ReturnBox
from streamloader.transfer.slot import DEVICE_TRANSITIONS, SlotState, check_transition


class DeviceSlot:
    """The buffer of one batch on the device.

    Its owner changes from the station's thread to the consumer and back, and only the owner calls
    :meth:`advance`, so it needs no lock.

    Attributes:
        index: its number in the station, from 0.
        memory: its bytes.
        state: WRITABLE, IN_FLIGHT or READABLE.
        leased: whether the consumer holds it, true from before a lease is made until it is gone.
        released: the consumer's event that the next copy into this slot has to wait for.
    """

    __slots__ = ("index", "leased", "memory", "released", "state")

    def __init__(self, index: int, memory: DeviceMemory) -> None:
        self.index = index
        self.memory = memory
        self.state = SlotState.WRITABLE
        self.leased = False
        self.released: Event | None = None

    def __repr__(self) -> str:
        return f"device slot {self.index}"

    def advance(self, new: SlotState) -> None:
        """Changes the state; RuntimeError naming both if a device slot may not."""
        check_transition(DEVICE_TRANSITIONS, self, self.state, new)
        self.state = new


@dataclass(frozen=True, slots=True)
class SlotReturn:
    """A device slot that the consumer let go.

    Attributes:
        slot: the slot.
        released: the event behind the consumer's work on it, or why none could be recorded.
    """

    slot: DeviceSlot
    released: Event | BaseException


class DeviceLease:
    """Keeps one READABLE device slot for the consumer, as long as a tensor looks into it.

    When the last one is gone an event is recorded on ``stream``, the consumer's current stream at
    delivery: the next copy into the slot waits for it, the host for nothing.
    """

    __slots__ = ("__weakref__", "_backend", "_returned", "_slot", "_stream")

    def __init__(
        self,
        slot: DeviceSlot,
        stream: Stream,
        backend: DeviceBackend,
        returned: ReturnBox[SlotReturn],
    ) -> None:
        slot.leased = True
        self._slot = slot
        self._stream = stream
        self._backend = backend
        self._returned = returned

    def __del__(self) -> None:
        released: Event | BaseException
        try:
            released = self._backend.record_event(self._stream)
        except BaseException as error:  # noqa: BLE001 - handed to receive through the station
            released = error
        self._slot.leased = False
        self._returned.put(SlotReturn(self._slot, released))


@dataclass(frozen=True, slots=True)
class DeviceBatch:
    """A batch on the device.

    Attributes:
        tensors: field name -> tensor ``[rows, *shape]``; with static buffers
            ``[batch_size, *shape]``.
        rows: rows that hold samples.
        device: the device's name.
    """

    tensors: Mapping[str, Tensor]
    rows: int
    device: str

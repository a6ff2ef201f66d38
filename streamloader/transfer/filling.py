"""How a device slot gets its bytes from a host slot."""

from __future__ import annotations

from typing import Protocol

from streamloader.transfer.backend import DeviceBackend, DeviceMemory, Stream
from streamloader.transfer.layout import SlotLayout
from streamloader.transfer.slot import Slot


class Filling(Protocol):
    """Fills device slots; called by the station's thread, one batch after the other."""

    @property
    def layout(self) -> SlotLayout:
        """Of a device slot; what is no region of it, the consumer does not see."""
        ...

    def fill(self, host: Slot, tag: object, memory: DeviceMemory, stream: Stream) -> int:
        """Enqueues on ``stream`` all that fills ``memory``, which is free for work on it.

        The host slot may be read until that work has run. May block, without the interpreter
        lock, for work that does not wait for the consumer's next :meth:`TransferStation.receive`.

        Args:
            host: IN_FLIGHT.
            tag: as given to :meth:`TransferStation.send`.

        Returns:
            Bytes that cross to the device.
        """
        ...

    def close(self) -> None:
        """Lets go of the device slots: no more are filled. Called once, when the station ends."""
        ...


class PlainCopy:
    """The device slot is the host slot, byte for byte, in one copy of the used bytes."""

    def __init__(self, layout: SlotLayout, backend: DeviceBackend) -> None:
        self.layout = layout
        self._backend = backend

    def fill(self, host: Slot, tag: object, memory: DeviceMemory, stream: Stream) -> int:  # noqa: ARG002 - the protocol's
        nbytes = self.layout.used_bytes(host.rows)
        self._backend.copy_to_device(host.array, memory, nbytes, stream)
        return nbytes

    def close(self) -> None:
        """It keeps none."""

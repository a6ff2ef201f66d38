"""What the transfer station asks of a device.

Few verbs, so that the station can be tested against a device whose streams run late on purpose.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamloader.transfer.layout import SlotLayout

Stream: TypeAlias = Any
"""A queue of device work that runs in order; opaque to the station."""
Event: TypeAlias = Any
"""A mark in a stream, reached when everything before it has run; opaque to the station."""
DeviceMemory: TypeAlias = Any
"""Bytes on the device, freed when the last reference is gone; opaque to the station."""
Tensor: TypeAlias = Any
"""What the consumer gets: a view of device memory."""


class DeviceBackend(Protocol):
    """One device. Every method may be called from any thread; only ``synchronize`` blocks."""

    def new_stream(self) -> Stream:
        """A stream of its own, for copies."""
        ...

    def current_stream(self) -> Stream:
        """The stream on which the calling thread enqueues work for this device now."""
        ...

    def allocate(self, nbytes: int, stream: Stream) -> DeviceMemory:
        """``nbytes`` bytes, aligned to 256, to be written by work on ``stream``."""
        ...

    def copy_to_device(
        self, host: NDArray[np.uint8], memory: DeviceMemory, nbytes: int, stream: Stream
    ) -> None:
        """Enqueues one copy of the first ``nbytes`` bytes. ``host`` is read when the copy runs."""
        ...

    def copy_on_device(
        self, source: DeviceMemory, target: DeviceMemory, nbytes: int, stream: Stream
    ) -> None:
        """Enqueues one copy of the first ``nbytes`` bytes between two device memories."""
        ...

    def record_event(self, stream: Stream) -> Event:
        """A mark behind everything that is enqueued on ``stream``. Called from finalisers too."""
        ...

    def stream_wait(self, stream: Stream, event: Event) -> None:
        """Work enqueued on ``stream`` from now on runs after ``event``. The host goes on."""
        ...

    def synchronize(self, event: Event) -> None:
        """Blocks the calling thread, without the GIL, until ``event`` is reached."""
        ...

    def tensors(
        self, memory: DeviceMemory, layout: SlotLayout, rows: int, owner: object
    ) -> dict[str, Tensor]:
        """Field name -> tensor ``[rows, *shape]`` that looks into ``memory``, without a copy.

        Every tensor, and whatever is made from it without a copy, keeps ``owner`` alive. The memory
        must stay unused for new allocations until the work that the current stream holds when the
        memory is freed has run.
        """
        ...

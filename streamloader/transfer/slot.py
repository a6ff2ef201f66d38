"""The states of a slot: who may touch its bytes."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from streamloader.transfer.memory import HostMemory
    from streamloader.transfer.mirror import MirrorRing
    from streamloader.transfer.ring import SlotRing


class SlotState(enum.Enum):
    """Who may touch the bytes of a slot.

    A host slot goes round ``WRITABLE -> FILLING -> FILLED`` and then either ``-> READABLE`` (the
    consumer reads it where it is) or ``-> IN_FLIGHT`` (a copy to a device reads it), and back to
    WRITABLE. In a feed process it goes ``FILLED -> SENT -> READABLE`` instead. A device slot goes
    round ``WRITABLE -> IN_FLIGHT -> READABLE``.
    """

    WRITABLE = "writable"
    """Nobody: free for the next batch."""
    FILLING = "filling"
    """Decode workers write rows."""
    FILLED = "filled"
    """Nobody: every row is there, waiting for its reader."""
    IN_FLIGHT = "in flight"
    """A copy between host and device that may not have run yet."""
    SENT = "sent"
    """Another process that maps it, whose consumer has not taken it yet."""
    READABLE = "readable"
    """The consumer, through a lease, until its last array is gone."""


HOST_TRANSITIONS: dict[SlotState, frozenset[SlotState]] = {
    SlotState.WRITABLE: frozenset({SlotState.FILLING}),
    SlotState.FILLING: frozenset({SlotState.FILLED, SlotState.WRITABLE}),
    SlotState.FILLED: frozenset(
        {SlotState.IN_FLIGHT, SlotState.SENT, SlotState.READABLE, SlotState.WRITABLE}
    ),
    SlotState.IN_FLIGHT: frozenset({SlotState.WRITABLE}),
    SlotState.SENT: frozenset({SlotState.READABLE, SlotState.WRITABLE}),
    SlotState.READABLE: frozenset({SlotState.WRITABLE}),
}

DEVICE_TRANSITIONS: dict[SlotState, frozenset[SlotState]] = {
    SlotState.WRITABLE: frozenset({SlotState.IN_FLIGHT}),
    SlotState.IN_FLIGHT: frozenset({SlotState.READABLE}),
    SlotState.READABLE: frozenset({SlotState.WRITABLE}),
}


def check_transition(
    legal: dict[SlotState, frozenset[SlotState]], slot: object, old: SlotState, new: SlotState
) -> None:
    """Raises RuntimeError, naming both states, if a slot may not go from ``old`` to ``new``."""
    if new not in legal.get(old, frozenset()):
        raise RuntimeError(f"{slot} is {old.value} and cannot become {new.value}")


class Slot:
    """The buffer of one batch on the host. Made by a :class:`SlotRing`, which owns its memory.

    Every method is safe in any thread; a change of state that the round does not have raises
    RuntimeError naming both states.

    Attributes:
        index: its number in the ring, from 0.
        memory: the memory behind it.
        ring: the ring it belongs to.
        rows: rows that hold samples, set by :meth:`mark_filled`.
    """

    __slots__ = ("__weakref__", "_state", "index", "memory", "ring", "rows")

    def __init__(self, ring: SlotRing | MirrorRing, index: int, memory: HostMemory) -> None:
        self.ring = ring
        self.index = index
        self.rows = 0
        self.memory = memory
        self._state = SlotState.WRITABLE

    def __repr__(self) -> str:
        return f"slot {self.index} of the host ring"

    @property
    def state(self) -> SlotState:
        """The state it is in now."""
        with self.ring.lock:
            self.ring.collect_returned()
            return self._state

    @property
    def array(self) -> NDArray[np.uint8]:
        """All bytes of the slot, uint8 ``[stride_bytes]``."""
        return self.memory.array

    @property
    def views(self) -> dict[str, np.ndarray]:
        """Field name -> array ``[batch_size, *shape]`` to write rows into, without a lease."""
        return self.ring.layout.views(self.memory.array)

    def mark_filled(self, rows: int | None = None) -> None:
        """FILLING -> FILLED: the first ``rows`` rows are written; None means every row.

        Raises:
            ValueError: ``rows`` not within 0 and the batch size.
        """
        checked = self.ring.layout.checked_rows(rows)
        with self.ring.lock:
            self.advance(SlotState.FILLED)
            self.rows = checked

    def mark_in_flight(self) -> None:
        """FILLED -> IN_FLIGHT: a copy to a device is about to be enqueued."""
        with self.ring.lock:
            self.advance(SlotState.IN_FLIGHT)

    def mark_sent(self) -> None:
        """FILLED -> SENT: another process is about to be told of it."""
        with self.ring.lock:
            self.advance(SlotState.SENT)

    def mark_readable(self) -> None:
        """FILLED or SENT -> READABLE: the consumer gets a lease, here or in its own process."""
        with self.ring.lock:
            self.advance(SlotState.READABLE)

    def release(self) -> None:
        """Gives the slot back to its ring; see :meth:`SlotRing.release`."""
        self.ring.release(self)

    def advance(self, new: SlotState) -> None:
        """Changes the state. For the ring and this class: the ring's lock must be held."""
        check_transition(HOST_TRANSITIONS, self, self._state, new)
        self._state = new

    def peek(self) -> SlotState:
        """The state as last collected. For the ring: its lock must be held."""
        return self._state

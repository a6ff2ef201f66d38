"""The trainer's view of slots that a feed process fills."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from streamloader.transfer.layout import SlotLayout
from streamloader.transfer.memory import HostMemory
from streamloader.transfer.returns import ReturnBox
from streamloader.transfer.ring import RingStats
from streamloader.transfer.slot import Slot, SlotState


class MirrorRing:
    """Slots whose ring lives in another process: each is here from its arrival to its return.

    Args:
        layout: what a slot holds.
        max_slots: how many the other process may make.
        on_leased, on_returned: told the number of a slot that the consumer got, or that is free
            again; ``on_returned`` may run in a finaliser, see :class:`ReturnBox`.
    """

    def __init__(
        self,
        layout: SlotLayout,
        max_slots: int,
        *,
        on_leased: Callable[[int], None],
        on_returned: Callable[[], None],
    ) -> None:
        self.layout = layout
        self.max_slots = max_slots
        self.lock = threading.Lock()
        self.returned: ReturnBox[Slot] = ReturnBox(on_returned)
        self._on_leased = on_leased
        self._on_returned = on_returned
        self._slots: dict[int, Slot] = {}
        self._free: list[int] = []
        self._leased: set[int] = set()

    def adopt(self, index: int, memory: HostMemory) -> None:
        """Takes over the memory of a new slot."""
        with self.lock:
            self._slots[index] = Slot(self, index, memory)

    def arrived(self, index: int, rows: int) -> Slot:
        """WRITABLE -> FILLED: the other process filled the slot."""
        with self.lock:
            self.collect_returned()
            slot = self._slots[index]
            slot.advance(SlotState.FILLING)
            slot.advance(SlotState.FILLED)
            slot.rows = rows
            return slot

    def release(self, slot: Slot) -> None:
        """FILLED or IN_FLIGHT -> WRITABLE."""
        with self.lock:
            slot.advance(SlotState.WRITABLE)
            self._free.append(slot.index)
        self._on_returned()

    def take_free(self) -> list[int]:
        """Numbers of the slots that became free since the last call."""
        with self.lock:
            self.collect_returned()
            free, self._free = self._free, []
            return free

    def collect_returned(self) -> None:
        """Takes back the slots whose leases ended. The lock must be held."""
        for slot in self.returned.take_all():
            slot.advance(SlotState.WRITABLE)
            self._free.append(slot.index)

    def announce_growth(self) -> None:
        """Tells of slots that the consumer got: the other process may have to make more."""
        with self.lock:
            self.collect_returned()
            readable = {i for i, s in self._slots.items() if s.peek() is SlotState.READABLE}
            new, self._leased = readable - self._leased, readable
        for index in new:
            self._on_leased(index)

    def stats(self) -> RingStats:
        """Counts of this moment."""
        with self.lock:
            self.collect_returned()
            slots = list(self._slots.values())
            return RingStats(
                slots=len(slots),
                max_slots=self.max_slots,
                slot_bytes=self.layout.stride_bytes,
                pinned_slots=sum(slot.memory.pinned for slot in slots),
                pin_refusal=next(
                    (s.memory.pin_refusal for s in slots if s.memory.pin_refusal), None
                ),
                node=None,
                pages_by_node={},
                states=Counter(slot.peek() for slot in slots),
            )

    def close(self) -> None:
        """Lets go of every slot; what the consumer holds stays as it is."""
        with self.lock:
            slots, self._slots = list(self._slots.values()), {}
            free = [slot for slot in slots if slot.peek() is SlotState.WRITABLE]
        self.returned.close()
        for slot in free:
            slot.memory.close()

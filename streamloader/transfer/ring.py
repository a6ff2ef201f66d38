"""The slot ring: the border between those who fill batches and those who read them."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from streamloader.errors import ConfigError, StreamLoaderError
from streamloader.topology import pages_by_node
from streamloader.transfer.layout import SlotLayout
from streamloader.transfer.memory import HostMemory
from streamloader.transfer.returns import ReturnBox
from streamloader.transfer.slot import Slot, SlotState

logger = logging.getLogger("streamloader.transfer")


class RingExhausted(StreamLoaderError):
    """The consumer waits for a batch while it holds every slot the limits allow."""


@dataclass(frozen=True, slots=True)
class RingStats:
    """What a ring holds at one moment.

    Attributes:
        slots: slots that exist.
        max_slots: how many may exist.
        slot_bytes: bytes of one slot.
        pinned_slots: slots whose memory is registered for DMA.
        pin_refusal: why pinning was refused, None if it was not.
        node: NUMA node that the slots were asked to lie on, None for no matter where.
        pages_by_node: pages by the node where the first slots really lie; empty without ``node``,
            or where the system does not tell.
        states: how many slots are in each state.
    """

    slots: int
    max_slots: int
    slot_bytes: int
    pinned_slots: int
    pin_refusal: str | None
    node: int | None
    pages_by_node: Mapping[int, int]
    states: Mapping[SlotState, int]

    @property
    def nbytes(self) -> int:
        """Bytes of all slots together."""
        return self.slots * self.slot_bytes

    @property
    def max_nbytes(self) -> int:
        """The budget: bytes of all the slots that may exist."""
        return self.max_slots * self.slot_bytes

    @property
    def pinned_nbytes(self) -> int:
        """Bytes that are registered for DMA."""
        return self.pinned_slots * self.slot_bytes


class SlotRing:
    """Slots of one layout. Batches take any free slot; the order of batches is the caller's.

    Args:
        layout: what a slot holds.
        slots: how many are made at once, in this thread.
        max_slots: how many may exist, when the consumer holds on to batches.
        memory_factory: makes the memory of a slot from its size in bytes;
            ``functools.partial(HostMemory, pin=...)`` for pinned memory. It also runs in the thread
            of a :meth:`try_acquire` that grows the ring.
        on_free: called when :meth:`try_acquire` may have a slot again: one became writable, or the
            last one was leased and the ring may grow. It runs in any thread and also inside a
            finaliser; :class:`ReturnBox` says what it may do. A call is a hint: ask again.
        locate: counts pages by node from the addresses of the first slots, if those were asked to
            lie on one.

    Raises:
        ConfigError: not ``1 <= slots <= max_slots``.
    """

    def __init__(
        self,
        layout: SlotLayout,
        *,
        slots: int,
        max_slots: int,
        memory_factory: Callable[[int], HostMemory] = HostMemory,
        on_free: Callable[[], None],
        locate: Callable[[Collection[int]], Mapping[int, int]] = pages_by_node,
    ) -> None:
        if not 1 <= slots <= max_slots:
            raise ConfigError(
                f"a ring needs 1 <= slots <= max_slots, got slots={slots}, max_slots={max_slots}"
            )
        self.layout = layout
        self.max_slots = max_slots
        self.lock = threading.Lock()
        self.returned: ReturnBox[Slot] = ReturnBox(on_free)
        self._memory_factory = memory_factory
        self._on_free = on_free
        self._slots: list[Slot] = []
        self._writable: list[Slot] = []
        self._growing = False
        self._closed = False
        self._pin_refusal: str | None = None
        self._node_refusal: str | None = None
        self._node: int | None = None
        self._pages_by_node: Mapping[int, int] = {}
        try:
            for _ in range(slots):
                self._writable.append(self._adopt(self._new_memory()))
            self._check_node(locate)
        except BaseException:
            self.close()
            raise

    def _new_memory(self) -> HostMemory:
        memory = self._memory_factory(self.layout.stride_bytes)
        if memory.pin_refusal is not None and self._pin_refusal is None:
            self._pin_refusal = memory.pin_refusal
            logger.warning(
                "slots stay in pageable memory and copies to the device are slower: %s",
                memory.pin_refusal,
            )
        if memory.node_refusal is not None and self._node_refusal is None:
            self._node_refusal = memory.node_refusal
            logger.warning("slots may lie on another NUMA node than asked: %s", memory.node_refusal)
        return memory

    def _check_node(self, locate: Callable[[Collection[int]], Mapping[int, int]]) -> None:
        # Once, for the slots made at once: counting walks all memory of the process, and later
        # slots are made in the same way.
        node = self._slots[0].memory.node
        if node is None:
            return
        self._node = node.index
        self._pages_by_node = locate([slot.memory.address for slot in self._slots])
        elsewhere = sum(self._pages_by_node.values()) - self._pages_by_node.get(node.index, 0)
        if elsewhere:
            logger.warning(
                "%d pages of the slots lie on another NUMA node than %d (pages by node: %s); see "
                "whether that node has free memory and whether numactl or the batch system sets a "
                "memory policy",
                elsewhere,
                node.index,
                dict(self._pages_by_node),
            )

    def _adopt(self, memory: HostMemory) -> Slot:
        slot = Slot(self, len(self._slots), memory)
        self._slots.append(slot)
        return slot

    def try_acquire(self) -> Slot | None:
        """WRITABLE -> FILLING for some slot, None if there is none now.

        Makes a new slot, up to ``max_slots``, only when the consumer holds every existing one: a
        slot that is being filled or copied comes back without anyone's help.

        Raises:
            RuntimeError: the ring is closed.
            OSError: the system has no memory for another slot.
        """
        with self.lock:
            if self._closed:
                raise self._closed_error()
            self.collect_returned()
            if self._writable:
                return self._start_filling(self._writable.pop())
            if not self._may_grow():
                return None
            self._growing = True
        return self._grow()

    def _grow(self) -> Slot:
        # Without the lock: touching and registering a slot takes milliseconds.
        try:
            memory = self._new_memory()
        except BaseException:
            with self.lock:
                self._growing = False
            raise
        with self.lock:
            self._growing = False
            if not self._closed:
                return self._start_filling(self._adopt(memory))
        memory.close()
        raise self._closed_error()

    def _start_filling(self, slot: Slot) -> Slot:
        slot.advance(SlotState.FILLING)
        slot.rows = 0
        return slot

    def release(self, slot: Slot) -> None:
        """Any state but WRITABLE and READABLE -> WRITABLE. After :meth:`close`: frees its memory.

        A leased slot comes back on its own when the last array of the lease is gone.

        Raises:
            RuntimeError: the slot is writable or leased.
            ValueError: a slot of another ring.
        """
        if slot.ring is not self:
            raise ValueError(f"{slot} belongs to another ring; call slot.release()")
        with self.lock:
            if slot.peek() is SlotState.READABLE:
                raise RuntimeError(f"{slot} is readable and becomes writable when its lease ends")
            slot.advance(SlotState.WRITABLE)
            closed = self._closed
            if not closed:
                self._writable.append(slot)
        if closed:
            slot.memory.close()
        else:
            self._on_free()

    def slot(self, index: int) -> Slot:
        """The slot of a number."""
        with self.lock:
            return self._slots[index]

    def exhausted_by_consumer(self) -> bool:
        """Whether all ``max_slots`` exist and are leased: only the consumer can free one."""
        with self.lock:
            self.collect_returned()
            return len(self._slots) >= self.max_slots and self._all_leased()

    def stats(self) -> RingStats:
        """Counts of this moment; all zero slots after :meth:`close`."""
        with self.lock:
            self.collect_returned()
            return RingStats(
                slots=len(self._slots),
                max_slots=self.max_slots,
                slot_bytes=self.layout.stride_bytes,
                pinned_slots=sum(slot.memory.pinned for slot in self._slots),
                pin_refusal=self._pin_refusal,
                node=self._node,
                pages_by_node=self._pages_by_node,
                states=Counter(slot.peek() for slot in self._slots),
            )

    def close(self) -> None:
        """Frees writable slots now, every other one when it comes back. Waits for nothing.

        May be called twice, and while the consumer still reads batches: those stay as they are.
        """
        with self.lock:
            self._closed = True
            self.collect_returned()
            free, self._writable = self._writable, []
            self._slots = []
        self.returned.close()
        for slot in free:
            slot.memory.close()

    def collect_returned(self) -> None:
        """Takes back the slots whose leases ended. The lock must be held."""
        for slot in self.returned.take_all():
            slot.advance(SlotState.WRITABLE)
            self._writable.append(slot)

    def announce_growth(self) -> None:
        """Calls ``on_free`` if a lease just made it possible to grow."""
        with self.lock:
            self.collect_returned()
            may_grow = self._may_grow()
        if may_grow:
            self._on_free()

    def _may_grow(self) -> bool:
        return (
            not self._growing
            and not self._closed
            and len(self._slots) < self.max_slots
            and self._all_leased()
        )

    def _all_leased(self) -> bool:
        return all(slot.peek() is SlotState.READABLE for slot in self._slots)

    def _closed_error(self) -> RuntimeError:
        return RuntimeError("the host slot ring is closed")

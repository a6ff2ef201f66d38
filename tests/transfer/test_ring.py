"""The ring's state machine: who may touch a slot, when it grows, when it is exhausted."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from queue import SimpleQueue

import numpy as np
import pytest

from streamloader.errors import ConfigError
from streamloader.transfer import HostMemory, SlotRing, SlotState, lease_arrays
from streamloader.transfer.device_slot import DeviceSlot

WRITABLE, FILLING, FILLED, IN_FLIGHT, SENT, READABLE = SlotState
WAIT_S = 10.0

HELD: dict[int, object] = {}


def bring(ring: SlotRing, state: SlotState):
    """A slot of ``ring`` in ``state``; a lease is kept in HELD."""
    slot = ring.try_acquire()
    assert slot is not None
    if state is WRITABLE:
        slot.release()
    if state in (FILLED, IN_FLIGHT, SENT, READABLE):
        slot.mark_filled()
    if state is IN_FLIGHT:
        slot.mark_in_flight()
    if state is SENT:
        slot.mark_sent()
    if state is READABLE:
        HELD[id(slot)] = lease_arrays(slot)
    return slot


@pytest.fixture(autouse=True)
def _drop_leases():
    yield
    HELD.clear()


ACTIONS: dict[str, tuple[Callable, dict[SlotState, SlotState]]] = {
    "mark_filled": (lambda slot: slot.mark_filled(), {FILLING: FILLED}),
    "mark_in_flight": (lambda slot: slot.mark_in_flight(), {FILLED: IN_FLIGHT}),
    "mark_sent": (lambda slot: slot.mark_sent(), {FILLED: SENT}),
    "mark_readable": (lambda slot: slot.mark_readable(), {FILLED: READABLE, SENT: READABLE}),
    "lease": (
        lambda slot: HELD.setdefault(-1, lease_arrays(slot)),
        {FILLED: READABLE, SENT: READABLE},
    ),
    "release": (
        lambda slot: slot.release(),
        {FILLING: WRITABLE, FILLED: WRITABLE, IN_FLIGHT: WRITABLE, SENT: WRITABLE},
    ),
}


@pytest.mark.parametrize("state", list(SlotState))
@pytest.mark.parametrize("action", list(ACTIONS))
def test_every_step_is_either_legal_or_refused_and_changes_nothing(
    make_ring, state: SlotState, action: str
) -> None:
    act, legal = ACTIONS[action]
    slot = bring(make_ring(1), state)
    assert slot.state is state
    if state in legal:
        act(slot)
        assert slot.state is legal[state]
    else:
        with pytest.raises(RuntimeError) as caught:
            act(slot)
        assert state.value in str(caught.value)
        assert slot.state is state


def test_a_refusal_names_both_states(make_ring) -> None:
    with pytest.raises(RuntimeError, match=r"slot 0 .* is filling and cannot become in flight"):
        bring(make_ring(1), FILLING).mark_in_flight()


@pytest.mark.parametrize(("old", "new"), [(old, new) for old in SlotState for new in SlotState])
def test_a_device_slot_goes_only_round_writable_in_flight_readable(
    old: SlotState, new: SlotState
) -> None:
    slot = DeviceSlot(0, None)
    slot.state = old
    if (old, new) in [(WRITABLE, IN_FLIGHT), (IN_FLIGHT, READABLE), (READABLE, WRITABLE)]:
        slot.advance(new)
        assert slot.state is new
    else:
        with pytest.raises(RuntimeError, match=f"is {old.value} and cannot become {new.value}"):
            slot.advance(new)


def test_a_slot_is_given_to_one_batch_at_a_time(make_ring) -> None:
    ring = make_ring(2)
    first, second = ring.try_acquire(), ring.try_acquire()
    assert first is not second
    assert ring.try_acquire() is None
    first.release()
    assert ring.try_acquire() is first


@pytest.mark.parametrize("state", [FILLING, FILLED, IN_FLIGHT])
def test_a_ring_does_not_grow_while_a_slot_comes_back_by_itself(make_ring, state) -> None:
    ring = make_ring(2, 5)
    bring(ring, READABLE)
    bring(ring, state)
    assert ring.try_acquire() is None
    assert ring.stats().slots == 2


def test_a_ring_grows_when_the_consumer_holds_every_slot_up_to_the_maximum(make_ring) -> None:
    ring = make_ring(1, 3)
    for held in range(3):
        assert not ring.exhausted_by_consumer()
        bring(ring, READABLE)
        assert ring.stats().slots == held + 1
    assert ring.try_acquire() is None
    assert ring.exhausted_by_consumer()
    HELD.popitem()
    assert not ring.exhausted_by_consumer()
    assert ring.try_acquire() is not None


@pytest.mark.parametrize("state", [FILLING, FILLED, IN_FLIGHT])
def test_a_ring_is_not_exhausted_while_a_slot_comes_back_by_itself(make_ring, state) -> None:
    ring = make_ring(1)
    bring(ring, state)
    assert not ring.exhausted_by_consumer()


def test_a_ring_that_cannot_grow_says_so_and_tries_again(make_ring) -> None:
    memories = [HostMemory, None, HostMemory]

    def factory(nbytes: int) -> HostMemory:
        make = memories.pop(0)
        if make is None:
            raise OSError("no memory for another slot")
        return make(nbytes)

    ring = make_ring(1, 2, memory_factory=factory)
    bring(ring, READABLE)
    with pytest.raises(OSError, match="no memory for another slot"):
        ring.try_acquire()
    assert ring.try_acquire() is not None


def test_only_one_thread_grows_a_ring_at_a_time(make_ring) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def factory(nbytes: int) -> HostMemory:
        if first:
            entered.set()
            assert go_on.wait(WAIT_S)
        return HostMemory(nbytes)

    first: list[object] = []
    ring = make_ring(1, 3, memory_factory=factory)
    first.append(bring(ring, READABLE))
    got: list[object] = []
    grower = threading.Thread(target=lambda: got.append(ring.try_acquire()))
    grower.start()
    assert entered.wait(WAIT_S)
    assert ring.try_acquire() is None
    go_on.set()
    grower.join()
    assert got[0] is not None
    assert ring.stats().slots == 2


def test_growing_into_a_closed_ring_frees_the_memory(make_ring) -> None:
    entered, go_on = threading.Event(), threading.Event()
    made: list[HostMemory] = []

    def factory(nbytes: int) -> HostMemory:
        if made:
            entered.set()
            assert go_on.wait(WAIT_S)
        made.append(HostMemory(nbytes))
        return made[-1]

    ring = make_ring(1, 2, memory_factory=factory)
    bring(ring, READABLE)
    errors: list[RuntimeError] = []

    def grow() -> None:
        try:
            ring.try_acquire()
        except RuntimeError as error:
            errors.append(error)

    grower = threading.Thread(target=grow)
    grower.start()
    assert entered.wait(WAIT_S)
    ring.close()
    go_on.set()
    grower.join()
    assert "closed" in str(errors[0])
    with pytest.raises(RuntimeError, match="closed"):
        _ = made[1].array


@pytest.mark.parametrize("way", ["release", "lease"])
def test_on_free_is_called_when_a_slot_becomes_writable(make_ring, way: str) -> None:
    freed: SimpleQueue[int] = SimpleQueue()
    ring = make_ring(1, on_free=lambda: freed.put(1))
    slot = bring(ring, FILLING if way == "release" else READABLE)
    assert freed.empty()
    if way == "release":
        slot.release()
    else:
        HELD.clear()
    assert freed.get(timeout=WAIT_S) == 1
    assert freed.empty()
    assert ring.try_acquire() is slot


def test_on_free_is_called_when_the_last_slot_is_leased_and_the_ring_may_grow(make_ring) -> None:
    calls: list[None] = []
    ring = make_ring(2, 3, on_free=lambda: calls.append(None))
    bring(ring, READABLE)
    last = bring(ring, FILLED)
    assert ring.try_acquire() is None
    assert calls == []
    HELD[-1] = lease_arrays(last)
    assert calls == [None]
    HELD[-2] = lease_arrays(bring(ring, FILLED))
    assert calls == [None]


def test_a_slot_of_another_ring_is_refused(make_ring) -> None:
    with pytest.raises(ValueError, match="another ring"):
        make_ring(1).release(bring(make_ring(1), FILLING))


def test_rows_outside_the_batch_are_refused_and_change_nothing(make_ring) -> None:
    slot = bring(make_ring(1), FILLING)
    with pytest.raises(ValueError, match="within 0 and 3, got 4"):
        slot.mark_filled(4)
    assert slot.state is FILLING


def test_a_lease_shows_the_filled_rows_only(make_ring) -> None:
    slot = bring(make_ring(1), FILLING)
    slot.mark_filled(2)
    assert lease_arrays(slot)["image"].shape == (2, 4, 4, 3)


@pytest.mark.parametrize(("slots", "max_slots"), [(0, 1), (3, 2)])
def test_a_ring_without_room_is_refused(layout, slots: int, max_slots: int) -> None:
    with pytest.raises(ConfigError, match=f"got slots={slots}, max_slots={max_slots}"):
        SlotRing(layout, slots=slots, max_slots=max_slots, on_free=lambda: None)


def test_closing_frees_writable_slots_at_once_and_others_when_they_come_back(make_ring) -> None:
    ring = make_ring(4)
    busy = [bring(ring, state) for state in (FILLING, FILLED, IN_FLIGHT)]
    idle = bring(ring, WRITABLE)
    ring.close()
    ring.close()
    assert _is_closed(idle.memory)
    for slot in busy:
        assert not _is_closed(slot.memory)
        slot.release()
        assert _is_closed(slot.memory)
    with pytest.raises(RuntimeError, match="ring is closed"):
        ring.try_acquire()


def _is_closed(memory: HostMemory) -> bool:
    try:
        return memory.array is None
    except RuntimeError:
        return True


def test_the_report_counts_slots_by_state(make_ring) -> None:
    ring = make_ring(3)
    bring(ring, READABLE)
    bring(ring, FILLING)
    stats = ring.stats()
    assert stats.states == {READABLE: 1, FILLING: 1, WRITABLE: 1}
    assert (stats.slots, stats.max_slots, stats.nbytes) == (3, 3, 3 * ring.layout.stride_bytes)


def test_threads_never_share_a_slot_and_a_batch_never_changes_while_held(make_ring) -> None:
    freed: SimpleQueue[None] = SimpleQueue()
    ring = make_ring(3, 6, on_free=lambda: freed.put(None))
    batches: SimpleQueue[tuple[int, dict[str, np.ndarray]] | None] = SimpleQueue()
    problems: list[str] = []
    numbers = iter(range(1, 601))

    def produce() -> None:
        for number in numbers:
            while (slot := ring.try_acquire()) is None:
                freed.get(timeout=WAIT_S)
            for array in slot.views.values():
                array[...] = number % 251
            slot.mark_filled()
            batches.put((number, lease_arrays(slot)))
        # The other producer may wait for a call that this one took.
        freed.put(None)
        batches.put(None)

    def consume(seed: int) -> None:
        rng = random.Random(seed)
        held: list[tuple[int, np.ndarray]] = []
        while (item := batches.get(timeout=WAIT_S)) is not None:
            number, arrays = item
            held.append((number, arrays[rng.choice(["image", "label"])][1:]))
            del item, arrays
            if any((array != number % 251).any() for number, array in held):
                problems.append(f"a held batch changed, seed {seed}")
            if len(held) > 1 or rng.random() < 0.5:
                del held[rng.randrange(len(held))]

    threads = [threading.Thread(target=produce) for _ in range(2)]
    threads += [threading.Thread(target=consume, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert problems == []
    assert ring.stats().states == {WRITABLE: ring.stats().slots}

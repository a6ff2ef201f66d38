"""What a transfer station delivers, on which stream, and from how many slots."""

from __future__ import annotations

import gc
import threading
from queue import SimpleQueue

import pytest

from streamloader.errors import ConfigError
from streamloader.transfer import (
    FieldSpec,
    RingExhausted,
    SlotLayout,
    SlotRing,
    SlotState,
)

WAIT_S = 10.0


def test_the_host_slot_is_free_only_after_the_copy_has_run(
    make_backend, make_ring, make_station, fill
):
    backend, freed = make_backend(), threading.Event()
    ring = make_ring(1, on_free=freed.set)
    station = make_station(backend)
    slot = fill(ring, 1)
    station.send(slot, 1)
    backend.wait_for(lambda: len(backend.copied_nbytes) == 1)
    station.receive(WAIT_S)
    assert slot.state is SlotState.IN_FLIGHT
    assert ring.try_acquire() is None
    backend.run_all()
    assert freed.wait(WAIT_S)
    assert ring.try_acquire() is slot


def test_the_next_copy_is_enqueued_while_the_one_before_has_not_run(
    make_backend, make_ring, make_station, fill
) -> None:
    backend, ring = make_backend(), make_ring(2)
    station = make_station(backend)
    station.send(fill(ring, 1), 1)
    station.send(fill(ring, 2), 2)
    backend.wait_for(lambda: len(backend.copied_nbytes) == 2)
    assert backend.copies_run == 0


def test_the_consumer_waits_for_its_own_copy_only(
    make_backend, make_ring, make_station, fill, is_batch
) -> None:
    backend, ring = make_backend(), make_ring(2)
    station = make_station(backend)
    station.send(fill(ring, 1), 1)
    station.send(fill(ring, 2), 2)
    backend.wait_for(lambda: len(backend.copied_nbytes) == 2)
    _, batch = station.receive(WAIT_S)
    read: list[bool] = []
    backend.consumer_stream.enqueue(lambda: read.append(is_batch(batch.tensors, 1)))
    assert backend.copy_stream.step()
    assert backend.copy_stream.step()
    while backend.consumer_stream.step():
        pass
    assert read == [True]
    assert backend.copies_run == 1


def test_the_stream_that_counts_is_the_one_current_at_receive(
    make_backend, make_ring, make_station, fill
) -> None:
    backend, ring = make_backend(), make_ring(1)
    station = make_station(backend)
    other = type(backend.consumer_stream)(backend.changed)
    station.send(fill(ring, 1), 1)
    backend.consumer_stream, default = other, backend.consumer_stream
    _, batch = station.receive(WAIT_S)
    backend.consumer_stream = default
    assert (len(other.work), len(default.work)) == (1, 0)
    del batch
    assert (len(other.work), len(default.work)) == (2, 0)


def test_only_the_used_bytes_of_a_short_batch_move(
    make_backend, make_ring, make_station, fill, is_batch
) -> None:
    backend, ring = make_backend(), make_ring(1)
    station = make_station(backend)
    station.send(fill(ring, 1, rows=2), "short")
    tag, batch = station.receive(WAIT_S)
    backend.run_all()
    assert backend.copied_nbytes == [ring.layout.used_bytes(2)]
    assert (tag, batch.rows, batch.device) == ("short", 2, "fake:3")
    assert batch.tensors["image"].shape == (2, 4, 4, 3)
    assert is_batch(batch.tensors, 1)
    assert station.stats().moved_bytes == ring.layout.used_bytes(2)


def test_device_slots_grow_only_when_the_consumer_holds_all_and_then_it_is_told(
    make_backend, make_ring, make_station, fill, is_batch
) -> None:
    backend, ring = make_backend(), make_ring(4)
    station = make_station(backend, max_device_slots=3)
    held = []
    with backend.running():
        for number in range(3):
            station.send(fill(ring, number), number)
            held.append(station.receive(WAIT_S)[1])
        assert station.stats().device_slots == station.stats().held_device_slots == 3
        station.send(fill(ring, 3), 3)
        with pytest.raises(RingExhausted, match="holds all 3 device slots of fake:3"):
            station.receive(WAIT_S)
        backend.wait_for(lambda: backend.copies_run == 3)
        assert all(is_batch(batch.tensors, number) for number, batch in enumerate(held))
        del held[0]
        assert station.receive(WAIT_S)[0] == 3
    assert backend.allocated == 3


def test_device_slots_do_not_grow_for_a_consumer_that_lets_go(
    make_backend, make_ring, make_station, fill
) -> None:
    backend, freed = make_backend(), SimpleQueue()
    ring = make_ring(4, on_free=lambda: freed.put(None))
    station = make_station(backend)
    with backend.running():
        for number in range(20):
            while (slot := fill(ring, number)) is None:
                freed.get(timeout=WAIT_S)
            station.send(slot, number)
            batch = station.receive(WAIT_S)
        del batch
    assert backend.allocated == 2


def test_batches_in_an_unreachable_cycle_are_not_held(
    make_backend, make_ring, make_station, fill
) -> None:
    backend, ring = make_backend(), make_ring(3)
    station = make_station(backend, max_device_slots=2)
    gc.disable()
    try:
        with backend.running():
            for number in range(2):
                station.send(fill(ring, number), number)
                cycle: list[object] = [station.receive(WAIT_S)]
                cycle.append(cycle)
            station.send(fill(ring, 2), 2)
            del cycle
            assert station.receive(WAIT_S)[0] == 2
    finally:
        gc.enable()


def test_static_buffers_keep_one_address_and_give_the_slot_back_at_once(
    make_backend, make_ring, make_station, fill, is_batch
) -> None:
    backend, ring = make_backend(), make_ring(3)
    station = make_station(backend, static_buffers=True)
    read, addresses, batches = [], set(), []
    with backend.running():
        for number in range(3):
            station.send(fill(ring, number), number)
        for number in range(3):
            _, batch = station.receive(WAIT_S)
            batches.append(batch)
            addresses.add(batch.tensors["image"].ctypes.data)
            backend.consumer_stream.enqueue(
                lambda batch=batch, number=number: read.append(is_batch(batch.tensors, number))
            )
        backend.wait_for(lambda: len(read) == 3)
    assert read == [True, True, True]
    assert len(addresses) == 1
    assert station.stats().device_slots == 2


def test_receive_gives_up_after_its_time(make_backend, make_station) -> None:
    with pytest.raises(TimeoutError, match=r"fake:3 within 0\.01 s"):
        make_station(make_backend()).receive(0.01)


def test_a_slot_that_is_not_filled_or_of_another_layout_is_refused(
    make_backend, make_ring, make_station
) -> None:
    ring, station = make_ring(1), make_station(make_backend())
    slot = ring.try_acquire()
    with pytest.raises(RuntimeError, match="is filling and cannot become in flight"):
        station.send(slot, 0)
    other = SlotLayout.build([FieldSpec("a", "bool")], 1)
    foreign = SlotRing(other, slots=1, max_slots=1, on_free=lambda: None)
    with pytest.raises(ValueError, match="another layout"):
        station.send(foreign.try_acquire(), 0)
    foreign.close()


@pytest.mark.parametrize(("slots", "most"), [(1, 4), (3, 2)])
def test_a_station_needs_two_device_slots(make_backend, make_station, slots, most) -> None:
    with pytest.raises(ConfigError, match=f"got device_slots={slots}, max_device_slots={most}"):
        make_station(make_backend(), device_slots=slots, max_device_slots=most)

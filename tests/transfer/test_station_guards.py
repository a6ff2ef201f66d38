"""No schedule of host, copy stream and consumer shows wrong bytes, and each guard is needed."""

from __future__ import annotations

import random
import threading
from collections import deque
from queue import SimpleQueue

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamloader.transfer import (
    FieldSpec,
    SlotLayout,
    SlotRing,
    SlotState,
    TransferStation,
)

WAIT_S = 10.0
STEPS = ("send", "receive", "drop", "copy", "consume")


class Schedule:
    """One consumer over a late device, moved step by step; ``wrong`` lists what it misread."""

    def __init__(self, backend, fill, memory_behind, is_batch, layout, host_slots: int) -> None:
        self.freed: SimpleQueue[None] = SimpleQueue()
        self.ring = SlotRing(
            layout, slots=host_slots, max_slots=host_slots, on_free=lambda: self.freed.put(None)
        )
        self.backend = backend
        self.station = TransferStation("fake:0", layout, backend, max_device_slots=3)
        self.held: deque[object] = deque()
        self.sent = self.received = self.dropped = self.read = 0
        self.slots = 2
        self.wrong: list[int] = []
        self._fill, self._memory_behind, self._is_batch = fill, memory_behind, is_batch

    def send(self) -> None:
        slot = self._fill(self.ring, self.sent % 200)
        if slot is not None:
            self.station.send(slot, self.sent)
            self.sent += 1
        self._settle()

    def receive(self) -> None:
        if self.received < len(self.backend.copied_nbytes) and len(self.held) < 3:
            tag, batch = self.station.receive(WAIT_S)
            assert tag == self.received
            self.received += 1
            self.held.append(batch)
            self._launch_kernel(tag, self._memory_behind(batch.tensors["image"]))
        self._settle()

    def _launch_kernel(self, tag: int, memory: np.ndarray) -> None:
        def kernel() -> None:
            self.read += 1
            if not self._is_batch(self.ring.layout.views(memory), tag % 200):
                self.wrong.append(tag)

        self.backend.consumer_stream.enqueue(kernel)

    def drop(self) -> None:
        if self.held:
            self.held.popleft()
            self.dropped += 1
        self._settle()

    def copy(self) -> None:
        self.backend.copy_stream.step()
        self._settle()

    def consume(self) -> None:
        self.backend.consumer_stream.step()
        self._settle()

    def _settle(self) -> None:
        """Waits until the station's threads have done what they can."""
        slots = self.slots
        if len(self.held) == slots < 3 and self.sent > len(self.backend.copied_nbytes):
            self.slots += 1
        expected = min(self.sent, self.dropped + self.slots)
        self.backend.wait_for(lambda: len(self.backend.copied_nbytes) >= expected)
        assert self.backend.allocated == self.slots
        marks = sum(1 for work in self.backend.copy_stream.work if callable(work))
        done = self.backend.copies_run - (1 if marks % 2 else 0)
        while self.ring.stats().states.get(SlotState.IN_FLIGHT, 0) > self.sent - done:
            self.freed.get(timeout=WAIT_S)

    def finish(self) -> None:
        with self.backend.running():
            while self.received < self.sent:
                self.held.clear()
                tag, batch = self.station.receive(WAIT_S)
                self.received += 1
                self._launch_kernel(tag, self._memory_behind(batch.tensors["image"]))
                del batch
            self.held.clear()
            self.backend.wait_for(lambda: self.read == self.received)
            self.station.close()
        self.ring.close()


LAYOUT = SlotLayout.build(
    [FieldSpec("image", "uint8", (4, 4, 3)), FieldSpec("label", "int64")], batch_size=3
)


@pytest.fixture
def run_schedule(make_backend, fill, memory_behind, is_batch):
    def run(steps: list[str], forgets: str | None = None, host_slots: int = 2) -> Schedule:
        schedule = Schedule(
            make_backend(forgets), fill, memory_behind, is_batch, LAYOUT, host_slots
        )
        try:
            for step in steps:
                getattr(schedule, step)()
        finally:
            schedule.finish()
        return schedule

    return run


def random_steps(seed: int) -> list[str]:
    rng = random.Random(seed)
    weights = [rng.choice([1, 1, 4]) for _ in STEPS]
    return rng.choices(STEPS, weights, k=250)


@pytest.mark.parametrize("seed", range(12))
def test_every_batch_arrives_whole_and_in_order_whatever_runs_late(run_schedule, seed: int) -> None:
    schedule = run_schedule(random_steps(seed), host_slots=1 + seed % 3)
    assert schedule.wrong == []
    assert schedule.read == schedule.sent > 5


def test_schedules_that_hypothesis_finds(run_schedule) -> None:
    @settings(max_examples=25, deadline=None, database=None)
    @given(st.lists(st.sampled_from(STEPS), max_size=40), st.integers(1, 3))
    def every_batch_arrives_whole(steps: list[str], host_slots: int) -> None:
        assert run_schedule(steps, host_slots=host_slots).wrong == []

    every_batch_arrives_whole()


LATE_COPIES = ["send", "send", "send", "receive", "receive"]


SLOW_CONSUMER = [
    *["send", "send", "copy", "copy", "copy", "copy"],
    *["receive", "drop", "receive", "drop"],
    *["send", "send", *["copy"] * 6, *["consume"] * 12],
]


@pytest.mark.parametrize(
    ("forgets", "steps"),
    [
        # The host writes a slot whose copy has not run.
        ("host", LATE_COPIES),
        # A copy writes a device slot that the consumer has yet to read.
        ("device", SLOW_CONSUMER),
        # The consumer reads a device slot before its copy has run.
        ("consumer", ["send", "receive", "consume"]),
    ],
)
def test_without_any_one_of_the_three_guards_wrong_bytes_are_seen(
    run_schedule, forgets: str, steps: list[str]
) -> None:
    assert run_schedule(steps).wrong == []
    assert run_schedule(steps, forgets=forgets).wrong != []


@pytest.mark.parametrize("forgets", ["host", "device", "consumer"])
def test_the_random_schedules_would_notice_a_missing_guard(run_schedule, forgets: str) -> None:
    assert any(run_schedule(random_steps(seed), forgets).wrong for seed in range(12))


def test_threads_of_both_sides_at_full_speed(make_backend, make_ring, make_station, fill, is_batch):
    backend, freed = make_backend(), SimpleQueue()
    ring = make_ring(3, on_free=lambda: freed.put(None))
    station = make_station(backend)
    wrong: list[int] = []

    def produce() -> None:
        for number in range(300):
            while (slot := fill(ring, number % 200)) is None:
                freed.get(timeout=WAIT_S)
            station.send(slot, number)

    producer = threading.Thread(target=produce)
    with backend.running():
        producer.start()
        kept: deque[object] = deque(maxlen=2)
        read = 0
        for number in range(300):
            tag, batch = station.receive(WAIT_S)
            assert tag == number
            kept.append(batch)
            done = threading.Event()

            def kernel(batch=batch, number=number, done=done) -> None:
                if not is_batch(batch.tensors, number % 200):
                    wrong.append(number)
                done.set()

            backend.consumer_stream.enqueue(kernel)
            del batch, kernel
            if number % 7 == 0:
                assert done.wait(WAIT_S)
            read += 1
        assert done.wait(WAIT_S)
        producer.join()
    assert (read, wrong) == (300, [])

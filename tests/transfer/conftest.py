"""A device whose streams run only when a test says so, and whose copies read late."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from streamloader.transfer import FieldSpec, SlotLayout, SlotRing, TransferStation

WAIT_S = 10.0


class FakeEvent:
    def __init__(self) -> None:
        self.reached = threading.Event()


class FakeStream:
    """Work in order; an entry is a call or an event to wait for."""

    def __init__(self, changed: threading.Condition) -> None:
        self.work: deque[Callable[[], None] | FakeEvent] = deque()
        self._changed = changed

    def enqueue(self, item: Callable[[], None] | FakeEvent) -> None:
        with self._changed:
            self.work.append(item)
            self._changed.notify_all()

    def step(self) -> bool:
        """Runs the next entry; False if there is none or its event is not reached."""
        with self._changed:
            if not self.work:
                return False
            head = self.work[0]
            if isinstance(head, FakeEvent):
                if not head.reached.is_set():
                    return False
                self.work.popleft()
                return True
            self.work.popleft()
            head()
            self._changed.notify_all()
            return True


class _Owned:
    def __init__(self, memory: np.ndarray, owner: object) -> None:
        self.memory = memory
        self.owner = owner
        self.__array_interface__ = memory.__array_interface__


class FakeBackend:
    """A ``DeviceBackend`` in plain memory.

    ``forgets`` takes one guard out: "host" (the host does not wait for a copy before it gives the
    slot back), "device" (the copy stream does not wait for the consumer), "consumer" (the consumer
    does not wait for the copy).
    """

    def __init__(self, forgets: str | None = None) -> None:
        self.changed = threading.Condition()
        self.copy_stream = FakeStream(self.changed)
        self.consumer_stream = FakeStream(self.changed)
        self.forgets = forgets
        self.copied_nbytes: list[int] = []
        self.copies_run = 0
        self.allocated = 0

    def new_stream(self) -> FakeStream:
        return self.copy_stream

    def current_stream(self) -> FakeStream:
        return self.consumer_stream

    def allocate(self, nbytes: int, stream: FakeStream) -> np.ndarray:
        self.allocated += 1
        return np.full(nbytes, 0xEE, np.uint8)

    def copy_to_device(
        self, host: np.ndarray, memory: np.ndarray, nbytes: int, stream: FakeStream
    ) -> None:
        def copy() -> None:
            memory[:nbytes] = host[:nbytes]
            self.copies_run += 1

        stream.enqueue(copy)
        with self.changed:
            self.copied_nbytes.append(nbytes)
            self.changed.notify_all()

    def copy_on_device(
        self, source: np.ndarray, target: np.ndarray, nbytes: int, stream: FakeStream
    ) -> None:
        def copy() -> None:
            target[:nbytes] = source[:nbytes]

        stream.enqueue(copy)

    def record_event(self, stream: FakeStream) -> FakeEvent:
        event = FakeEvent()
        stream.enqueue(event.reached.set)
        return event

    def stream_wait(self, stream: FakeStream, event: FakeEvent) -> None:
        waiter = "device" if stream is self.copy_stream else "consumer"
        if self.forgets != waiter:
            stream.enqueue(event)

    def synchronize(self, event: FakeEvent) -> None:
        if self.forgets != "host" and not event.reached.wait(WAIT_S):
            raise TimeoutError("the test never ran the copy stream")

    def tensors(
        self, memory: np.ndarray, layout: SlotLayout, rows: int, owner: object
    ) -> dict[str, np.ndarray]:
        return layout.views(np.asarray(_Owned(memory, owner)), rows)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Blocks until ``condition``, which changes with device work, holds."""
        with self.changed:
            assert self.changed.wait_for(condition, WAIT_S), "the device never got there"

    def run_all(self) -> None:
        """Runs both streams until neither can go on."""
        while self.copy_stream.step() or self.consumer_stream.step():
            pass

    @contextmanager
    def running(self) -> Iterator[None]:
        """Runs both streams in a thread of their own."""
        stop = False

        def runnable(stream: FakeStream) -> bool:
            head = stream.work[0] if stream.work else None
            return head is not None and (not isinstance(head, FakeEvent) or head.reached.is_set())

        def run() -> None:
            streams = (self.copy_stream, self.consumer_stream)
            while True:
                with self.changed:
                    self.changed.wait_for(lambda: stop or any(map(runnable, streams)))
                    if stop and not any(map(runnable, streams)):
                        return
                self.run_all()

        thread = threading.Thread(target=run, name="fake-device")
        thread.start()
        try:
            yield
        finally:
            with self.changed:
                stop = True
                self.changed.notify_all()
            thread.join()


def device_memory(tensor: np.ndarray) -> np.ndarray:
    """The device bytes behind a fake tensor, without the lease: what a running kernel sees."""
    base: Any = tensor
    while not isinstance(base, _Owned):
        base = base.base
    return base.memory


@pytest.fixture
def layout() -> SlotLayout:
    fields = [FieldSpec("image", "uint8", (4, 4, 3)), FieldSpec("label", "int64")]
    return SlotLayout.build(fields, batch_size=3)


@pytest.fixture
def make_backend() -> type[FakeBackend]:
    return FakeBackend


@pytest.fixture
def memory_behind() -> Callable[[np.ndarray], np.ndarray]:
    return device_memory


@pytest.fixture
def make_ring(layout: SlotLayout) -> Iterator[Callable[..., SlotRing]]:
    rings: list[SlotRing] = []

    def make(slots: int = 2, max_slots: int | None = None, **options: Any) -> SlotRing:
        options.setdefault("on_free", lambda: None)
        rings.append(SlotRing(layout, slots=slots, max_slots=max_slots or slots, **options))
        return rings[-1]

    yield make
    for ring in rings:
        ring.close()


@pytest.fixture
def make_station(layout: SlotLayout) -> Iterator[Callable[..., TransferStation]]:
    made: list[tuple[TransferStation, FakeBackend]] = []

    def make(backend: FakeBackend, **options: Any) -> TransferStation:
        made.append((TransferStation("fake:3", layout, backend, **options), backend))
        return made[-1][0]

    yield make
    for station, backend in made:
        with backend.running():
            station.close()


@pytest.fixture
def fill() -> Callable[..., Any]:
    """Takes a slot, writes batch ``number`` into it and marks it filled."""

    def fill_slot(ring: SlotRing, number: int, rows: int | None = None) -> Any:
        slot = ring.try_acquire()
        if slot is None:
            return None
        for name, array in slot.views.items():
            array[...] = expected_batch(ring.layout)[name] + number
        slot.mark_filled(rows)
        return slot

    return fill_slot


def expected_batch(layout: SlotLayout) -> dict[str, np.ndarray]:
    return {
        field.name: np.arange(layout.batch_size, dtype=field.dtype).reshape(
            -1, *(1 for _ in field.shape)
        )
        * np.ones(field.shape, field.dtype)
        for field in layout.fields
    }


@pytest.fixture
def is_batch(layout: SlotLayout) -> Callable[[dict[str, np.ndarray], int], bool]:
    """Whether arrays hold exactly batch ``number``."""

    def check(arrays: dict[str, np.ndarray], number: int) -> bool:
        return all(
            np.array_equal(array, (expected_batch(layout)[name] + number)[: len(array)])
            for name, array in arrays.items()
        )

    return check

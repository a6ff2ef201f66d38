"""How a transfer station ends: failures, closing, being dropped, interpreter exit."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from queue import SimpleQueue

import pytest

from streamloader.transfer import (
    SlotState,
    TransferStation,
)

WAIT_S = 10.0


class CopyRefused(Exception):
    pass


@pytest.mark.parametrize("broken", ["copy_to_device", "record_event", "synchronize", "allocate"])
def test_a_failure_in_the_station_reaches_receive_and_send_with_its_traceback(
    make_backend, make_ring, make_station, fill, broken: str
) -> None:
    backend, ring = make_backend(), make_ring(6, 6)
    station = make_station(backend)
    held = []
    with backend.running():
        station.send(fill(ring, 0), 0)
        held.append(station.receive(WAIT_S))

        def the_place_that_failed(*_: object) -> None:
            raise CopyRefused(broken)

        setattr(backend, broken, the_place_that_failed)
        started = time.monotonic()

        def go_on() -> None:
            for number in range(1, 4):
                station.send(fill(ring, number), number)
                held.append(station.receive(WAIT_S))
            station.receive(WAIT_S)

        with pytest.raises(CopyRefused) as caught:
            go_on()
        assert time.monotonic() - started < 1
        frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert frames[-1] == "the_place_that_failed"
        with pytest.raises(CopyRefused):
            station.receive(WAIT_S)
        with pytest.raises(CopyRefused) as again:
            station.send(fill(ring, 5), 5)
        assert len(traceback.extract_tb(again.value.__traceback__)) <= len(frames) + 2
        del backend.__dict__[broken]


def test_a_release_that_cannot_be_recorded_reaches_receive(
    make_backend, make_ring, make_station, fill
) -> None:
    backend, ring = make_backend(), make_ring(2)
    station = make_station(backend)
    with backend.running():
        station.send(fill(ring, 0), 0)
        batch = station.receive(WAIT_S)

        def refuse(stream: object) -> None:
            raise CopyRefused("no event")

        backend.record_event = refuse
        del batch
        with pytest.raises(CopyRefused, match="no event"):
            station.receive(WAIT_S)


def test_a_host_slot_whose_copy_is_in_doubt_is_never_given_back(
    make_backend, make_ring, make_station, fill
) -> None:
    backend, ring = make_backend(), make_ring(2)
    station = make_station(backend)

    def enqueued_and_then_failed(*_: object) -> None:
        raise CopyRefused

    backend.copy_to_device = enqueued_and_then_failed
    doubtful, untouched = fill(ring, 0), fill(ring, 1)
    station.send(doubtful, 0)
    with pytest.raises(CopyRefused):
        station.receive(WAIT_S)
    station.close()
    assert doubtful.state is SlotState.IN_FLIGHT
    assert untouched.state is SlotState.FILLED


def test_close_ends_a_receive_that_waits(make_backend, make_station) -> None:
    station = make_station(make_backend())
    errors: SimpleQueue[BaseException] = SimpleQueue()
    waiting = threading.Event()

    def wait() -> None:
        waiting.set()
        try:
            station.receive()
        except RuntimeError as error:
            errors.put(error)

    threads = [threading.Thread(target=wait) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert waiting.wait(WAIT_S)
    station.close()
    for _ in threads:
        assert "fake:3 is closed" in str(errors.get(timeout=WAIT_S))
    for thread in threads:
        thread.join()
    with pytest.raises(RuntimeError, match="is closed"):
        station.receive()


def test_close_waits_for_enqueued_copies_and_gives_every_host_slot_back(
    make_backend, make_ring, make_station, fill
) -> None:
    backend, ring = make_backend(), make_ring(4)
    station = make_station(backend)
    slots = [fill(ring, number) for number in range(4)]
    for number, slot in enumerate(slots):
        station.send(slot, number)
    backend.wait_for(lambda: len(backend.copied_nbytes) == 2)
    closing = [threading.Thread(target=station.close) for _ in range(2)]
    for thread in closing:
        thread.start()

    def receive_all() -> None:
        while True:
            station.receive(WAIT_S)

    with pytest.raises(RuntimeError, match="is closed"):
        receive_all()
    assert [slot.state for slot in slots[:2]] == [SlotState.IN_FLIGHT] * 2
    with backend.running():
        for thread in closing:
            thread.join(WAIT_S)
            assert not thread.is_alive()
    assert ring.stats().states == {SlotState.WRITABLE: 4}
    assert backend.copies_run == 2


def test_a_batch_outlives_its_station(
    make_backend, make_ring, make_station, fill, is_batch
) -> None:
    backend, ring = make_backend(), make_ring(1)
    station = make_station(backend)
    with backend.running():
        station.send(fill(ring, 9), 9)
        _, batch = station.receive(WAIT_S)
        station.close()
        station.close()
    ring.close()
    assert is_batch(batch.tensors, 9)


def test_sending_to_a_closed_station_leaves_the_slot_with_the_caller(
    make_backend, make_ring, make_station, fill
) -> None:
    ring, station = make_ring(1), make_station(make_backend())
    station.close()
    slot = fill(ring, 1)
    with pytest.raises(RuntimeError, match="is closed"):
        station.send(slot, 1)
    assert slot.state is SlotState.FILLED


def station_threads() -> list[threading.Thread]:
    return [
        thread
        for thread in threading.enumerate()
        if thread.name.startswith("streamloader-transfer-5")
    ]


def test_a_station_dropped_without_close_leaves_no_thread(make_backend, layout) -> None:
    station = TransferStation("fake:5", layout, make_backend())
    threads = station_threads()
    assert [thread.name for thread in threads] == [
        "streamloader-transfer-5",
        "streamloader-transfer-5-done",
    ]
    del station
    for thread in threads:
        thread.join(WAIT_S)
    assert station_threads() == []


def test_many_stations_leave_neither_threads_nor_device_memory(make_backend, layout) -> None:
    for _ in range(50):
        TransferStation("fake:5", layout, make_backend()).close()
    assert station_threads() == []


def test_a_station_whose_threads_cannot_start_leaves_none_behind(
    make_backend, layout, monkeypatch
) -> None:
    start = threading.Thread.start
    started: list[threading.Thread] = []

    def start_only_one(thread: threading.Thread) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_only_one)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        TransferStation("fake:5", layout, make_backend())
    started[0].join(WAIT_S)
    assert station_threads() == []


EXIT_SCRIPT = """
import sys
sys.path.insert(0, {folder!r})
from conftest import FakeBackend
from streamloader.transfer import FieldSpec, SlotLayout, SlotRing, TransferStation

layout = SlotLayout.build([FieldSpec("image", "uint8", (8,))], 4)
ring = SlotRing(layout, slots=2, max_slots=2, on_free=lambda: None)
backend = FakeBackend()
station = TransferStation("fake:0", layout, backend)
for number in range(2):
    slot = ring.try_acquire()
    slot.mark_filled()
    station.send(slot, number)
held = station.receive(10)
backend.wait_for(lambda: len(backend.copied_nbytes) == 2)
backend.run_all()
print("done")
"""


def test_an_interpreter_that_exits_without_close_ends_quietly() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", EXIT_SCRIPT.format(folder=str(Path(__file__).parent))],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (ended.returncode, ended.stdout.strip(), ended.stderr) == (0, "done", "")

import threading

import pytest

from streamloader._outbox import Closed, Outbox


def outbox(total, on_ready=lambda item: None):
    return Outbox(total, on_wait=lambda: None, on_ready=on_ready)


def nothing() -> str:
    return "a test stands still"


def test_batches_leave_in_order_however_they_came():
    ready = []
    box = outbox(3, ready.append)
    for number in (2, 0, 1):
        assert box.put(number, f"batch {number}")
    assert ready == ["batch 0", "batch 1", "batch 2"]
    assert [box.get(1, nothing) for _ in range(4)] == ["batch 0", "batch 1", "batch 2", None]


def test_a_failure_wakes_the_consumer_with_the_original_exception():
    waits = threading.Event()
    box = Outbox(1, on_wait=waits.set, on_ready=lambda item: None)
    failure = LookupError("gone")
    caught = []

    def consume():
        try:
            box.get(30, nothing)
        except LookupError as error:
            caught.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    assert waits.wait(5)
    box.fail(failure)
    box.fail(ValueError("a later failure"))
    consumer.join(5)
    assert caught == [failure]


def test_a_closed_outbox_takes_nothing_and_says_so_to_the_consumer():
    box = outbox(2)
    box.put(0, "batch 0")
    box.close()
    assert not box.put(1, "batch 1")
    with pytest.raises(Closed):
        box.get(1, nothing)


def test_a_stall_names_what_is_stuck():
    with pytest.raises(TimeoutError, match="a test stands still"):
        outbox(1).get(0.01, nothing)

"""How many requests run at once, and which are sent a second time."""

from __future__ import annotations

import asyncio

import pytest

from storage_backends.http_gate import Gate
from storage_backends.http_hedge import Hedge


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def run_windows(gate: Gate, clock: Clock, count: int, rate_at: dict[int, float]) -> None:
    """Lets saturated windows pass in which the bytes per second depend on the limit."""
    for _ in range(count):
        turns = [asyncio.ensure_future(gate.enter(1)) for _ in range(gate.limit + 1)]
        await turns[0]
        clock.now += 0.3
        rate = rate_at.get(gate.limit, max(rate_at.values()))
        gate.leave(1, int(rate * 0.3))
        for turn in turns[1:]:
            await turn
            gate.leave(1, 0)


async def test_the_limit_grows_while_that_brings_more() -> None:
    clock = Clock()
    gate = Gate(64, 2**30, clock)
    await run_windows(gate, clock, 8, {16: 1e8, 24: 2e8, 36: 3e8, 54: 4e8, 64: 5e8})
    assert gate.limit == 64


async def test_a_higher_limit_that_brings_nothing_is_given_up_and_tried_again_later() -> None:
    clock = Clock()
    gate = Gate(64, 2**30, clock)
    seen = []
    for _ in range(14):
        await run_windows(gate, clock, 1, {16: 1e8})
        seen.append(gate.limit)
    assert seen[:2] == [24, 16]
    assert set(seen[2:9]) == {16}
    assert 24 in seen[9:]


async def test_a_request_to_slow_down_halves_the_limit_once_a_second() -> None:
    clock = Clock()
    gate = Gate(64, 2**30, clock)
    for _ in range(20):
        gate.throttled()
    assert gate.limit == 8
    clock.now += 1.5
    gate.throttled()
    assert gate.limit == 4
    for _ in range(20):
        clock.now += 1.5
        gate.throttled()
    assert gate.limit == 1


async def test_bytes_in_flight_are_bounded_and_a_larger_request_goes_alone() -> None:
    gate = Gate(64, 100, Clock())
    await gate.enter(60)
    second = asyncio.ensure_future(gate.enter(60))
    third = asyncio.ensure_future(gate.enter(1_000))
    await asyncio.sleep(0)
    assert (gate.in_flight, gate.bytes_in_flight) == (1, 60)
    gate.leave(60, 60)
    await second
    assert not third.done()
    gate.leave(60, 60)
    await third
    assert gate.bytes_in_flight == 1_000


@pytest.mark.parametrize("admitted_first", [True, False])
async def test_a_cancelled_wait_leaves_no_place_taken(admitted_first: bool) -> None:
    gate = Gate(1, 100, Clock())
    await gate.enter(1)
    waiting = asyncio.ensure_future(gate.enter(1))
    await asyncio.sleep(0)
    if admitted_first:
        gate.leave(1, 1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    if not admitted_first:
        gate.leave(1, 1)
    assert (gate.in_flight, gate.bytes_in_flight) == (0, 0)
    await asyncio.wait_for(gate.enter(1), 1)


def test_the_delay_follows_what_is_usual_and_not_the_rare_stall() -> None:
    hedge = Hedge()
    assert hedge.after_s == 5.0
    for number in range(300):
        hedge.learn(5.0 if number % 50 == 0 else 0.1)
    assert hedge.after_s == pytest.approx(0.15)


@pytest.mark.parametrize("stalled", range(6))
def test_from_the_third_answer_on_the_delay_is_a_few_times_the_usual_one(stalled: int) -> None:
    hedge = Hedge()
    delays = []
    for number in range(15):
        hedge.learn(5.0 if number == stalled else 0.1)
        delays.append(hedge.after_s)
    assert delays[0] == 5.0
    assert delays[1:] == pytest.approx([0.4] * 14)


def test_second_requests_stay_within_their_budget() -> None:
    hedge = Hedge()
    sent = 0
    for _ in range(1_000):
        hedge.learn(0.1)
        sent += hedge.may_send(0.2)
    assert 20 <= sent <= 40


def test_what_is_left_of_the_budget_is_kept_for_the_longest_silences() -> None:
    hedge = Hedge()
    for _ in range(1_000):
        hedge.learn(0.1)
    assert hedge.after_s == pytest.approx(0.15)
    doubtful = sum(hedge.may_send(0.2) for _ in range(20))
    assert doubtful > 0
    assert sum(hedge.may_send(5.0) for _ in range(20)) == 3
    assert not hedge.may_send(5.0)

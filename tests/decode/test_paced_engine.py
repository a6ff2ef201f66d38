"""When the engines run with the library's pipeline: a clock and engines that a test moves."""

from __future__ import annotations

import numpy as np
import pytest

from streamloader.decode.gpu import PacedEngine


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Engine:
    """Takes as long for a picture as the test says, and notes its calls."""

    version = "1.2.3"

    def __init__(self, clock, picture_s, calls, pipelined):
        self.clock, self.picture_s, self.calls, self.pipelined = clock, picture_s, calls, pipelined
        self.closed = False

    def decode(self, addresses, lengths, images, stream):
        self.calls.append(self.pipelined)
        self.clock.now_s += self.picture_s[self.pipelined] * len(addresses)

    def close(self):
        self.closed = True


@pytest.fixture
def rig():
    clock, picture_s, calls, opened = Clock(), {False: 2.0, True: 1.0}, [], []

    def open_engine(pipelined):
        opened.append(Engine(clock, picture_s, calls, pipelined))
        return opened[-1]

    return PacedEngine(open_engine, clock), clock, picture_s, calls, opened


def run(engine, clock, *, calls, idle_s=0.0):
    for _ in range(calls):
        clock.now_s += idle_s
        engine.decode(np.zeros(4, np.uint64), np.zeros(4, np.uint64), np.zeros(4), 0)


def test_a_training_step_beside_it_never_sees_the_pipeline(rig):
    engine, clock, _, calls, opened = rig
    run(engine, clock, calls=5_000, idle_s=8.0)
    assert not any(calls)
    assert len(opened) == 1


def test_a_consumer_that_fills_up_once_is_no_reason_for_it(rig):
    engine, clock, _, calls, _ = rig
    for _ in range(50):
        run(engine, clock, calls=12)
        clock.now_s += 1_000.0
    assert not any(calls)


def test_engines_that_limit_take_the_faster_way(rig):
    engine, clock, _, calls, _ = rig
    run(engine, clock, calls=200)
    assert calls[0] is False
    assert all(calls[60:])


def test_the_slower_way_is_left_but_tried_again(rig):
    engine, clock, picture_s, calls, _ = rig
    picture_s[True] = 6.0
    run(engine, clock, calls=2_000)
    assert 0 < sum(calls) < 100
    picture_s[True] = 1.0
    run(engine, clock, calls=2_000)
    assert sum(calls[2_000:]) > 1_500


def test_it_goes_back_when_the_engines_have_time_again(rig):
    engine, clock, _, calls, _ = rig
    run(engine, clock, calls=200)
    run(engine, clock, calls=100, idle_s=8.0)
    assert not any(calls[-60:])


def test_what_an_engine_raises_is_passed_on_and_both_are_closed(rig):
    engine, clock, _, _, opened = rig
    run(engine, clock, calls=200)

    def refuse(*_):
        raise RuntimeError("bad JPEG")

    opened[1].decode = refuse
    with pytest.raises(RuntimeError, match="bad JPEG"):
        run(engine, clock, calls=1)
    assert engine.version == "1.2.3"
    engine.close()
    assert [each.closed for each in opened] == [True, True]

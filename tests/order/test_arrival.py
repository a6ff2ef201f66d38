"""Batches by arrival: whatever comes first, each sample once, ranks in step, exact resume."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamloader.errors import ConfigError, StateMismatch
from streamloader.order import (
    ArrivalPlan,
    ArrivalPool,
    Arrived,
    BatchRows,
    EpochOrder,
    GapOrder,
    Gaps,
    LoaderState,
    Order,
    OrderSpec,
    RankPlan,
    SizedOrder,
    WeightedOrder,
    Weights,
    look_ahead_rows,
    merge_states,
    state_after,
)


def spec_of(num: int, block: int = 3, lanes: int = 4, shuffle: str = "window") -> OrderSpec:
    return OrderSpec(num, block, 7, shuffle, lanes if shuffle == "window" else 1, 2)  # type: ignore[arg-type]


def blank(num: int, epoch: int = 0) -> LoaderState:
    return LoaderState(
        fingerprint="f", epoch=epoch, position=0, seed=7, lanes=4, window=2, shuffle="window",
        mode="arrival",
    )  # fmt: skip


def through_json(state: LoaderState) -> LoaderState:
    return LoaderState.parse(json.loads(json.dumps(state.to_dict())))


class Rank:
    """One rank of a run: a pool that rows come into by chance, and the consumer's state."""

    def __init__(
        self,
        order: Order,
        state: LoaderState,
        *,
        batch_size: int,
        rank: int,
        world_size: int,
        rng: random.Random,
        last_batch: str = "pad",
        stalled: float = 0.3,
    ) -> None:
        if state.gaps is not None:
            order = GapOrder(order, state.gaps)
        self.state = state
        self.plan = ArrivalPlan(
            order,
            batch_size=batch_size,
            rank=rank,
            world_size=world_size,
            last_batch=last_batch,  # type: ignore[arg-type]
            start=state.position,
            arrived=state.arrived,
        )
        self._pool = ArrivalPool(self.plan)
        self._rng = rng
        self._stalled = stalled
        self._tags: dict[int, int] = {}
        self._came = np.zeros(1000, dtype=np.bool_)
        self._planned = 0

    def batches(self) -> Iterator[BatchRows]:
        for _ in range(self.plan.num_batches):
            batch = self._next()
            self.state = through_json(state_after(self.state, self.plan, batch))
            yield batch

    def _next(self) -> BatchRows:
        """Pieces come one by one, a part of them only when nothing else can make a batch."""
        while True:
            while self._planned < self.plan.num_batches and self._rng.random() < 0.8:
                planned = self.plan.batch(self._planned)
                if not self._pool.has_room(planned):
                    break
                tags = [self._tags.setdefault(p, len(self._tags)) for p in planned.piece.tolist()]
                self._pool.add(planned, np.array(tags, dtype=np.int64))
                self._planned += 1
            waiting = [tag for tag in self._tags.values() if not self._came[tag]]
            taken = self._pool.take(self._came)
            if taken is not None:
                return taken[0]
            if waiting:
                late = [t for t in waiting if t * 37 % 100 < 100 * self._stalled]
                prompt = [t for t in waiting if t not in late]
                self._came[self._rng.choice(prompt or late)] = True


def ranks_of(
    order: Order, states: list[LoaderState], batch_size: int, rng: random.Random, **options: Any
) -> list[Rank]:
    return [
        Rank(order, state, batch_size=batch_size, rank=rank, world_size=len(states), rng=rng,
             **options)
        for rank, state in enumerate(states)
    ]  # fmt: skip


def steps(ranks: list[Rank], most: int | None = None) -> list[int]:
    """Positions of the order's samples that some steps of all ranks deliver; checks the step."""
    seen: list[int] = []
    assert len({rank.plan.num_batches for rank in ranks}) == 1
    number = ranks[0].plan.num_batches
    batches = [rank.batches() for rank in ranks]
    for _ in range(number if most is None else min(most, number)):
        for iterator in batches:
            batch = next(iterator)
            seen += batch.samples[batch.valid].tolist()
    return seen


@settings(max_examples=60, deadline=None)
@given(
    num=st.integers(1, 120),
    world_size=st.integers(1, 8),
    batch_size=st.integers(1, 9),
    block=st.integers(1, 7),
    lanes=st.sampled_from([1, 3, 4, 8]),
    shuffle=st.sampled_from(["window", "global", "none"]),
    last_batch=st.sampled_from(["pad", "partial"]),
    seed=st.integers(0, 10_000),
)
def test_each_sample_comes_once_on_ranks_in_step(
    num: int, world_size: int, batch_size: int, block: int, lanes: int, shuffle: str,
    last_batch: str, seed: int,
) -> None:  # fmt: skip
    spec = spec_of(num, block, lanes, shuffle)
    states = [blank(num)] * world_size
    rng = random.Random(seed)
    ranks = ranks_of(EpochOrder(spec, 0), states, batch_size, rng, last_batch=last_batch)
    expected = RankPlan(
        EpochOrder(spec, 0),
        batch_size=batch_size,
        rank=0,
        world_size=world_size,
        last_batch=last_batch,  # type: ignore[arg-type]
    )
    assert ranks[0].plan.num_batches == expected.num_batches
    assert sorted(steps(ranks)) == list(range(num))
    for rank in ranks:
        assert rank.state.position == num
        assert rank.state.arrived is None


@pytest.mark.parametrize("last_batch", ["pad", "drop", "partial"])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_shapes_are_those_of_the_planned_order(last_batch: str, world_size: int) -> None:
    order = EpochOrder(spec_of(101), 0)
    for rank in range(world_size):
        options: dict[str, Any] = {
            "batch_size": 8, "rank": rank, "world_size": world_size, "last_batch": last_batch,
        }  # fmt: skip
        plan = RankPlan(order, **options)
        by_arrival = Rank(order, blank(101), rng=random.Random(rank), **options)
        for number, batch in enumerate(by_arrival.batches()):
            planned = plan.batch(number)
            assert batch.number == number
            assert batch.valid.sum() == planned.valid.sum()
            assert batch.samples.shape == planned.samples.shape


def test_rows_are_the_planned_ones_while_everything_comes_in_turn() -> None:
    order = EpochOrder(spec_of(90), 0)
    plan = ArrivalPlan(order, batch_size=8, rank=1, world_size=2)
    in_turn = RankPlan(order, batch_size=8, rank=1, world_size=2)
    for number in range(plan.num_batches):
        ours, theirs = plan.batch(number), in_turn.batch(number)
        rows = theirs.valid
        for name in ("positions", "samples", "piece", "piece_first", "piece_count"):
            assert getattr(ours, name)[ours.valid].tolist() == getattr(theirs, name)[rows].tolist()
        assert (ours.piece_last_batch[ours.valid] >= theirs.piece_last_batch[rows]).all()


def test_drop_leaves_out_the_same_samples_as_the_planned_order() -> None:
    order = EpochOrder(spec_of(100), 0)
    planned = []
    for rank in range(3):
        plan = RankPlan(order, batch_size=7, rank=rank, world_size=3, last_batch="drop")
        for number in range(plan.num_batches):
            planned += plan.batch(number).samples.tolist()
    ranks = ranks_of(order, [blank(100)] * 3, 7, random.Random(3), last_batch="drop")
    assert sorted(steps(ranks)) == sorted(planned)
    assert {rank.state.position for rank in ranks} == {100}


@settings(max_examples=50, deadline=None)
@given(
    num=st.integers(1, 150),
    parts=st.lists(
        st.tuples(st.integers(1, 5), st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=5
    ),
    last_batch=st.sampled_from(["pad", "partial"]),
    kind=st.sampled_from(["window", "global", "none", "sized"]),
    seed=st.integers(0, 10_000),
)
def test_the_states_of_all_ranks_go_on_on_any_ranks_and_batch_size(
    num: int, parts: list[tuple[int, int, int]], last_batch: str, kind: str, seed: int
) -> None:
    rng = random.Random(seed)
    if kind == "sized":
        order: Order = SizedOrder(spec_of(2 * num), 0, num)
        wanted = sorted(order.locate(np.arange(num)).sample.tolist())
    else:
        order, wanted = EpochOrder(spec_of(num, shuffle=kind), 0), list(range(num))
    state, seen = blank(num), []
    for world_size, batch_size, most in parts:
        ranks = ranks_of(order, [state] * world_size, batch_size, rng, last_batch=last_batch)
        seen += steps(ranks, most)
        states = [rank.state for rank in ranks]
        rng.shuffle(states)
        state = through_json(merge_states(states, 0, lambda _: order))
        assert state.position == len(seen)
    # The rest in the planned order: what was made up for by arrival is exact there too.
    if state.gaps is not None:
        order = GapOrder(order, state.gaps)
    for rank in range(2):
        plan = RankPlan(order, batch_size=4, rank=rank, world_size=2, start=state.position)
        for number in range(plan.num_batches):
            batch = plan.batch(number)
            seen += batch.samples[batch.valid].tolist()
    assert sorted(seen) == wanted


@settings(max_examples=50, deadline=None)
@given(
    num=st.integers(1, 150),
    world_size=st.integers(1, 5),
    parts=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=5),
    last_batch=st.sampled_from(["pad", "partial"]),
    gaps=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_each_rank_goes_on_from_its_own_state_with_any_batch_size(
    num: int, world_size: int, parts: list[tuple[int, int]], last_batch: str, gaps: bool, seed: int
) -> None:
    rng = random.Random(seed)
    order = EpochOrder(spec_of(num), 0)
    state, seen = blank(num), []
    if gaps:
        ranks = ranks_of(order, [state, state], 3, rng)
        seen += steps(ranks, 4)
        state = merge_states([rank.state for rank in ranks], 0, lambda _: order)
    states = [state] * world_size
    for batch_size, most in [*parts, (4, num)]:
        ranks = ranks_of(order, states, batch_size, rng, last_batch=last_batch)
        seen += steps(ranks, most)
        states = [rank.state for rank in ranks]
    assert sorted(seen) == list(range(num))
    assert {state.position for state in states} == {num}


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_resume_after_every_batch_twice_in_a_row(world_size: int) -> None:
    num = 77
    order = EpochOrder(spec_of(num), 0)
    total = ranks_of(order, [blank(num)] * world_size, 4, random.Random(0))[0].plan.num_batches
    for stop in range(total + 1):
        rng = random.Random(stop)
        ranks = ranks_of(order, [blank(num)] * world_size, 4, rng)
        seen = steps(ranks, stop)
        for _ in range(2):
            left = total - stop
            ranks = ranks_of(order, [rank.state for rank in ranks], 4, rng)
            assert ranks[0].plan.num_batches == left
        seen += steps(ranks)
        assert sorted(seen) == list(range(num))


def test_no_batch_without_a_valid_row_is_added_by_a_smaller_batch_size() -> None:
    order = EpochOrder(spec_of(65), 0)
    ranks = ranks_of(order, [blank(65)] * 2, 32, random.Random(1))
    steps(ranks, 1)
    ranks = ranks_of(order, [rank.state for rank in ranks], 1, random.Random(2))
    assert ranks[0].plan.num_batches == 1


def test_drop_and_pad_may_change_at_a_resume() -> None:
    order = EpochOrder(spec_of(100), 0)
    for before, after in (("pad", "drop"), ("drop", "pad"), ("partial", "drop")):
        ranks = ranks_of(order, [blank(100)] * 3, 7, random.Random(5), last_batch=before)
        seen = steps(ranks, 3)
        states = [rank.state for rank in ranks]
        ranks = ranks_of(order, states, 7, random.Random(6), last_batch=after)
        seen += steps(ranks)
        assert len(set(seen)) == len(seen)
        assert len(seen) == (100 if after == "pad" else 100 // 21 * 21)


def test_what_is_drawn_by_weight_comes_as_often_as_it_was_drawn() -> None:
    weights = Weights(np.arange(1, 31), 30)
    order = WeightedOrder(spec_of(30), 2, 90, weights)
    drawn = sorted(order.locate(np.arange(90)).sample.tolist())
    ranks = ranks_of(order, [blank(90)] * 2, 8, random.Random(1))
    seen = steps(ranks, 3)
    state = merge_states([rank.state for rank in ranks], 0, lambda _: order)
    seen += steps(ranks_of(order, [state] * 3, 5, random.Random(2)))
    assert sorted(seen) == drawn


@pytest.mark.parametrize("batch_size", [1, 16, 256, 8192])
def test_a_state_is_small_whatever_stalls(batch_size: int) -> None:
    bound = look_ahead_rows(batch_size)
    num = 3 * bound
    order = EpochOrder(OrderSpec(num, 16, 1, "window", 8, 2), 0)
    plan = ArrivalPlan(order, batch_size=batch_size, rank=0, world_size=1)
    pool, state, planned = ArrivalPool(plan), blank(num), 0
    ready = np.arange(num) > 0  # the very first row stalls
    while True:
        batch = plan.batch(planned)
        if not pool.has_room(batch):
            break
        pool.add(batch, batch.own_rows)  # type: ignore[arg-type]
        planned += 1
        taken = pool.take(ready)
        if taken is not None:
            state = state_after(state, plan, taken[0])
    assert planned * batch_size >= bound - batch_size
    assert state.arrived is not None
    assert state.arrived.base == 0
    assert state.arrived.end <= bound
    assert len(json.dumps(state.to_dict())) < 1000 + bound // 4


def test_a_stalled_row_delays_no_batch_that_others_can_fill() -> None:
    plan = ArrivalPlan(EpochOrder(spec_of(200), 0), batch_size=8, rank=0, world_size=1)
    pool = ArrivalPool(plan)
    for number in range(10):
        planned = plan.batch(number)
        pool.add(planned, planned.own_rows)  # type: ignore[arg-type]
    stalled = {3, 8, 9}
    ready = ~np.isin(np.arange(200), list(stalled))
    made = 0
    while (taken := pool.take(ready)) is not None:
        made += 1
        assert not stalled & set(taken[0].own_rows.tolist())  # type: ignore[union-attr]
    assert made == 9
    last = pool.take(np.ones(200, dtype=np.bool_))
    assert last is not None
    assert stalled <= set(last[0].own_rows.tolist())  # type: ignore[union-attr]


def states_in_the_middle(world_size: int = 3) -> list[LoaderState]:
    order = EpochOrder(spec_of(100), 0)
    ranks = ranks_of(order, [blank(100)] * world_size, 4, random.Random(1))
    steps(ranks, 4)
    return [rank.state for rank in ranks]


def refused(states: list[LoaderState], words: str) -> None:
    with pytest.raises(StateMismatch, match=words):
        merge_states(states, 0, lambda _: EpochOrder(spec_of(100), 0))


def test_states_that_do_not_belong_together_are_refused() -> None:
    states = states_in_the_middle()
    refused(states[:2], "all 3 ranks are needed.* got 2, none of rank 2")
    refused([states[0], *states], "all 3 ranks are needed.* got 4")
    refused([states[0], states[0], states[2]], "none of rank 1")
    refused([*states[:2], dataclasses.replace(states[2], epoch=1)], "not saved after the same")
    refused([*states[:2], blank(100)], "position 0 of epoch 0")
    refused([*states[:2], states_in_the_middle(4)[2]], "of 3 ranks with batch_size=4, and of 4")


def test_equal_states_of_the_planned_order_merge_into_one() -> None:
    state = dataclasses.replace(blank(100), position=20, skipped=1, skipped_digest="0a")
    other = dataclasses.replace(state, skipped=0, skipped_digest="")
    merged = [
        merge_states([state, other], r, lambda _: EpochOrder(spec_of(100), 0)) for r in (0, 1)
    ]
    assert merged == [state, other]


ARRIVED = Arrived(start=0, batch_size=4, world_size=3, rank=1, rows=16, base=9, ahead="f1")


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("arrived", 7, "'arrived' must be null or a dict"),
        ("arrived", {"base": 1}, "'arrived' must be null or a dict"),
        ("arrived", {**ARRIVED.to_dict(), "rank": 3}, "'arrived.rank' must be an integer from 0"),
        ("arrived", {**ARRIVED.to_dict(), "rows": -1}, "'arrived.rows' must be"),
        ("arrived", {**ARRIVED.to_dict(), "ahead": "f"}, "'arrived.ahead' must be hex"),
        ("arrived", {**ARRIVED.to_dict(), "ahead": None}, "'arrived.ahead' must be hex"),
        ("arrived", {**ARRIVED.to_dict(), "rows": 12}, "counts 12 rows and names 14"),
        ("gaps", [], "'gaps' must be null or a dict"),
        ("gaps", {"first": 3, "end": 2, "bits": "80"}, "'gaps.end' must be"),
        ("gaps", {"first": 3, "end": 4, "bits": "xy"}, "'gaps.bits' must be hex"),
        ("gaps", {"first": 3, "end": 4, "bits": "ff"}, "must name open positions before its end"),
        ("gaps", {"first": 3, "end": 4, "bits": ""}, "must name open positions before its end"),
    ],
)
def test_a_malformed_part_of_a_state_is_named(name: str, change: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        LoaderState.parse({**blank(100).to_dict(), name: change})


def test_a_state_beyond_the_end_of_the_epoch_is_refused() -> None:
    for change in (
        {"position": 101},
        {"gaps": Gaps(3, 101, "a0")},
        {"arrived": dataclasses.replace(ARRIVED, start=101)},
        {"arrived": dataclasses.replace(ARRIVED, base=90, rows=200)},
    ):
        with pytest.raises(
            ConfigError, match=f"{next(iter(change))!r} lies beyond the 100 samples"
        ):
            dataclasses.replace(blank(100), **change).check_fits(100)  # type: ignore[arg-type]
    dataclasses.replace(blank(100), arrived=ARRIVED).check_fits(100)


def test_open_positions_come_first_and_each_window_is_kept_to_its_last() -> None:
    order = EpochOrder(spec_of(60), 0)
    open_positions = np.array([2, 3, 11, 17], dtype=np.int64)
    gaps = Gaps.of(open_positions, 40)
    assert gaps is not None
    assert gaps.begin == 36
    made_up = GapOrder(order, gaps)
    plain, first = order.locate(np.arange(60)), made_up.locate(np.arange(36, 60))
    assert first.sample.tolist() == plain.sample[[2, 3, 11, 17, *range(40, 60)]].tolist()
    assert (first.window_end > np.arange(36, 60)).all()
    assert made_up.true_positions(np.arange(35, 42)).tolist() == [35, 2, 3, 11, 17, 40, 41]


def test_positions_without_a_hole_are_no_gaps() -> None:
    assert Gaps.of(np.arange(5, 9), 9) is None
    assert Gaps.of(np.empty(0, dtype=np.int64), 9) is None

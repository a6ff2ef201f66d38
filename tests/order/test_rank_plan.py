import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamloader.errors import ConfigError
from streamloader.order import BatchPlan, EpochOrder, LastBatch, OrderSpec, RankPlan


def order_of(num_samples: int, block: int = 3, lanes: int = 8, window: int = 2) -> EpochOrder:
    return EpochOrder(OrderSpec(num_samples, block, 1, "window", lanes, window), 1)


def plans_of(order: EpochOrder, world_size: int, batch_size: int, **options: Any) -> list[RankPlan]:
    return [
        RankPlan(order, batch_size=batch_size, rank=rank, world_size=world_size, **options)
        for rank in range(world_size)
    ]


def check_all_ranks(
    order: EpochOrder, world_size: int, batch_size: int, last_batch: LastBatch, start: int = 0
) -> None:
    """Everything that must hold of one global batch after another, over all ranks."""
    end = order.spec.num_samples
    samples = order.locate(np.arange(end)).sample
    plans = plans_of(order, world_size, batch_size, last_batch=last_batch, start=start)
    whole, rest = divmod(end - start, batch_size * world_size)
    steps = whole + (rest > 0 and last_batch != "drop")
    assert {plan.num_batches for plan in plans} == {steps}
    for number in range(steps):
        batches = [plan.batch(number) for plan in plans]
        low = start + number * batch_size * world_size
        high = min(low + batch_size * world_size, end)
        taken = np.concatenate([batch.positions[batch.valid] for batch in batches])
        assert np.array_equal(np.sort(taken), np.arange(low, high))
        for batch in batches:
            check_rows(batch, samples, batch_size, last_batch)
            assert (batch.number, batch.next_position) == (number, high)


def check_rows(
    batch: BatchPlan, samples: np.ndarray, batch_size: int, last_batch: LastBatch
) -> None:
    rows = batch.positions.size
    assert rows == batch_size if last_batch != "partial" else 1 <= rows <= batch_size
    assert np.all(np.diff(batch.positions) > 0)
    assert np.array_equal(batch.valid, batch.positions < samples.size)
    if last_batch == "drop":
        assert batch.valid.all()
    if last_batch == "partial":
        assert batch.valid.all() or (rows == 1 and not batch.valid[0])
    real = batch.valid
    assert np.array_equal(batch.samples[real], samples[batch.positions[real]])
    assert np.all(batch.samples[~real] == samples[0])
    assert np.all(batch.piece_first <= batch.samples)
    assert np.all(batch.samples < batch.piece_first + batch.piece_count)
    assert np.all(batch.piece_last_batch >= batch.number)


@pytest.mark.parametrize("num_samples", [1, 2, 7, 90])
@pytest.mark.parametrize("last_batch", ["pad", "drop", "partial"])
def test_ranks_share_every_global_batch_in_equal_steps(
    num_samples: int, last_batch: LastBatch
) -> None:
    orders = itertools.cycle((order_of(num_samples, 3, 8), order_of(num_samples, 4, 5)))
    for world_size, batch_size in ((1, 1), (1, 9), (2, 3), (3, 4), (5, 1), (6, 5), (8, 2)):
        check_all_ranks(next(orders), world_size, batch_size, last_batch)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5, 6, 7, 8, 12])
def test_ranks_share_every_global_batch_everywhere(world_size: int) -> None:
    rules = itertools.cycle(("pad", "drop", "partial"))
    shapes = itertools.cycle(itertools.product((1, 3, 5), (1, 4, 7, 256), (1, 2, 3)))
    for num_samples, batch_size in itertools.product(range(1, 201), range(1, 10)):
        block, lanes, window = next(shapes)
        order = order_of(num_samples, block, lanes, window)
        check_all_ranks(order, world_size, batch_size, next(rules), start=num_samples % 3)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("world_size", [96, 100, 1000])
def test_many_ranks_share_every_global_batch(world_size: int) -> None:
    for batch_size in (1, 4, 9):
        check_all_ranks(order_of(20_011, 9, 64), world_size, batch_size, "pad")


@pytest.mark.parametrize("shuffle", ["none", "global"])
def test_modes_without_lanes_share_too(shuffle: str) -> None:
    order = EpochOrder(OrderSpec.choose(103, 7, shuffle=shuffle), 0)
    for world_size, batch_size in ((1, 9), (3, 4), (8, 3)):
        check_all_ranks(order, world_size, batch_size, "pad")
    check_all_ranks(order, 3, 4, "partial", start=50)


def test_stored_order_gives_ranks_consecutive_runs() -> None:
    order = EpochOrder(OrderSpec.choose(100, 7, shuffle=False), 0)
    batches = [plan.batch(0).samples.tolist() for plan in plans_of(order, 3, 4)]
    assert batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_ranks_that_divide_the_lanes_take_a_plain_stride(world_size: int) -> None:
    for plan in plans_of(order_of(200), world_size, 5, start=11):
        for number in range(plan.num_batches):
            assert np.all(plan.batch(number).positions % world_size == plan.rank)


def test_more_ranks_and_rows_than_samples_end_in_equal_steps() -> None:
    order = order_of(3, 9, 1)
    padded = [plan.batch(0) for plan in plans_of(order, 4, 8)]
    assert sum(int(batch.valid.sum()) for batch in padded) == 3
    assert any(not batch.valid.any() for batch in padded)
    partial = [plan.batch(0) for plan in plans_of(order, 4, 8, last_batch="partial")]
    assert sorted(batch.valid.size for batch in partial) == [1, 1, 1, 3]
    assert {plan.num_batches for plan in plans_of(order, 4, 8, last_batch="drop")} == {0}


def test_padding_is_read_as_single_samples_of_position_0() -> None:
    order = order_of(100, 9)
    plan = plans_of(order, 1, 64)[0]
    last = plan.batch(1)
    filler = ~last.valid
    assert filler.sum() == 28
    assert set(last.samples[filler]) == {order.locate(0).sample[0]}
    assert np.array_equal(last.piece_first[filler], last.samples[filler])
    assert set(last.piece_count[filler]) == {1}
    assert not set(last.piece[filler]) & set(order.locate(np.arange(100)).piece)
    assert set(last.piece_last_batch[filler]) == {1}


@pytest.mark.parametrize(("world_size", "batch_size"), [(1, 7), (3, 4), (8, 2)])
def test_no_piece_is_used_after_its_last_batch(world_size: int, batch_size: int) -> None:
    order = order_of(500, 5)
    for plan in plans_of(order, world_size, batch_size, start=13):
        promised: dict[int, int] = {}
        for number in range(plan.num_batches):
            batch = plan.batch(number)
            for piece, last in np.stack([batch.piece, batch.piece_last_batch], axis=1).tolist():
                assert promised.setdefault(piece, last) == last
                assert number <= last < plan.num_batches
        slack = [promised[p] for p in promised]
        assert min(slack) < plan.num_batches - 1


def test_batches_may_be_asked_for_in_any_order() -> None:
    order = order_of(20_000, 9, 16)
    plan = plans_of(order, 3, 8)[1]
    forward = [plan.batch(number).samples.tolist() for number in range(plan.num_batches)]
    assert plan.num_batches > 600
    for number in (0, 833, 5, 600, 511, 512, 513, 1):
        assert plan.batch(number).samples.tolist() == forward[number]


@pytest.mark.parametrize(("world_size", "batch_size"), [(1, 5), (3, 4), (5, 2), (8, 3)])
def test_resume_at_any_batch_gives_the_same_batches(world_size: int, batch_size: int) -> None:
    order = order_of(80, 4)
    for plan in plans_of(order, world_size, batch_size):
        batches = [plan.batch(number) for number in range(plan.num_batches)]
        for done in range(plan.num_batches):
            once = rest_of(plan, batches[done].next_position)
            assert [b.samples.tolist() for b in once] == [
                b.samples.tolist() for b in batches[done + 1 :]
            ]
            if len(once) > 1:
                twice = rest_of(plan, once[0].next_position)
                assert [b.samples.tolist() for b in twice] == [b.samples.tolist() for b in once[1:]]


def rest_of(plan: RankPlan, start: int) -> list[BatchPlan]:
    resumed = RankPlan(
        plan.order,
        batch_size=plan.batch_size,
        rank=plan.rank,
        world_size=plan.world_size,
        start=start,
    )
    return [resumed.batch(number) for number in range(resumed.num_batches)]


def test_a_finished_epoch_has_no_batches_left() -> None:
    order = order_of(100)
    for rule in ("pad", "drop", "partial"):
        assert plans_of(order, 1, 8, last_batch=rule, start=100)[0].num_batches == 0


def test_resume_from_every_position_on_another_world_loses_and_repeats_nothing() -> None:
    order = order_of(60, 4)
    for start in (*range(0, 61, 5), 1, 58, 59):
        check_all_ranks(order, 3, 4, "pad", start=start)


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_chains_of_resumes_deliver_each_sample_once(data: st.DataObject) -> None:
    num_samples = data.draw(st.integers(1, 120))
    block, lanes = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 20))
    order = order_of(num_samples, block, lanes, data.draw(st.integers(1, 4)))
    delivered: list[int] = []
    position = 0
    while position < num_samples:
        world_size, batch_size = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 9))
        plans = plans_of(order, world_size, batch_size, start=position)
        steps = data.draw(st.integers(1, plans[0].num_batches))
        for number in range(steps):
            batches = [plan.batch(number) for plan in plans]
            rows = np.concatenate([batch.positions[batch.valid] for batch in batches])
            found = np.concatenate([batch.samples[batch.valid] for batch in batches])
            delivered += found[np.argsort(rows)].tolist()
            position = batches[0].next_position
    assert delivered == order.locate(np.arange(num_samples)).sample.tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 0}, "batch_size must be an integer from 1"),
        ({"world_size": 0}, "world_size must be an integer from 1"),
        ({"rank": 2}, "rank must be an integer from 0 to 1, got 2"),
        ({"rank": -1}, "rank must be an integer from 0 to 1, got -1"),
        ({"start": 101}, "start must be an integer from 0 to 100, got 101"),
        ({"last_batch": "keep"}, "last_batch must be one of .*got 'keep'"),
    ],
)
def test_arguments_out_of_range_are_refused(change: dict[str, Any], message: str) -> None:
    arguments = {"batch_size": 4, "rank": 0, "world_size": 2, **change}
    with pytest.raises(ConfigError, match=message):
        RankPlan(order_of(100), **arguments)


def test_a_batch_that_does_not_exist_is_refused() -> None:
    plan = plans_of(order_of(100), 1, 8)[0]
    with pytest.raises(ConfigError, match="batch number must be an integer from 0 to 12, got 13"):
        plan.batch(13)

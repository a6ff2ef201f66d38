"""Subsets, epochs of another length, and drawing by weight."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamloader import ConfigError
from streamloader.order import (
    EpochOrder,
    OrderSpec,
    RankPlan,
    Selection,
    SizedOrder,
    WeightedOrder,
    Weights,
)


def spec(samples=97, block=5, shuffle=True):
    return OrderSpec.choose(samples, block, seed=3, shuffle=shuffle)


@given(st.sets(st.integers(0, 60), min_size=1), st.data())
def test_runs_of_a_selection_are_its_samples_in_order(numbers, data):
    selection = Selection(sorted(numbers), 61)
    first = data.draw(st.integers(0, len(numbers) - 1))
    count = data.draw(st.integers(1, len(numbers) - first))
    runs = selection.runs(first, count)
    told = [sample for start, length in runs for sample in range(start, start + length)]
    assert told == sorted(numbers)[first : first + count]
    assert all(a + n < b for (a, n), (b, _) in pairwise(runs))
    assert selection.samples(np.arange(len(numbers))).tolist() == sorted(numbers)


def test_order_and_repeats_of_a_selection_do_not_count():
    assert Selection([5, 1, 5], 9).digest == Selection([1, 5], 9).digest
    assert Selection([1, 5], 9).digest != Selection([1, 4], 9).digest


@pytest.mark.parametrize("numbers", [[], [9], [-1], [0.5], ["a"], [[1]]])
def test_what_is_no_sample_of_the_data_set_is_refused(numbers):
    with pytest.raises(ConfigError, match="subset"):
        Selection(numbers, 9)


@pytest.mark.parametrize("shuffle", [True, False, "global"])
@pytest.mark.parametrize("size", [1, 10, 96, 97, 98, 250])
def test_epochs_of_another_length_are_full_passes_cut_in_turn(size, shuffle):
    whole = spec(shuffle=shuffle)
    stream = []
    epochs = -(-3 * 97 // size)
    for epoch in range(epochs):
        stream += SizedOrder(whole, epoch, size).locate(np.arange(size)).sample.tolist()
    for number in range(3):
        part = stream[number * 97 : (number + 1) * 97]
        assert part == EpochOrder(whole, number).locate(np.arange(97)).sample.tolist()
        assert sorted(part) == list(range(97))


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("size", [40, 97, 230])
def test_ranks_share_an_epoch_of_another_length_and_find_each_sample_in_its_piece(world_size, size):
    order = SizedOrder(spec(), 4, size)
    wanted = order.locate(np.arange(size)).sample.tolist()
    got = {}
    for rank in range(world_size):
        plan = RankPlan(order, batch_size=7, rank=rank, world_size=world_size)
        for number in range(plan.num_batches):
            batch = plan.batch(number)
            inside = (batch.piece_first <= batch.samples) & (
                batch.samples < batch.piece_first + batch.piece_count
            )
            assert inside.all()
            assert (batch.piece_last_batch >= number).all()
            for place in np.flatnonzero(batch.valid).tolist():
                got[int(batch.positions[place])] = int(batch.samples[place])
    assert [got[position] for position in range(size)] == wanted


@pytest.mark.parametrize("shuffle", [True, False, "global"])
@pytest.mark.parametrize("samples", [1, 10, 97])
def test_pieces_of_different_passes_are_told_apart(samples, shuffle):
    size = 50 * samples
    located = SizedOrder(spec(samples, shuffle=shuffle), 3, size).locate(np.arange(size))
    passes = [set(part.tolist()) for part in np.split(located.piece, 50)]
    assert sum(len(part) for part in passes) == len(set.union(*passes))


def test_samples_are_drawn_as_often_as_their_weights_say():
    weights = Weights([0, 1, 2, 5], 4)
    order = WeightedOrder(spec(samples=4), 0, 80_000, weights)
    counts = np.bincount(order.locate(np.arange(80_000)).sample, minlength=4)
    assert counts[0] == 0
    assert np.allclose(counts[1:] / 80_000, [1 / 8, 2 / 8, 5 / 8], atol=0.01)


def test_draws_depend_on_seed_epoch_and_position_alone():
    weights = Weights(np.ones(50), 50)
    whole = spec(samples=50)
    drawn = WeightedOrder(whole, 2, 30, weights).locate(np.arange(30)).sample
    backwards = WeightedOrder(whole, 2, 30, weights).locate(np.arange(29, -1, -1)).sample
    assert drawn.tolist() == backwards[::-1].tolist()
    assert (
        drawn.tolist() != WeightedOrder(whole, 3, 30, weights).locate(np.arange(30)).sample.tolist()
    )


@pytest.mark.parametrize("weights", [[1, 2], [0, 0, 0], [1, -1, 1], [1, np.nan, 1], [1, np.inf, 1]])
def test_weights_that_cannot_be_drawn_by_are_refused(weights):
    with pytest.raises(ConfigError, match="sampler_weights"):
        Weights(weights, 3)

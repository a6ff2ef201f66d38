"""Positions dealt to data sets by weight: exact shares, and a seek that walks nothing."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamloader import ConfigError
from streamloader.order import Proportions

weight_lists = st.lists(st.integers(1, 1000), min_size=1, max_size=9)
few_weights = st.lists(st.integers(1, 1000), min_size=1, max_size=3)


def shares_off(weights, length):
    """How far each prefix's counts are from exact shares, [length + 1, data sets]."""
    proportions = Proportions(weights)
    source, _ = proportions.draw(np.arange(length))
    drawn = np.eye(len(weights), dtype=np.int64)[source]
    counts = np.vstack([np.zeros_like(drawn[:1]), np.cumsum(drawn, axis=0)])
    return counts - np.outer(np.arange(length + 1), weights) / sum(weights)


@given(few_weights)
@settings(deadline=None)
def test_up_to_three_data_sets_have_their_shares_of_every_prefix_to_less_than_one(weights):
    assert np.abs(shares_off(weights, 2 * sum(weights))).max() < 1


@given(st.tuples(st.integers(1, 5000), st.integers(1, 5000)))
@settings(deadline=None)
def test_two_data_sets_are_never_more_than_half_a_position_off(weights):
    assert np.abs(shares_off(list(weights), sum(weights))).max() <= 0.5


@given(weight_lists)
@settings(deadline=None)
def test_no_number_of_data_sets_has_one_two_positions_off(weights):
    assert np.abs(shares_off(weights, sum(weights))).max() < 2


@pytest.mark.parametrize("weights", [[4, 3, 2, 1], [7, 1, 1, 1], [12, 5, 2, 1], [1] * 16])
def test_weights_as_people_write_them_are_kept_to_less_than_one(weights):
    assert np.abs(shares_off(weights, sum(weights))).max() < 1


@given(weight_lists)
@settings(deadline=None)
def test_a_round_of_the_pattern_has_exactly_the_weights_and_then_begins_anew(weights):
    proportions = Proportions(weights)
    source, number = proportions.draw(np.arange(2 * proportions.total))
    first, second = np.split(source, 2)
    assert np.bincount(first, minlength=len(weights)).tolist() == weights
    assert np.array_equal(first, second)
    again = np.array(weights)[source[: proportions.total]]
    assert np.array_equal(number[proportions.total :], number[: proportions.total] + again)


@given(weight_lists, st.integers(0, 1 << 39))
@settings(deadline=None)
def test_drawing_counting_and_finding_a_draw_again_are_one_sequence(weights, begin):
    proportions = Proportions(weights)
    positions = begin + np.arange(200)
    source, number = proportions.draw(positions)
    counts = proportions.counts(np.arange(begin, begin + 201))
    assert counts.sum(axis=1).tolist() == list(range(begin, begin + 201))
    for data_set in range(len(weights)):
        rows = np.flatnonzero(source == data_set)
        assert np.array_equal(number[rows], counts[rows, data_set])
        assert np.array_equal(np.diff(counts[:, data_set]), (source == data_set).astype(int))
        assert np.array_equal(proportions.place(data_set, number[rows]), positions[rows])


def test_the_largest_weights_do_not_overflow():
    weights = [(1 << 40) - 4, 3, 1]
    proportions = Proportions(weights)
    last = proportions.total - 1
    positions = np.array([0, 1, last // 3, last - 1, last, last + 1, 3 * last])
    exact = [round_half_up(p, weights[0], proportions) for p in positions.tolist()]
    assert proportions.counts(positions)[:, 0].tolist() == exact
    source, number = proportions.draw(positions)
    for data_set in np.unique(source).tolist():
        rows = source == data_set
        assert np.array_equal(proportions.place(data_set, number[rows]), positions[rows])
    assert proportions.place(1, np.array([2])) < proportions.total


def round_half_up(position, weight, proportions):
    """What the heaviest has of a prefix: the rest of what its sibling has, by exact arithmetic."""
    total = proportions.total
    sibling = total - weight
    return position - (2 * position * sibling + total) // (2 * total)


@given(weight_lists, st.data())
@settings(deadline=None)
def test_amounts_are_dealt_out_whole_and_in_proportion(weights, data):
    proportions = Proportions(weights)
    amounts = np.array([[data.draw(st.integers(0, 50)) for _ in weights]])
    total = int(amounts.sum())
    dealt = np.vstack([proportions.deal(amounts, np.array([n])) for n in range(total + 1)])
    assert dealt.sum(axis=1).tolist() == list(range(total + 1))
    assert np.array_equal(dealt[-1], amounts[0])
    assert (np.diff(dealt, axis=0) >= 0).all()


@pytest.mark.parametrize(
    ("weights", "whole"),
    [
        ([0.7, 0.3], (7, 3)),
        ([70, 30], (7, 3)),
        ([1, 1e-6], (1_000_000, 1)),
        ([Fraction(1, 3), Fraction(2, 3)], (1, 2)),
        ([np.float64(0.25), np.int64(1)], (1, 4)),
        ([0.3], (1,)),
    ],
)
def test_weights_of_any_scale_are_taken_as_they_print(weights, whole):
    assert Proportions.of(weights).weights == whole


def test_weights_without_a_small_common_denominator_are_kept_to_twelve_digits():
    wanted = np.array([np.pi, np.e, 1.0])
    kept = np.array(Proportions.of(wanted.tolist()).weights)
    assert np.allclose(kept / kept.sum(), wanted / wanted.sum(), rtol=1e-11, atol=0)


@pytest.mark.parametrize("weight", [0, 0.0, -1, float("nan"), float("inf"), True, "1", None])
def test_a_weight_that_is_no_positive_number_is_refused(weight):
    with pytest.raises(ConfigError, match="a weight must be a positive number"):
        Proportions.of([1, weight])


def test_a_weight_that_would_never_be_drawn_is_refused():
    with pytest.raises(ConfigError, match="1e-20 is less than"):
        Proportions.of([0.123456789, 1e-20])

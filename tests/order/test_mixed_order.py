"""Several data sets as one order: shares, passes, ranks and seeks."""

from __future__ import annotations

import numpy as np
import pytest

from streamloader import ConfigError
from streamloader.order import EpochOrder, MixedOrder, Mixture, Proportions, RankPlan, footprint_of
from streamloader.order.mixed import MAX_SOURCES

BLOCK = 5


def mixture(sizes, weights, *, shuffle=True, seed=3):
    sets = [(size, BLOCK) for size in sizes]
    return Mixture.choose(sets, Proportions.of(weights), seed=seed, shuffle=shuffle)


def samples(mixed, epoch, size):
    return MixedOrder(mixed, epoch, size).locate(np.arange(size)).sample


def rows_of_ranks(order, batch_size, world_size, start=0):
    """Sample by position, as the ranks' batches have them, and how many batches each has."""
    found, batches = {}, set()
    for rank in range(world_size):
        plan = RankPlan(order, batch_size=batch_size, rank=rank, world_size=world_size, start=start)
        batches.add(plan.num_batches)
        for number in range(plan.num_batches):
            batch = plan.batch(number)
            assert len(batch.samples) == batch_size
            inside = batch.samples - batch.piece_first
            assert ((inside >= 0) & (inside < batch.piece_count)).all()
            assert (batch.piece_last_batch >= number).all()
            for row in np.flatnonzero(batch.valid).tolist():
                position = int(batch.positions[row])
                assert position not in found
                found[position] = int(batch.samples[row])
    assert len(batches) == 1
    return found


@pytest.mark.parametrize("shuffle", [True, False, "global"])
def test_one_data_set_alone_is_in_the_order_it_has_by_itself(shuffle):
    alone = mixture([97], [1], shuffle=shuffle)
    for epoch in range(3):
        mixed = MixedOrder(alone, epoch, 97).locate(np.arange(97))
        own = EpochOrder(alone.specs[0], epoch).locate(np.arange(97))
        for name in ("sample", "lane", "piece_first", "piece_count", "window_end"):
            assert np.array_equal(getattr(mixed, name), getattr(own, name)), name


@pytest.mark.parametrize("shuffle", [True, False, "global"])
@pytest.mark.parametrize("size", [7, 61, 137, 400])
@pytest.mark.parametrize(
    ("sizes", "weights"), [([97, 40], [0.7, 0.3]), ([13, 1, 123], [1, 1, 2]), ([50, 87], [50, 87])]
)
def test_epochs_follow_on_and_each_data_set_goes_through_full_passes(sizes, weights, size, shuffle):
    mixed = mixture(sizes, weights, shuffle=shuffle)
    length = 700
    epochs = -(-length // size)
    stream = np.concatenate([samples(mixed, epoch, size) for epoch in range(epochs)])[:length]
    source = mixed.source_of(stream)
    for number, data_set in enumerate(sizes):
        drawn = stream[source == number] - mixed.first_samples[number]
        passes = [drawn[i : i + data_set] for i in range(0, len(drawn), data_set)]
        for which, one_pass in enumerate(passes):
            own = EpochOrder(mixed.specs[number], which).locate(np.arange(len(one_pass))).sample
            assert np.array_equal(one_pass, own)
    counts = np.cumsum(np.eye(len(sizes))[source], axis=0)
    ideal = np.outer(np.arange(1, length + 1), weights) / sum(weights)
    assert np.abs(counts - ideal).max() < 1


def test_weights_by_size_give_every_sample_of_every_data_set_once_an_epoch():
    mixed = mixture([97, 40, 12], [97, 40, 12])
    first, second = samples(mixed, 0, 149), samples(mixed, 1, 149)
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(149))
    assert not np.array_equal(first, second)


def test_a_seek_to_a_far_epoch_costs_what_the_first_one_does():
    sizes = [1_000_000_000, 70_000_000]
    mixed = Mixture.choose(
        [(size, 256) for size in sizes], Proportions.of([0.6, 0.4]), seed=1, shuffle=True
    )
    size = sum(sizes)
    order = MixedOrder(mixed, 1 << 40, size)
    begun = [(1 << 40) * size * part // 10 // n for part, n in zip((6, 4), sizes, strict=True)]
    assert order.first_passes == begun
    located = order.locate([0, size // 2, size - 1])
    assert ((located.piece_first <= located.sample) & (located.sample < size)).all()
    assert (located.window_end <= size).all()
    assert (located.window_end > [0, size // 2, size - 1]).all()


@pytest.mark.parametrize(("batch_size", "world_size"), [(4, 1), (3, 2), (1, 5), (7, 3), (2, 8)])
@pytest.mark.parametrize(
    ("sizes", "weights"), [([97, 40], [0.7, 0.3]), ([30, 2, 60, 5], [4, 3, 2, 1])]
)
@pytest.mark.parametrize("shuffle", [True, False, "global"])
def test_ranks_share_one_order_whatever_their_number(
    sizes, weights, shuffle, batch_size, world_size
):
    mixed = mixture(sizes, weights, shuffle=shuffle)
    order = MixedOrder(mixed, 2, 150)
    wanted = dict(enumerate(order.locate(np.arange(150)).sample.tolist()))
    assert rows_of_ranks(order, batch_size, world_size) == wanted
    for start in (1, 77, 149, 150):
        rest = {position: wanted[position] for position in range(start, 150)}
        assert rows_of_ranks(order, batch_size, world_size, start) == rest


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_every_batch_of_every_rank_has_the_weights(world_size):
    mixed = mixture([4000, 1000, 700], [0.5, 0.3, 0.2])
    order = MixedOrder(mixed, 0, 4000)
    for rank in range(world_size):
        plan = RankPlan(order, batch_size=50, rank=rank, world_size=world_size)
        for number in range(plan.num_batches - 1):
            source = mixed.source_of(plan.batch(number).samples)
            counts = np.bincount(source, minlength=3)
            # A global batch is off by less than 2 at each end, a rank's part of it once more.
            assert np.abs(counts - [25, 15, 10]).max() < 4, (rank, number)


def test_a_row_is_planned_alike_from_any_start():
    mixed = mixture([97, 40], [0.7, 0.3])
    order = MixedOrder(mixed, 1, 137)
    whole = RankPlan(order, batch_size=4, rank=1, world_size=3)
    rest = RankPlan(order, batch_size=4, rank=1, world_size=3, start=48)
    for number in range(rest.num_batches):
        assert np.array_equal(rest.batch(number).positions, whole.batch(number + 4).positions)


def test_pieces_of_small_data_sets_that_come_again_are_told_apart():
    mixed = mixture([3, 11, 200], [1, 1, 1])
    located = MixedOrder(mixed, 0, 600).locate(np.arange(600))
    runs = {}
    for piece, first, count, end, position in zip(
        located.piece.tolist(),
        located.piece_first.tolist(),
        located.piece_count.tolist(),
        located.window_end.tolist(),
        range(600),
        strict=True,
    ):
        assert runs.setdefault(piece, (first, count)) == (first, count)
        assert end > position
    demanded = np.unique(located.piece, return_counts=True)[1]
    assert all(demanded <= [count for _, count in (runs[p] for p in np.unique(located.piece))])


def test_a_sample_drawn_again_in_an_epoch_counts_its_repeats():
    mixed = mixture([10, 30], [1, 1])
    located = MixedOrder(mixed, 1, 40).locate(np.arange(40))
    first = located.sample < 10
    # 20 draws of ten samples, the 3rd and 4th pass of all.
    assert located.repeat[first].tolist() == [0] * 10 + [1] * 10
    # The 21st draw to the 40th of thirty: the rest of the first pass, and ten of the second.
    assert located.repeat[~first].tolist() == [0] * 10 + [1] * 10
    draws = mixed.draws(located.sample, located.repeat)
    assert len(set(draws.tolist())) == 40
    assert np.array_equal(draws[located.repeat == 0], located.sample[located.repeat == 0])


@pytest.mark.parametrize("world_size", [2, 8])
def test_a_rank_reads_little_more_than_its_share(world_size):
    mixed = Mixture.choose(
        [(60_000, 9), (20_000, 9)], Proportions.of([0.7, 0.3]), seed=3, shuffle=True
    )
    order = MixedOrder(mixed, 0, 60_000)
    read = footprint_of(RankPlan(order, batch_size=256, rank=1, world_size=world_size))
    assert read.samples_read < 1.15 * read.rows


def test_data_sets_of_a_mixture_are_shuffled_by_seeds_of_their_own():
    mixed = mixture([50, 50], [1, 1])
    orders = [EpochOrder(spec, 0).locate(np.arange(50)).sample.tolist() for spec in mixed.specs]
    assert orders[0] != orders[1]
    assert orders[0] == EpochOrder(mixture([50], [1]).specs[0], 0).locate(range(50)).sample.tolist()


def test_lanes_are_shared_out_by_weight_so_that_a_mixture_holds_as_much_as_one_data_set():
    sizes = [(1_000_000, 10)] * 3
    mixed = Mixture.choose(sizes, Proportions.of([0.5, 0.3, 0.2]), seed=0, shuffle=True)
    assert [spec.lanes for spec in mixed.specs] == [128, 128, 64]


@pytest.mark.parametrize("epoch_size", [0, -1, 1.5, True, (1 << 40) + 1])
def test_an_epoch_of_no_possible_size_is_refused(epoch_size):
    with pytest.raises(ConfigError, match="epoch_size"):
        MixedOrder(mixture([9, 9], [1, 1]), 0, epoch_size)


def test_a_weight_is_needed_for_each_data_set():
    specs = mixture([9, 9], [1, 1]).specs
    with pytest.raises(ConfigError, match="a weight for each"):
        Mixture(specs, Proportions([1, 1, 1]))
    with pytest.raises(ConfigError, match="1 to 4096"):
        Mixture(specs[:1] * (MAX_SOURCES + 1), Proportions([1] * (MAX_SOURCES + 1)))


def test_a_global_batch_beyond_all_reason_is_refused():
    order = MixedOrder(mixture([9, 9], [1, 1]), 0, 18)
    with pytest.raises(ConfigError, match="at most 2\\^40"):
        RankPlan(order, batch_size=1 << 30, rank=0, world_size=1 << 20)

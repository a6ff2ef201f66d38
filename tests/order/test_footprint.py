import numpy as np
import pytest

from streamloader.order import EpochOrder, Footprint, OrderSpec, RankPlan, footprint_of

NUM_SAMPLES = 512_000


@pytest.fixture(scope="module")
def order() -> EpochOrder:
    return EpochOrder(OrderSpec.choose(NUM_SAMPLES, 9), 0)


def share_read(order: EpochOrder, world_size: int, rank: int, batch_size: int) -> float:
    """Samples that a rank reads for each that it delivers."""
    plan = RankPlan(order, batch_size=batch_size, rank=rank, world_size=world_size)
    footprint = footprint_of(plan)
    return footprint.samples_read / footprint.rows


def test_a_footprint_counts_rows_pieces_and_samples_once() -> None:
    order = EpochOrder(OrderSpec(100, 10, 0, "none", 1, 1), 0)
    first, second = (RankPlan(order, batch_size=16, rank=r, world_size=2) for r in range(2))
    # Ranks have samples 0-15, 32-47, 64-79, 96-99 and 16-31, 48-63, 80-95.
    assert footprint_of(first) == Footprint(rows=52, pieces=7, samples_read=70)
    assert footprint_of(second) == Footprint(rows=48, pieces=8, samples_read=80)


def test_footprint_of_a_finished_epoch_is_empty(order: EpochOrder) -> None:
    plan = RankPlan(order, batch_size=8, rank=0, world_size=1, start=NUM_SAMPLES)
    assert footprint_of(plan) == Footprint(0, 0, 0)


@pytest.mark.parametrize("world_size", [2, 4, 8, 64, 256])
def test_ranks_that_divide_the_lanes_read_their_share_exactly(
    order: EpochOrder, world_size: int
) -> None:
    assert share_read(order, world_size, world_size - 1, 256) == pytest.approx(1, abs=0.001)


@pytest.mark.parametrize(("world_size", "ranks"), [(3, (1,)), (7, (0, 3)), (12, (0, 6))])
def test_ranks_that_do_not_divide_the_lanes_read_little_more(
    order: EpochOrder, world_size: int, ranks: tuple[int, ...]
) -> None:
    for rank in ranks:
        assert share_read(order, world_size, rank, 256) < 1.05


@pytest.mark.parametrize("world_size", [96, 100, 1000])
def test_many_ranks_read_little_more(order: EpochOrder, world_size: int) -> None:
    ranks = np.linspace(0, world_size - 1, 12).astype(int)
    shares = [share_read(order, world_size, int(rank), 256) for rank in ranks]
    # Each end of a rank's run cuts a window of 18 samples; a batch has 256 rows.
    assert np.mean(shares) < 1.07
    assert max(shares) < 1.11


@pytest.mark.parametrize(("world_size", "batch_size"), [(3, 64), (7, 100), (12, 8)])
def test_global_batches_smaller_or_odder_than_the_lanes_read_little_more(
    world_size: int, batch_size: int
) -> None:
    order = EpochOrder(OrderSpec.choose(60_000, 9), 0)
    for rank in (0, 1):
        assert share_read(order, world_size, rank, batch_size) < 1.05

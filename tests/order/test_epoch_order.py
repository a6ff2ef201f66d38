import itertools
import os
import subprocess
import sys
import time
import tracemalloc

import numpy as np
import pytest

from streamloader.errors import ConfigError
from streamloader.order import (
    Bijection,
    EpochOrder,
    OrderSpec,
    RankPlan,
    derive_key,
    random_u64,
)

SMALL_GRID = list(itertools.product((1, 3, 4, 7, 250), (1, 2, 3, 8, 300), (1, 2, 3)))


def plain_window_order(spec: OrderSpec, epoch: int) -> list[list[tuple[int, int, int, int, int]]]:
    """The rules as lists: for each lane (sample, place, piece first, piece count, window end)."""
    n, size = spec.num_samples, spec.block_samples
    sequence = Bijection(spec.num_blocks, derive_key(0x626C6F636B, spec.seed))
    samples = [
        sample
        for block in sequence(np.arange(spec.num_blocks)).tolist()
        for sample in range(n)[block * size :][:size]
    ]
    cuts = [lane * (n // spec.lanes) + min(lane, n % spec.lanes) for lane in range(spec.lanes + 1)]
    epoch_key = derive_key(0x6C616E65, spec.seed, epoch)
    return [
        plain_lane(samples[low:high], size, spec.window, random_u64(epoch_key, lane))
        for lane, (low, high) in enumerate(itertools.pairwise(cuts))
    ]


def plain_lane(
    samples: list[int], size: int, window: int, key: int
) -> list[tuple[int, int, int, int, int]]:
    if not samples:
        return []
    pieces = [list(run) for _, run in itertools.groupby(samples, key=lambda s: s // size)]
    order = Bijection(len(pieces), random_u64(key, 0))
    places = [pieces[piece] for piece in order(np.arange(len(pieces))).tolist()]
    turn = random_u64(key, 1) % len(places[0])
    places = [places[0][turn:], *places[1:], places[0][:turn]]
    if turn == 0:
        places.pop()

    result: list[tuple[int, int, int, int, int]] = []
    first = 1 + random_u64(key, 2) % window
    starts = [0, *range(first, len(places), window), len(places)]
    for number, (low, high) in enumerate(itertools.pairwise(starts)):
        rows = [
            (sample, place, places[place][0], len(places[place]))
            for place in range(low, high)
            for sample in places[place]
        ]
        if not rows:
            continue
        mixed = Bijection(len(rows), random_u64(random_u64(key, 3), number))
        end = len(result) + len(rows)
        result += [(*rows[row], end) for row in mixed(np.arange(len(rows))).tolist()]
    return result


def check_against_plain(spec: OrderSpec, epoch: int) -> None:
    lanes = plain_window_order(spec, epoch)
    located = EpochOrder(spec, epoch).locate(np.arange(spec.num_samples))
    columns = (
        located.sample,
        located.lane,
        located.piece,
        located.piece_first,
        located.piece_count,
        located.window_end,
    )
    for p, found in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        offset, lane = divmod(p, spec.lanes)
        sample, place, first, count, end = lanes[lane][offset]
        window_end = (end - 1) * spec.lanes + lane + 1
        assert found == (sample, lane, lane << 40 | place, first, count, window_end)


@pytest.mark.parametrize("num_samples", [1, 2, 3, 8, 61])
def test_closed_form_is_the_plain_rule(num_samples: int) -> None:
    for block, lanes, window in SMALL_GRID[::4]:
        check_against_plain(OrderSpec(num_samples, block, 5, "window", lanes, window), 2)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("block", [1, 3, 4, 7, 16, 250])
def test_closed_form_is_the_plain_rule_everywhere(block: int) -> None:
    for num_samples, lanes, window in itertools.product(range(1, 201, 3), (1, 2, 5, 60), (1, 3)):
        check_against_plain(OrderSpec(num_samples, block, 6, "window", lanes, window), 1)


def check_order(spec: OrderSpec, epoch: int) -> None:
    located = EpochOrder(spec, epoch).locate(np.arange(spec.num_samples))
    first, count, piece = located.piece_first, located.piece_count, located.piece
    assert np.array_equal(np.sort(located.sample), np.arange(spec.num_samples))
    assert np.all((first <= located.sample) & (located.sample < first + count))
    assert np.array_equal(first // spec.block_samples, (first + count - 1) // spec.block_samples)
    _, at, rows = np.unique(piece, return_index=True, return_counts=True)
    assert np.array_equal(count[at], rows)
    assert np.all(np.arange(spec.num_samples) < located.window_end)
    assert located.window_end.max() <= spec.num_samples


@pytest.mark.parametrize("num_samples", [1, 2, 3, 5, 16, 200])
def test_every_sample_comes_once_and_pieces_are_runs_of_one_block(num_samples: int) -> None:
    for block, lanes, window in SMALL_GRID[::2]:
        check_order(OrderSpec(num_samples, block, 1, "window", lanes, window), num_samples % 3)
    check_order(OrderSpec(num_samples, 7, 1, "none", 1, 2), 0)
    check_order(OrderSpec(num_samples, 7, 1, "global", 1, 2), 0)


@pytest.mark.parametrize("lanes", [2**12, pytest.param(2**20, marks=pytest.mark.slow)])
def test_the_largest_blocks_and_windows_do_not_overflow(lanes: int) -> None:
    check_order(OrderSpec(50, 2**40, 1, "window", 3, 2**40), 2**64 - 1)
    check_order(OrderSpec(50, 7, 1, "window", lanes, 2**40), 0)
    order = EpochOrder(OrderSpec(2**40, 1, 1, "window", lanes, 2), 0)
    located = order.locate([0, 1, 2**40 - 1])
    assert np.all((located.sample >= 0) & (located.sample < 2**40))
    assert np.all(located.window_end <= 2**40)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("window", [1, 2, 3, 5])
def test_every_sample_comes_once_everywhere(window: int) -> None:
    for num_samples, block, lanes in itertools.product(
        range(1, 201), (1, 2, 3, 5, 9, 64, 250), (1, 2, 3, 5, 8, 16, 37, 300)
    ):
        check_order(OrderSpec(num_samples, block, 2, "window", lanes, window), 0)


@pytest.mark.parametrize("shuffle", ["window", "global", "none"])
def test_any_subset_in_any_order_leads_where_the_whole_does(shuffle: str) -> None:
    order = EpochOrder(OrderSpec.choose(5000, 9, seed=3, shuffle=shuffle, lanes=16), 1)
    whole = order.locate(np.arange(5000)).sample
    some = Bijection(5000, 17)(np.arange(700))
    assert np.array_equal(order.locate(some).sample, whole[some])
    assert order.locate(4321).sample.tolist() == [whole[4321]]
    assert order.locate(np.empty(0, dtype=np.int64)).sample.size == 0


def test_stored_order_is_the_identity() -> None:
    located = EpochOrder(OrderSpec.choose(23, 5, shuffle=False), 4).locate(np.arange(23))
    assert located.sample.tolist() == list(range(23))
    assert located.piece_count.tolist() == [5] * 20 + [3] * 3
    assert located.window_end.tolist() == [5] * 5 + [10] * 5 + [15] * 5 + [20] * 5 + [23] * 3


def test_global_shuffle_reads_single_samples() -> None:
    located = EpochOrder(OrderSpec.choose(1000, 5, shuffle="global"), 0).locate(np.arange(1000))
    assert np.array_equal(located.piece_first, located.sample)
    assert set(located.piece_count.tolist()) == {1}
    assert np.count_nonzero(np.diff(located.sample) == 1) < 10


@pytest.mark.parametrize("shuffle", ["window", "global"])
def test_epochs_and_seeds_differ_and_reruns_agree(shuffle: str) -> None:
    def order(seed: int, epoch: int) -> list[int]:
        spec = OrderSpec.choose(2000, 9, seed=seed, shuffle=shuffle, lanes=16)
        return EpochOrder(spec, epoch).locate(np.arange(2000)).sample.tolist()

    cells = list(itertools.product((0, 1, 2, 2**64 - 1), (0, 1, 2, 10**9)))
    orders = {cell: order(*cell) for cell in cells}
    for one, two in itertools.combinations(cells, 2):
        same = np.count_nonzero(np.equal(orders[one], orders[two]))
        assert same < 0.02 * 2000 + 10, (one, two)
    assert all(order(*cell) == orders[cell] for cell in cells)


def test_a_lane_has_the_same_samples_in_every_epoch() -> None:
    spec = OrderSpec(3000, 9, 7, "window", 16, 2)
    members = []
    for epoch in range(3):
        sample = EpochOrder(spec, epoch).locate(np.arange(3000)).sample
        members.append([sorted(sample[lane::16].tolist()) for lane in range(16)])
    assert members[0] == members[1] == members[2]


def test_another_interpreter_gives_the_same_order() -> None:
    program = (
        "import numpy as np; from streamloader.order import EpochOrder, OrderSpec;"
        "o = EpochOrder(OrderSpec.choose(3001, 9, seed=5, lanes=16), 2);"
        "print(*o.locate(np.arange(3001)).sample)"
    )
    here = EpochOrder(OrderSpec.choose(3001, 9, seed=5, lanes=16), 2).locate(np.arange(3001))
    for hash_seed in ("0", "4242"):
        run = subprocess.run(
            [sys.executable, "-c", program],
            env={
                **os.environ,
                "PYTHONHASHSEED": hash_seed,
                "PYTHONPATH": os.pathsep.join(sys.path),
            },
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert run.stdout.split() == [str(sample) for sample in here.sample]


@pytest.mark.parametrize(
    ("spec", "epoch", "positions", "samples"),
    [
        (
            OrderSpec(1000, 9, 0, "window", 8, 2),
            0,
            range(8),
            [268, 655, 598, 735, 285, 140, 784, 449],
        ),
        (
            OrderSpec(10**9, 16, 42, "window", 256, 2),
            7,
            (0, 1, 123_456_789),
            [308150954, 15194297, 769390061],
        ),
        (
            OrderSpec(1000, 9, 0, "global", 1, 2),
            1,
            range(8),
            [336, 143, 39, 834, 726, 501, 949, 304],
        ),
    ],
)
def test_the_rules_stay_as_published(
    spec: OrderSpec, epoch: int, positions: range, samples: list[int]
) -> None:
    """A failure here means that saved states lose their meaning: raise ORDER_VERSION."""
    assert EpochOrder(spec, epoch).locate(positions).sample.tolist() == samples


@pytest.mark.parametrize("block", [16, 256])
def test_a_thousand_million_samples_open_at_once_in_little_memory(block: int) -> None:
    started_s = time.perf_counter()
    tracemalloc.start()
    try:
        order = EpochOrder(OrderSpec.choose(10**9, block), 3)
        batch = RankPlan(order, batch_size=256, rank=5, world_size=8, start=777_777_777).batch(0)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert time.perf_counter() - started_s < 1
    assert peak_bytes < 16e6
    assert np.unique(batch.samples).size == 256


def test_lanes_change_windows_at_different_times() -> None:
    spec = OrderSpec(60_000, 9, 0, "window", 128, 2)
    located = EpochOrder(spec, 0).locate(np.arange(spec.num_samples))
    positions = np.arange(spec.num_samples)
    _, first, place = np.unique(located.piece, return_index=True, return_inverse=True)
    last = np.zeros(first.size, dtype=np.int64)
    np.maximum.at(last, place, positions)
    change = np.zeros(spec.num_samples + 1, dtype=np.int64)
    np.add.at(change, first, located.piece_count[first])
    np.add.at(change, last + 1, -located.piece_count[first])
    held_samples = np.cumsum(change)[2000:-6000]
    # Without either half of the stagger it is 1.15 or more here.
    assert held_samples.max() < 1.12 * held_samples.mean()


@pytest.mark.parametrize("positions", [[-1], [0, 100], [2**40]])
def test_positions_outside_the_data_set_are_refused(positions: list[int]) -> None:
    order = EpochOrder(OrderSpec.choose(100, 9), 0)
    with pytest.raises(ConfigError, match=r"positions must lie in \[0, 100\)"):
        order.locate(positions)


def test_a_negative_epoch_is_refused() -> None:
    with pytest.raises(ConfigError, match="epoch must be an integer from 0"):
        EpochOrder(OrderSpec.choose(100, 9), -1)

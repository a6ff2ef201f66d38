import numpy as np
import pytest

from streamloader.errors import ConfigError
from streamloader.order import derive_key, mix64, random_u64, random_unit


def test_mix64_gives_the_published_splitmix64_stream() -> None:
    # SplitMix64 seeded with 0 adds its gamma before each output.
    gamma = 0x9E3779B97F4A7C15
    states = [i * gamma % 2**64 for i in range(3)]
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [mix64(state) for state in states] == expected
    assert mix64(np.array(states, dtype=np.uint64)).tolist() == expected


@pytest.mark.parametrize("value", [0, 1, 2**63, 2**64 - 1])
def test_scalars_and_arrays_agree(value: int) -> None:
    key = derive_key(3, 1, 4)
    column = np.array([[value], [7]], dtype=np.uint64)
    assert mix64(column)[0, 0] == mix64(value)
    assert random_u64(key, column)[0, 0] == random_u64(key, value)
    assert random_unit(key, column)[0, 0] == random_unit(key, value)
    assert random_u64(key, column).shape == column.shape
    assert random_u64(key, np.array(value, dtype=np.uint64)).shape == ()


def test_numbers_depend_on_nothing_but_key_and_counter() -> None:
    key = derive_key(0, 1)
    whole = random_unit(key, np.arange(1000))
    assert np.array_equal(whole[::7], random_unit(key, np.arange(0, 1000, 7)))
    assert whole[123] == random_unit(key, np.array([123]))[0]


def test_an_array_of_keys_is_as_each_key_alone() -> None:
    keys = np.array([derive_key(i) for i in range(5)], dtype=np.uint64)
    table = random_u64(keys[:, None], np.arange(4))
    assert table.tolist() == [[random_u64(int(k), c) for c in range(4)] for k in keys]


def test_counters_of_one_key_never_collide() -> None:
    assert np.unique(random_u64(derive_key(5), np.arange(100_000))).size == 100_000


def test_arguments_are_left_as_they_were() -> None:
    counters = np.arange(5, dtype=np.uint64)
    mix64(counters)
    random_u64(1, counters)
    assert counters.tolist() == [0, 1, 2, 3, 4]


def test_keys_depend_on_order_and_number_of_their_parts() -> None:
    parts = [(), (0,), (0, 0), (1, 2), (2, 1), (3,), (0, 3), (3, 0), (1, 2, 0), (0, 1, 2)]
    assert len({derive_key(*p) for p in parts}) == len(parts)


def test_neighbouring_workers_and_epochs_never_share_a_key() -> None:
    keys = {
        derive_key(seed, epoch, op) for seed in range(20) for epoch in range(20) for op in range(20)
    }
    assert len(keys) == 8000


@pytest.mark.parametrize("part", [-1, 2**64])
def test_key_parts_out_of_range_are_refused(part: int) -> None:
    with pytest.raises(ConfigError, match=r"must lie in \[0, 2\^64\), got"):
        derive_key(1, part)


def test_units_are_uniform_and_below_one() -> None:
    units = random_unit(derive_key(9), np.arange(200_000))
    assert units.min() >= 0
    assert units.max() < 1
    counts = np.bincount((units * 64).astype(int), minlength=64)
    assert _chi_square_z(counts) < 4


@pytest.mark.parametrize("bit", [0, 20, 63])
def test_one_bit_of_key_or_counter_flips_half_the_bits(bit: int) -> None:
    counters = np.arange(4096, dtype=np.uint64)
    key = derive_key(2)
    base = random_u64(key, counters)
    for other in (
        random_u64(key ^ (1 << bit), counters),
        random_u64(key, counters ^ np.uint64(1 << bit)),
    ):
        flipped = np.unpackbits((base ^ other).view(np.uint8)).mean()
        assert abs(flipped - 0.5) < 0.005


def _chi_square_z(counts: np.ndarray) -> float:
    expected = counts.sum() / counts.size
    degrees = counts.size - 1
    return float((((counts - expected) ** 2 / expected).sum() - degrees) / (2 * degrees) ** 0.5)


def test_keys_stay_as_published() -> None:
    """A failure here changes every order and every crop: raise ORDER_VERSION."""
    assert derive_key() == 12595294279420071679
    assert derive_key(0) == 3622860835555085023
    assert derive_key(1, 2) == 10106173798924056682

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamloader.errors import ConfigError
from streamloader.order import Bijection, derive_key, random_u64
from streamloader.order.bijection import permute, unpermute


@pytest.mark.parametrize("key", [0, derive_key(4)])
def test_every_small_size_is_permuted_and_inverted(key: int) -> None:
    for n in (*range(1, 70), *range(70, 301, 9)):
        bijection = Bijection(n, key)
        everything = np.arange(n)
        image = bijection(everything)
        assert np.array_equal(np.sort(image), everything)
        assert np.array_equal(bijection.inverse(image), everything)


@given(st.integers(1, 2**62), st.integers(0, 2**64 - 1), st.data())
def test_any_size_inverts(n: int, key: int, data: st.DataObject) -> None:
    values = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=8)))
    bijection = Bijection(n, key)
    image = bijection(values)
    assert image.min() >= 0
    assert image.max() < n
    assert np.array_equal(bijection.inverse(image), values)


def test_elementwise_sizes_and_keys_are_as_one_at_a_time() -> None:
    sizes = np.arange(1, 65)
    keys = random_u64(derive_key(1), sizes)
    values = sizes - 1
    together = permute(values, sizes, keys)
    alone = [int(Bijection(int(n), int(k))(n - 1)) for n, k in zip(sizes, keys, strict=True)]
    assert together.tolist() == alone
    assert np.array_equal(unpermute(together, sizes, keys), values)


def test_shape_is_kept() -> None:
    bijection = Bijection(50, 3)
    assert bijection(np.zeros((2, 3, 4), dtype=int)).shape == (2, 3, 4)
    assert bijection(7).shape == ()
    assert bijection(np.empty(0, dtype=int)).shape == (0,)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_every_arrangement_of_few_values_is_equally_likely(n: int) -> None:
    keys = random_u64(derive_key(11), np.arange(60_000))[:, None]
    images = permute(np.arange(n), n, keys)
    _, counts = np.unique(images @ (n ** np.arange(n)), return_counts=True)
    assert counts.size == math.factorial(n)
    assert _chi_square_z(counts) < 4


@pytest.mark.parametrize("n", [5, 7, 18, 40])
def test_pairs_of_images_are_equally_likely(n: int) -> None:
    keys = random_u64(derive_key(12), np.arange(40_000))[:, None]
    images = permute(np.array([0, 1, n - 1]), n, keys)
    for second in (1, 2):
        table = np.bincount(images[:, 0] * n + images[:, second], minlength=n * n).reshape(n, n)
        assert np.trace(table) == 0
        assert _chi_square_z(table[~np.eye(n, dtype=bool)]) < 4


def test_a_large_permutation_leaves_no_order() -> None:
    n = 100_000
    image = Bijection(n, derive_key(13))(np.arange(n))
    assert abs(np.corrcoef(np.arange(n), image)[0, 1]) < 0.015
    assert abs(np.corrcoef(image[:-1], image[1:])[0, 1]) < 0.015
    assert np.count_nonzero(np.diff(image) == 1) < 10


@pytest.mark.parametrize(("n", "key"), [(0, 1), (2**62 + 1, 1), (5, -1), (5, 2**64)])
def test_sizes_and_keys_out_of_range_are_refused(n: int, key: int) -> None:
    with pytest.raises(ConfigError, match="got"):
        Bijection(n, key)


@pytest.mark.parametrize("value", [-1, 10])
def test_values_out_of_range_are_refused(value: int) -> None:
    bijection = Bijection(10, 1)
    with pytest.raises(ConfigError, match=r"must lie in \[0, 10\)"):
        bijection([0, value])
    with pytest.raises(ConfigError, match=r"must lie in \[0, 10\)"):
        bijection.inverse([0, value])


def _chi_square_z(counts: np.ndarray) -> float:
    expected = counts.sum() / counts.size
    degrees = counts.size - 1
    return float((((counts - expected) ** 2 / expected).sum() - degrees) / (2 * degrees) ** 0.5)

"""Keyed permutations of [0, n) that need no table.

A value is split into two digits, (high, low) with high < a and low < b, where a*b is the smallest
near-square product that holds n. Rounds add a keyed function of one digit to the other, modulo its
size: a generalised Feistel network (Black and Rogaway, "Ciphers with arbitrary finite domains",
CT-RSA 2002). A result outside [0, n) is permuted again until it falls inside (cycle walking); since
a*b - n < a, that is rare.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from streamloader.errors import ConfigError
from streamloader.order.random import U64Array

I64Array: TypeAlias = npt.NDArray[np.int64]
_Network: TypeAlias = Callable[[U64Array, U64Array, U64Array, U64Array], U64Array]

MAX_SIZE = 1 << 62
ROUNDS = 12
_HALF_WORD = np.uint64(32)
_MULTIPLIER_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLIER_2 = np.uint64(0x94D049BB133111EB)
_ROUND_KEYS = tuple(
    np.uint64(r * 0x9E3779B97F4A7C15 & 0xFFFF_FFFF_FFFF_FFFF) for r in range(ROUNDS)
)


def permute(values: npt.ArrayLike, sizes: npt.ArrayLike, keys: npt.ArrayLike) -> I64Array:
    """Where the permutation of [0, size) chosen by key sends each value.

    Args:
        values: integers, each in [0, size); all three arguments broadcast together.
        sizes: the permutation's size for each value, 1 to 2^62.
        keys: its key for each value, 64 random bits.

    Returns:
        int64 array of the broadcast shape. Ranges are the caller's duty; ``Bijection`` checks them.
    """
    return _walk(values, sizes, keys, _encrypt)


def unpermute(values: npt.ArrayLike, sizes: npt.ArrayLike, keys: npt.ArrayLike) -> I64Array:
    """The inverse of ``permute``, with the same arguments."""
    return _walk(values, sizes, keys, _decrypt)


class Bijection:
    """One permutation of [0, n), chosen by a key; nothing is stored but the two numbers.

    Args:
        n: size of the permuted range, 1 to 2^62.
        key: 64 random bits, from ``derive_key``.

    Raises:
        ConfigError: n or key is out of range.
    """

    __slots__ = ("key", "n")

    def __init__(self, n: int, key: int) -> None:
        if not 1 <= n <= MAX_SIZE:
            raise ConfigError(f"a permutation needs a size from 1 to 2^62, got {n}")
        if not 0 <= key < 1 << 64:
            raise ConfigError(f"a permutation's key must lie in [0, 2^64), got {key}")
        self.n = n
        self.key = key

    def __call__(self, values: npt.ArrayLike) -> I64Array:
        """Images of values (integers in [0, n), any shape): an int64 array of that shape.

        Raises:
            ConfigError: a value lies outside [0, n).
        """
        return permute(self._checked(values), self.n, np.uint64(self.key))

    def inverse(self, values: npt.ArrayLike) -> I64Array:
        """Where each value came from: ``inverse(self(x)) == x``; arguments and errors as there."""
        return unpermute(self._checked(values), self.n, np.uint64(self.key))

    def _checked(self, values: npt.ArrayLike) -> I64Array:
        numbers = np.asarray(values, dtype=np.int64)
        if numbers.size and (numbers.min() < 0 or numbers.max() >= self.n):
            raise ConfigError(
                f"values to permute must lie in [0, {self.n}), "
                f"got {int(numbers.min())} to {int(numbers.max())}"
            )
        return numbers


def _walk(
    values: npt.ArrayLike, sizes: npt.ArrayLike, keys: npt.ArrayLike, network: _Network
) -> I64Array:
    shape = np.broadcast_shapes(np.shape(values), np.shape(sizes), np.shape(keys))
    n = _column(sizes, shape)
    key = _column(keys, shape)
    a = np.sqrt((n - np.uint64(1)).astype(np.float64)).astype(np.uint64) + np.uint64(1)
    b = (n + (a - np.uint64(1))) // a
    result = np.broadcast_to(np.asarray(values), shape).astype(np.uint64).reshape(-1)
    result = network(result, a, b, key)
    outside = np.flatnonzero(result >= n)
    while outside.size:
        again = network(result[outside], _pick(a, outside), _pick(b, outside), _pick(key, outside))
        result[outside] = again
        outside = outside[again >= _pick(n, outside)]
    return result.view(np.int64).reshape(shape)


def _encrypt(x: U64Array, a: U64Array, b: U64Array, key: U64Array) -> U64Array:
    high = x // b
    low = x - high * b
    for r in range(0, ROUNDS, 2):
        high += _round(low, a, key + _ROUND_KEYS[r])
        np.minimum(high, high - a, out=high)
        low += _round(high, b, key + _ROUND_KEYS[r + 1])
        np.minimum(low, low - b, out=low)
    high *= b
    high += low
    return high


def _decrypt(x: U64Array, a: U64Array, b: U64Array, key: U64Array) -> U64Array:
    high = x // b
    low = x - high * b
    for r in range(ROUNDS - 2, -1, -2):
        low -= _round(high, b, key + _ROUND_KEYS[r + 1])
        np.minimum(low, low + b, out=low)
        high -= _round(low, a, key + _ROUND_KEYS[r])
        np.minimum(high, high + a, out=high)
    high *= b
    high += low
    return high


def _round(digit: U64Array, size: U64Array, round_key: U64Array) -> U64Array:
    """A keyed function of a digit, in [0, size): the top 32 bits of a hash, scaled, no division.

    Sums in ``_encrypt`` stay below 2^33, so an unsigned minimum with the wrapped difference is the
    remainder.
    """
    word = digit + round_key
    word *= _MULTIPLIER_1
    word ^= word >> _HALF_WORD
    word *= _MULTIPLIER_2
    word >>= _HALF_WORD
    word *= size
    word >>= _HALF_WORD
    return word


def _column(numbers: npt.ArrayLike, shape: tuple[int, ...]) -> U64Array:
    """Numbers as uint64 of one dimension: one for all values, or one for each."""
    array = np.asarray(numbers).astype(np.uint64)
    return array.reshape(1) if array.size == 1 else np.broadcast_to(array, shape).reshape(-1)


def _pick(column: U64Array, rows: npt.NDArray[np.intp]) -> U64Array:
    return column if column.size == 1 else column[rows]

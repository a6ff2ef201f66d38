"""Random numbers as a pure function of a key and a counter.

There is no generator and no hidden position: the same key and counter give the same number in
every process, thread, batch size and numpy version. The arithmetic is ours because numpy does not
promise that its streams stay the same between versions.

``mix64`` is one output step of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom
number generators", OOPSLA 2014) with Stafford's variant 13 of the 64-bit finalizer.
"""

from __future__ import annotations

from typing import Any, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from streamloader.errors import ConfigError

U64Array: TypeAlias = npt.NDArray[np.uint64]
IntArray: TypeAlias = npt.NDArray[np.integer[Any]]

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_MULTIPLIER_1 = 0xBF58476D1CE4E5B9
_MULTIPLIER_2 = 0x94D049BB133111EB
_SECOND_ROUND = 0xD1342543DE82EF95
_KEY_START = 0x73747265616D6C64
_UNIT_STEP = 2.0**-53


@overload
def mix64(value: int) -> int: ...
@overload
def mix64(value: IntArray) -> U64Array: ...
def mix64(value: int | IntArray) -> int | U64Array:
    """Scatter 64-bit integers: a bijection of [0, 2^64) that leaves no visible pattern.

    Args:
        value: an integer, taken modulo 2^64, or an array of integers of any shape.

    Returns:
        An ``int`` for an integer, else a new uint64 array of the same shape.
    """
    if isinstance(value, (int, np.integer)):
        return _mix_scalar(int(value))
    return _mix_owned(_own_u64(value)).reshape(value.shape)


@overload
def random_u64(key: int, counters: int) -> int: ...
@overload
def random_u64(key: int | U64Array, counters: IntArray) -> U64Array: ...
@overload
def random_u64(key: U64Array, counters: int) -> U64Array: ...
def random_u64(key: int | U64Array, counters: int | IntArray) -> int | U64Array:
    """64 random bits for each counter: two rounds of ``mix64`` with the key added before each.

    For one key it is a bijection of the counters, so different counters never give the same number.

    Args:
        key: from ``derive_key``, or a uint64 array of keys that broadcasts with ``counters``.
        counters: an integer, or an array of integers of any shape.

    Returns:
        An ``int`` when both are integers, else a uint64 array of the broadcast shape.
    """
    if isinstance(key, (int, np.integer)) and isinstance(counters, (int, np.integer)):
        first = _mix_scalar(int(counters) + int(key))
        return _mix_scalar(first + int(key) * _SECOND_ROUND)
    # One dimension at least: numpy warns of overflow on scalars, never on arrays.
    keys = np.atleast_1d(_as_u64(key))
    values = keys + np.atleast_1d(_as_u64(counters))
    _mix_owned(values)
    values += keys * np.uint64(_SECOND_ROUND)
    _mix_owned(values)
    return values.reshape(np.broadcast_shapes(np.shape(key), np.shape(counters)))


@overload
def random_unit(key: int, counters: int) -> float: ...
@overload
def random_unit(key: int | U64Array, counters: IntArray) -> npt.NDArray[np.float64]: ...
def random_unit(key: int | U64Array, counters: int | IntArray) -> float | npt.NDArray[np.float64]:
    """Uniform numbers in [0, 1), multiples of 2^-53: the top 53 bits of ``random_u64``.

    Args:
        key: from ``derive_key``, or a uint64 array of keys that broadcasts with ``counters``.
        counters: an integer, or an array of integers of any shape.

    Returns:
        A ``float`` when both are integers, else a float64 array of the broadcast shape.
    """
    if isinstance(key, (int, np.integer)) and isinstance(counters, (int, np.integer)):
        return (random_u64(int(key), int(counters)) >> 11) * _UNIT_STEP
    bits = random_u64(key, np.asarray(counters))
    return (bits >> np.uint64(11)).astype(np.float64) * _UNIT_STEP


def derive_key(*parts: int) -> int:
    """One key from several integers, such as (seed, epoch, operation).

    Every integer goes through a keyed mix, so the order of the parts counts, a sum or an XOR of
    parts says nothing, and (1, 2), (2, 1), (0, 1, 2) and (3,) give unrelated keys.

    Args:
        parts: integers in [0, 2^64).

    Raises:
        ConfigError: a part lies outside that range.
    """
    key = random_u64(_KEY_START, len(parts))
    for part in parts:
        if not 0 <= part <= _MASK:
            raise ConfigError(
                f"seeds, epochs and other parts of a random key must lie in [0, 2^64), got {part}; "
                "pass a non-negative integer"
            )
        key = random_u64(key, int(part))
    return key


def _mix_scalar(value: int) -> int:
    value = (value + _GAMMA) & _MASK
    value = ((value ^ (value >> 30)) * _MULTIPLIER_1) & _MASK
    value = ((value ^ (value >> 27)) * _MULTIPLIER_2) & _MASK
    return value ^ (value >> 31)


def _mix_owned(values: U64Array) -> U64Array:
    """``mix64`` in place, on an array of one dimension or more that the caller owns."""
    values += np.uint64(_GAMMA)
    values ^= values >> np.uint64(30)
    values *= np.uint64(_MULTIPLIER_1)
    values ^= values >> np.uint64(27)
    values *= np.uint64(_MULTIPLIER_2)
    values ^= values >> np.uint64(31)
    return values


def _as_u64(value: int | IntArray) -> U64Array:
    if isinstance(value, int):
        return np.array(value & _MASK, dtype=np.uint64)
    return np.asarray(value).astype(np.uint64, casting="unsafe", copy=False)


def _own_u64(values: IntArray) -> U64Array:
    return np.array(values, dtype=np.uint64, copy=True, ndmin=1)

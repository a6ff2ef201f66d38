"""Small sets of numbers as hex digits, for saved states."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from streamloader.order.bijection import I64Array

_DIGITS = "0123456789abcdef"


def to_hex(numbers: npt.ArrayLike) -> str:
    """A set of numbers from 0 up: number n is bit ``7 - n % 8`` of byte ``n // 8``."""
    members = np.asarray(numbers, dtype=np.int64)
    if not members.size:
        return ""
    is_member = np.zeros(int(members.max()) + 1, dtype=np.bool_)
    is_member[members] = True
    return np.packbits(is_member).tobytes().hex()


def from_hex(digits: str) -> I64Array:
    """The numbers of ``to_hex``, ascending."""
    packed = np.frombuffer(bytes.fromhex(digits), dtype=np.uint8)
    return np.flatnonzero(np.unpackbits(packed)).astype(np.int64)


def count_of(digits: str) -> int:
    """How many numbers there are."""
    return int(digits or "0", 16).bit_count()


def is_hex(value: object) -> bool:
    """Whether a value may be given to ``from_hex``."""
    return isinstance(value, str) and len(value) % 2 == 0 and not value.strip(_DIGITS)

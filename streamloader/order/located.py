"""Where positions of the global order lead: the arrays that ``EpochOrder.locate`` returns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamloader.order.bijection import I64Array

_ORDINAL_BITS = np.int64(40)
_SINGLE = np.int64(1 << 62)


@dataclass(frozen=True, slots=True, eq=False)
class Located:
    """One entry for each position asked for; every field is int64 ``[n]``."""

    sample: I64Array
    """Number of the sample in the data set."""

    lane: I64Array
    """Lane that the position belongs to."""

    piece: I64Array
    """Identifies the piece within the epoch; a piece is one run of samples of one block."""

    piece_first: I64Array
    """Number of the piece's first sample."""

    piece_count: I64Array
    """Samples of the piece."""

    window_end: I64Array
    """Last position, exclusive, at which the piece's window still has samples to give."""


def piece_id(lane: I64Array, ordinal: I64Array) -> I64Array:
    """Identity of a lane's ordinal-th piece: unique within an epoch, ascending in both."""
    return (lane << _ORDINAL_BITS) | ordinal


def single_sample_id(sample: np.int64) -> np.int64:
    """Identity of a read of one sample outside its piece; no ``piece_id`` is ever the same."""
    return _SINGLE | sample

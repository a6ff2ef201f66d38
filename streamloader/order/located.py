"""Where positions of the global order lead: the arrays that ``EpochOrder.locate`` returns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamloader.order.bijection import I64Array
from streamloader.order.spec import OrderSpec

_ORDINAL_BITS = np.int64(40)
_ORDINAL_MASK = (np.int64(1) << _ORDINAL_BITS) - 1
_SOURCE_BITS = np.int64(50)
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

    repeat: I64Array
    """Passes over the data set that the epoch has begun before; 0 but in a mixture."""


def piece_id(lane: I64Array, ordinal: I64Array) -> I64Array:
    """Identity of a lane's ordinal-th piece: unique within an epoch, ascending in both."""
    return (lane << _ORDINAL_BITS) | ordinal


def piece_of_pass(piece: I64Array, spec: OrderSpec, passes: int, source: int = 0) -> I64Array:
    """Identity of a piece among those of all passes that an epoch has, and of all data sets.

    A data set has 2^50 numbers, used anew only after at least 500 passes and 2^49 samples; so
    pieces of any two passes that one batch has are told apart, however small the data set is.

    Args:
        piece: as of ``piece_id``, in the pass.
        spec: of the data set.
        passes: number of the pass.
        source: number of the data set, below 2^12.
    """
    # A lane's length in blocks, and what its two cut ends, a short block and the turn add.
    per_lane = spec.num_samples // spec.lanes + 8
    per_pass = per_lane * spec.lanes
    begin = passes % ((1 << int(_SOURCE_BITS)) // per_pass) * per_pass
    lane, ordinal = piece >> _ORDINAL_BITS, piece & _ORDINAL_MASK
    return (np.int64(source) << _SOURCE_BITS) | (begin + lane * per_lane + ordinal)


def single_sample_id(sample: np.int64) -> np.int64:
    """Identity of a read of one sample outside its piece; no ``piece_id`` is ever the same."""
    return _SINGLE | sample

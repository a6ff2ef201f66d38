"""A part of the data set as a smaller one: its samples are numbered anew, without gaps.

The order works on the new numbers; reading works on the old ones. Both are in stored order, so
neighbours stay neighbours and a run of new numbers is few runs of old ones.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from streamloader.errors import ConfigError
from streamloader.order.bijection import I64Array


class Selection:
    """Some samples of a data set.

    Args:
        samples: their numbers in the data set, integers ``[n]``; order and repeats do not count.
        num_samples: samples of the data set.

    Raises:
        ConfigError: no sample, or a number outside the data set.
    """

    __slots__ = ("_samples",)

    def __init__(self, samples: npt.ArrayLike, num_samples: int) -> None:
        numbers = np.asarray(samples)
        if numbers.ndim != 1 or numbers.dtype.kind not in "iu" or not numbers.size:
            raise ConfigError(
                "a subset takes one or more sample numbers, got "
                f"{numbers.dtype} of shape {list(numbers.shape)}"
            )
        if numbers.min() < 0 or numbers.max() >= num_samples:
            raise ConfigError(
                f"a subset's sample numbers must lie in [0, {num_samples}), "
                f"got {int(numbers.min())} to {int(numbers.max())}"
            )
        self._samples: I64Array = np.unique(numbers.astype(np.int64))

    def __len__(self) -> int:
        return len(self._samples)

    def samples(self, numbers: I64Array) -> I64Array:
        """Numbers in the data set, int64 ``[n]``, of numbers in the selection."""
        found: I64Array = self._samples[numbers]
        return found

    def runs(self, first: int, count: int) -> list[tuple[int, int]]:
        """(first, count) of the runs in the data set that a run of the selection is."""
        samples = self._samples[first : first + count]
        starts = np.flatnonzero(np.diff(samples, prepend=samples[0] - 2) != 1)
        lengths = np.diff(starts, append=len(samples))
        return list(zip(samples[starts].tolist(), lengths.tolist(), strict=True))

    @property
    def digest(self) -> str:
        """What a saved state says of the selection."""
        data = self._samples.astype("<i8").tobytes()
        return f"samples:{hashlib.sha256(data).hexdigest()[:32]}"

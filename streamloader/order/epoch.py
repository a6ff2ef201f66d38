"""The global order of one epoch: position -> sample."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from streamloader.errors import ConfigError
from streamloader.order.bijection import I64Array, permute
from streamloader.order.located import Located, piece_id
from streamloader.order.random import derive_key
from streamloader.order.spec import OrderSpec, checked_int
from streamloader.order.windows import WindowShuffle

_SAMPLE_ORDER = 0x73616D706C65


class EpochOrder:
    """The order in which one epoch visits the samples, the same for every rank.

    Opening it costs time and memory in proportion to the lanes, whatever the number of samples.
    It is immutable, so threads may share it.

    Args:
        spec: what fixes the order.
        epoch: number of the epoch, in [0, 2^64).

    Raises:
        ConfigError: the epoch is out of range.
    """

    __slots__ = ("_sample_key", "_windows", "epoch", "spec")

    def __init__(self, spec: OrderSpec, epoch: int) -> None:
        self.spec = spec
        self.epoch = checked_int("epoch", epoch, 0, (1 << 64) - 1)
        self._sample_key = np.uint64(derive_key(_SAMPLE_ORDER, spec.seed, self.epoch))
        self._windows = WindowShuffle(spec, self.epoch) if spec.shuffle == "window" else None

    def locate(self, positions: npt.ArrayLike) -> Located:
        """Where positions of the global order lead.

        Args:
            positions: integers ``[n]`` in [0, num_samples), any subset in any order.

        Returns:
            int64 arrays ``[n]``.

        Raises:
            ConfigError: a position lies outside the data set.
        """
        places = np.atleast_1d(np.asarray(positions, dtype=np.int64))
        if places.size and (places.min() < 0 or places.max() >= self.spec.num_samples):
            raise ConfigError(
                f"positions must lie in [0, {self.spec.num_samples}), "
                f"got {int(places.min())} to {int(places.max())}"
            )
        if self._windows is not None:
            return self._windows.locate(places)
        return self._anywhere(places) if self.spec.shuffle == "global" else self._stored(places)

    def _anywhere(self, positions: I64Array) -> Located:
        sample = permute(positions, self.spec.num_samples, self._sample_key)
        lane = np.zeros_like(positions)
        return Located(
            sample=sample,
            lane=lane,
            piece=piece_id(lane, sample),
            piece_first=sample,
            piece_count=np.ones_like(positions),
            window_end=positions + 1,
            repeat=np.zeros_like(positions),
        )

    def _stored(self, positions: I64Array) -> Located:
        block = positions // self.spec.block_samples
        first = block * self.spec.block_samples
        count = np.minimum(self.spec.block_samples, self.spec.num_samples - first)
        lane = np.zeros_like(positions)
        return Located(
            sample=positions.copy(),
            lane=lane,
            piece=piece_id(lane, block),
            piece_first=first,
            piece_count=count,
            window_end=first + count,
            repeat=np.zeros_like(positions),
        )

"""Epochs of another length than the data set, and epochs drawn by weight."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Protocol

import numpy as np
import numpy.typing as npt

from streamloader.errors import ConfigError
from streamloader.order.bijection import I64Array
from streamloader.order.epoch import EpochOrder
from streamloader.order.located import Located, piece_of_pass, single_sample_id
from streamloader.order.random import derive_key, random_unit
from streamloader.order.spec import OrderSpec, checked_int

_WEIGHTED_DRAW = 0x7765696768
_PASSES_KEPT = 4


class Order(Protocol):
    """What a plan asks of an epoch's order."""

    @property
    def spec(self) -> OrderSpec:
        """Lanes, and ``num_samples`` as the number of positions of the epoch."""
        ...

    def locate(self, positions: npt.ArrayLike) -> Located:
        """See ``EpochOrder.locate``."""
        ...


class SizedOrder:
    """Epochs of ``size`` samples, cut one after the other from full passes over the data set.

    Pass after pass is shuffled as an epoch of its own, so every sample comes once in each pass
    however the passes are cut. Position p of epoch e is position (e·size + p) % N of pass
    (e·size + p) // N.

    Args:
        spec: of the data set, N = ``spec.num_samples``.
        epoch: number of the epoch.
        size: samples of an epoch, 1 or more; it may exceed N.
    """

    __slots__ = ("_begin", "_passes", "_whole", "spec")

    def __init__(self, spec: OrderSpec, epoch: int, size: int) -> None:
        size = checked_int("epoch_size", size, 1, 1 << 40)
        self._whole = spec
        self._begin = checked_int("epoch", epoch, 0, (1 << 64) - 1) * size
        self._passes: dict[int, EpochOrder] = {}
        self.spec = dataclasses.replace(spec, num_samples=size)

    def locate(self, positions: npt.ArrayLike) -> Located:
        """As ``EpochOrder.locate``, for positions in [0, size)."""
        places = np.atleast_1d(np.asarray(positions, dtype=np.int64))
        number = self._whole.num_samples
        pass_of = np.array([(self._begin + p) // number for p in places.tolist()], dtype=object)
        parts: dict[str, I64Array] = {
            field.name: np.empty_like(places) for field in dataclasses.fields(Located)
        }
        for which in sorted(set(pass_of.tolist())):
            mask = (pass_of == which).astype(bool)
            origin = which * number - self._begin
            part = self._pass(which).locate(places[mask] - origin)
            for name, values in parts.items():
                values[mask] = getattr(part, name)
            parts["piece"][mask] = piece_of_pass(part.piece, self._whole, which)
            parts["window_end"][mask] += origin
        parts["window_end"] = np.minimum(parts["window_end"], self.spec.num_samples)
        return Located(**parts)

    def _pass(self, which: int) -> EpochOrder:
        order = self._passes.get(which)
        if order is None:
            if len(self._passes) >= _PASSES_KEPT:
                del self._passes[min(self._passes)]
            order = self._passes[which] = EpochOrder(self._whole, which)
        return order


class Weights:
    """How often each sample is drawn, relative to the others.

    Args:
        weights: ``[N]``, finite, not negative, not all zero.
        num_samples: N.

    Raises:
        ConfigError: other weights.
    """

    __slots__ = ("_ends", "digest")

    def __init__(self, weights: npt.ArrayLike, num_samples: int) -> None:
        values = np.asarray(weights, dtype=np.float64)
        if values.shape != (num_samples,):
            raise ConfigError(
                f"sampler_weights takes a weight for each of {num_samples} samples, "
                f"got shape {list(values.shape)}"
            )
        if not np.isfinite(values).all() or values.min() < 0 or not values.any():
            raise ConfigError("sampler_weights must be finite, not negative and not all zero")
        ends = np.cumsum(values)
        self._ends: npt.NDArray[np.float64] = ends / ends[-1]
        self.digest = "weights:" + hashlib.sha256(values.astype("<f8").tobytes()).hexdigest()[:32]

    def draw(self, shares: npt.NDArray[np.float64]) -> I64Array:
        """The samples, int64 ``[n]``, at shares of the total weight in [0, 1)."""
        drawn = np.searchsorted(self._ends, shares, side="right")
        return np.minimum(drawn, len(self._ends) - 1).astype(np.int64)


class WeightedOrder:
    """Epochs of ``size`` samples, each drawn by weight and independently of the others.

    Every position reads its sample alone, since neighbours are drawn no more often together.

    Args:
        spec: of the data set.
        epoch: number of the epoch.
        size: samples of an epoch.
        weights: of the samples.
    """

    __slots__ = ("_key", "_weights", "spec")

    def __init__(self, spec: OrderSpec, epoch: int, size: int, weights: Weights) -> None:
        size = checked_int("epoch_size", size, 1, 1 << 40)
        self.spec = dataclasses.replace(spec, num_samples=size, lanes=1, shuffle="global")
        self._key = derive_key(_WEIGHTED_DRAW, spec.seed, epoch)
        self._weights = weights

    def locate(self, positions: npt.ArrayLike) -> Located:
        """As ``EpochOrder.locate``, for positions in [0, size)."""
        places = np.atleast_1d(np.asarray(positions, dtype=np.int64))
        sample = self._weights.draw(random_unit(self._key, places.astype(np.uint64)))
        return Located(
            sample=sample,
            lane=np.zeros_like(places),
            piece=np.array([single_sample_id(s) for s in sample], dtype=np.int64),
            piece_first=sample,
            piece_count=np.ones_like(places),
            window_end=places + 1,
            repeat=np.zeros_like(places),
        )

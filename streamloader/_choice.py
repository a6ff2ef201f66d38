"""Which samples an epoch draws: all, a subset, so many, or by weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamloader.errors import ConfigError
from streamloader.fetch import Catalog
from streamloader.order import (
    EpochOrder,
    MixedOrder,
    Mixture,
    Order,
    OrderSpec,
    Selection,
    SizedOrder,
    WeightedOrder,
    Weights,
)

LABEL = "label"
Subset = float | Sequence[int] | Sequence[str] | npt.NDArray[np.integer[Any]]
SamplerWeights = str | Sequence[float] | Mapping[str, float] | npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class Choice:
    """The samples of a loader's epochs.

    Attributes:
        spec: order of the samples that there are to choose from.
        selection: what their numbers mean; None if they are the data set's own.
        weights: how often each is drawn; None for once per pass.
        epoch_size: samples of an epoch; None for one full pass.
        subset: what a saved state says of it.
        mixture: the data sets, where there are several.
        mixed: what a saved state says of them.
    """

    spec: OrderSpec
    selection: Selection | None
    weights: Weights | None
    epoch_size: int | None
    subset: str | None
    mixture: Mixture | None = None
    mixed: str | None = None

    def order(self, epoch: int) -> Order:
        """The order of one epoch."""
        size = self.epoch_size
        if self.mixture is not None:
            return MixedOrder(self.mixture, epoch, self.num_samples)
        if self.weights is not None:
            return WeightedOrder(self.spec, epoch, size or self.spec.num_samples, self.weights)
        if size is not None:
            return SizedOrder(self.spec, epoch, size)
        return EpochOrder(self.spec, epoch)

    @property
    def num_samples(self) -> int:
        """Samples of one epoch, over all ranks."""
        return self.epoch_size or self.spec.num_samples


async def choose(
    catalog: Catalog,
    *,
    seed: int,
    shuffle: bool | str,
    subset: Subset | None,
    weights: SamplerWeights | None,
    epoch_size: int | None,
) -> Choice:
    """Reads what the choice depends on (keys, labels) and makes it.

    Raises:
        ConfigError: a subset, weights or a size that do not fit the data set.
    """
    number, selection, described = await _choose_subset(catalog, subset)
    chosen = await _choose_weights(catalog, selection, number, weights)
    check_epoch_size(epoch_size)
    spec = OrderSpec.choose(number, catalog.blocks.block_samples, seed=seed, shuffle=shuffle)
    if chosen is not None:
        described = f"{described}+{chosen.digest}" if described else chosen.digest
    return Choice(spec, selection, chosen, epoch_size, described)


def check_epoch_size(epoch_size: int | None) -> None:
    """ConfigError if it is no size of an epoch."""
    if epoch_size is not None and (isinstance(epoch_size, bool) or epoch_size < 1):
        raise ConfigError(f"epoch_size must be at least 1, got {epoch_size!r}")


async def _choose_subset(
    catalog: Catalog, subset: Subset | None
) -> tuple[int, Selection | None, str | None]:
    """Samples to choose from, what their numbers mean, and the words for a state."""
    whole = catalog.num_samples
    if subset is None:
        return whole, None, None
    if isinstance(subset, float):
        if not 0 < subset <= 1:
            raise ConfigError(f"subset as a share must lie in (0, 1], got {subset}")
        # The first samples: which they are was drawn when the data set was shuffled at writing.
        return max(1, round(subset * whole)), None, f"share:{subset!r}"
    if isinstance(subset, str | int):
        raise ConfigError(f"subset takes a share like 0.1, sample numbers or keys, got {subset!r}")
    if len(subset) and isinstance(subset[0], str):
        subset = await _numbers_of_keys(catalog, [str(key) for key in subset])
    selection = Selection(np.asarray(subset), whole)
    return len(selection), selection, selection.digest


async def _numbers_of_keys(catalog: Catalog, keys: list[str]) -> list[int]:
    wanted = dict.fromkeys(keys, -1)
    for number, key in enumerate(await catalog.keys()):
        if key in wanted:
            wanted[key] = number
    missing = [key for key, number in wanted.items() if number < 0]
    if missing:
        raise ConfigError(
            f"{len(missing)} of {len(wanted)} keys of the subset are not in {catalog.url}:"
            f" {', '.join(map(repr, missing[:3]))}{' …' if len(missing) > 3 else ''}"
        )
    return list(wanted.values())


async def _choose_weights(
    catalog: Catalog, selection: Selection | None, number: int, weights: SamplerWeights | None
) -> Weights | None:
    if weights is None:
        return None
    if isinstance(weights, str | Mapping):
        values = await _weights_of_labels(catalog, weights)
    else:
        values = np.asarray(weights, dtype=np.float64)
    if values.shape != (catalog.num_samples,):
        raise ConfigError(
            f"sampler_weights takes a weight for each of the {catalog.num_samples} samples,"
            f" got shape {list(values.shape)}"
        )
    if selection is not None:
        values = values[selection.samples(np.arange(number, dtype=np.int64))]
    return Weights(values[:number], number)


async def _weights_of_labels(
    catalog: Catalog, weights: str | Mapping[str, float]
) -> npt.NDArray[np.float64]:
    """A weight per sample from its class: one share for each class, or the weights given."""
    if isinstance(weights, str) and weights != "balanced":
        raise ConfigError(f"sampler_weights must be 'balanced' or weights, got {weights!r}")
    labels = (await catalog.column(LABEL)).astype(np.int64)
    if isinstance(weights, str):
        counts = np.bincount(labels)
        per_class = np.divide(1.0, counts, out=np.zeros(len(counts)), where=counts > 0)
        return per_class[labels]
    classes = catalog.manifest.classes or ()
    unknown = [name for name in weights if name not in classes]
    if unknown:
        raise ConfigError(f"sampler_weights names classes that {catalog.url} lacks: {unknown}")
    per_class = np.array([weights.get(name, 1.0) for name in classes], dtype=np.float64)
    return per_class[labels]

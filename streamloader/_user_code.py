"""The user's own Python on samples and batches, run in the decode threads.

It holds the GIL while it runs, so it costs the training loop time that built-in transforms
do not; heavy work belongs into conversion or onto the GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamloader._fields import INDEX, SOURCE, VALID
from streamloader.errors import ConfigError

Sample = dict[str, Any]
SampleFunction = Callable[[Sample], Mapping[str, Any]]
BatchFunction = Callable[[dict[str, Any]], Mapping[str, Any]]
CollateFunction = Callable[[list[Mapping[str, Any]]], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class UserCode:
    """``map`` per sample, then ``collate`` over the samples, then ``batch_map`` per batch.

    Samples and batches are dicts of numpy arrays, pictures channels first as in a batch;
    variable fields are bytes, str or arrays, in a batch lists of them.
    """

    map: SampleFunction | None = None
    collate: CollateFunction | None = None
    batch_map: BatchFunction | None = None

    def __post_init__(self) -> None:
        for name in ("map", "collate", "batch_map"):
            function = getattr(self, name)
            if function is not None and not callable(function):
                raise ConfigError(f"{name} must be callable, got {function!r}")

    def __bool__(self) -> bool:
        return any((self.map, self.collate, self.batch_map))

    def apply(self, batch: dict[str, Any]) -> dict[str, Any]:
        """What the batch becomes; ``index``, ``valid`` and ``source`` stay unless replaced.

        Raises:
            TypeError: a function returned something that is no mapping.
            Exception: whatever the user's code raises, with a note that says where.
        """
        kept = {name: batch[name] for name in (INDEX, VALID, SOURCE) if name in batch}
        if self.map is not None or self.collate is not None:
            samples: list[Mapping[str, Any]] = [
                self._sample(batch, row) for row in range(len(batch["index"]))
            ]
            batch = _called("collate", self.collate or stack, samples, "")
        if self.batch_map is not None:
            numbers = f"the batch of samples {kept['index'].tolist()}"
            batch = _called("batch_map", self.batch_map, batch, numbers)
        return {**kept, **batch}

    def _sample(self, batch: dict[str, Any], row: int) -> Mapping[str, Any]:
        sample = {name: values[row] for name, values in batch.items()}
        if self.map is None:
            return sample
        return _called("map", self.map, sample, f"sample {int(sample['index'])}")


def _called(name: str, function: Callable[[Any], Any], value: Any, where: str) -> dict[str, Any]:
    try:
        result = function(value)
    except Exception as error:
        error.add_note(f"in {name}= of the loader" + (f", on {where}" if where else ""))
        raise
    if not isinstance(result, Mapping):
        raise TypeError(
            f"{name}= of the loader must return a mapping of field names to values, got"
            f" {type(result).__name__}"
        )
    return dict(result)


def stack(samples: list[Mapping[str, Any]]) -> dict[str, Any]:
    """One entry per field: arrays and numbers of equal shape stacked, others as a list."""
    return {name: _joined([sample[name] for sample in samples]) for name in samples[0]}


def _joined(values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, np.ndarray | np.generic | bool | int | float):
        shapes = {np.shape(value) for value in values}
        return np.stack([np.asarray(value) for value in values]) if len(shapes) == 1 else values
    if hasattr(first, "is_pinned") and len({value.shape for value in values}) == 1:
        import torch

        return torch.stack(values)
    return values

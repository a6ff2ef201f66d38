"""The global order of several data sets mixed by weight, each in its own order through full passes.

A position's data set follows from the weights alone, and its sample from how often the data set
came before, in this epoch and all earlier ones: the n-th draw of a data set of N samples is
position n % N of its pass n // N, a pass being an epoch of that data set by itself.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamloader.errors import ConfigError
from streamloader.order.bijection import I64Array
from streamloader.order.epoch import EpochOrder
from streamloader.order.located import Located, piece_of_pass
from streamloader.order.proportions import Proportions
from streamloader.order.random import derive_key
from streamloader.order.spec import MAX_SAMPLES, OrderSpec, checked_int

MAX_SOURCES = 4096
_SOURCE_SEEDS = 0x736F75726365
_LANES = 256
_PASSES_KEPT = 64


@dataclass(frozen=True, slots=True)
class Mixture:
    """What fixes the order of a mixture: the order of each data set, and how often it is drawn.

    Samples are numbered through all data sets: those of the first, those of the second, ….

    Raises:
        ConfigError: no data set, more than 4,096, or not a weight for each.
    """

    specs: tuple[OrderSpec, ...]
    proportions: Proportions
    first_samples: I64Array = dataclasses.field(init=False, repr=False, compare=False)
    """Number of each data set's first sample, int64 ``[data sets]``."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.specs) <= MAX_SOURCES or len(self.specs) != len(self.proportions):
            raise ConfigError(
                f"a mixture takes 1 to {MAX_SOURCES} data sets with a weight for each, got"
                f" {len(self.specs)} with {len(self.proportions)} weights"
            )
        sizes = [spec.num_samples for spec in self.specs]
        first_samples = np.cumsum([0, *sizes[:-1]], dtype=np.int64)
        object.__setattr__(self, "first_samples", first_samples)

    @classmethod
    def choose(
        cls,
        sizes: list[tuple[int, int]],
        proportions: Proportions,
        *,
        seed: int,
        shuffle: bool | str,
    ) -> Mixture:
        """The mixture of data sets of ``(num_samples, block_samples)`` each.

        Each gets its part of the 256 lanes that one data set has, as the next power of two, so
        that a mixture holds hardly more blocks in memory than one data set does. The first has the
        seed itself, the others seeds derived from it.

        Raises:
            ConfigError: as the constructors.
        """
        specs = []
        for source, (num_samples, block_samples) in enumerate(sizes):
            part = -(-_LANES * proportions.weights[source] // proportions.total)
            spec = OrderSpec.choose(
                num_samples,
                block_samples,
                seed=seed,
                shuffle=shuffle,
                lanes=1 << (part - 1).bit_length(),
            )
            if source:
                spec = dataclasses.replace(spec, seed=derive_key(_SOURCE_SEEDS, spec.seed, source))
            specs.append(spec)
        return cls(tuple(specs), proportions)

    @property
    def num_samples(self) -> int:
        """Samples of all data sets together."""
        return sum(spec.num_samples for spec in self.specs)

    def source_of(self, samples: I64Array) -> I64Array:
        """Number of the data set that has each sample, int64 ``[n]``."""
        return np.searchsorted(self.first_samples, samples, side="right") - 1

    def draws(self, samples: I64Array, repeat: I64Array) -> I64Array:
        """A number for each draw of an epoch, so that a sample drawn again is cropped anew.

        That of a sample in its first pass is the sample's own; arguments as of ``BatchPlan``.
        """
        return samples + repeat * self.num_samples

    def spec(self, size: int) -> OrderSpec:
        """What the epochs of ``size`` samples have in place of one data set's spec."""
        return OrderSpec(
            num_samples=size,
            block_samples=max(spec.block_samples for spec in self.specs),
            seed=self.specs[0].seed,
            shuffle=self.specs[0].shuffle,
            lanes=max(spec.lanes for spec in self.specs),
            window=self.specs[0].window,
        )


class MixedOrder:
    """One epoch of a mixture; epochs follow one another without loss, whatever their size.

    Args:
        mixture: of which data sets.
        epoch: number of the epoch.
        size: samples of an epoch.

    Attributes:
        spec: of the epoch as a whole.
        first_passes: the pass of each data set that the epoch begins in.
        drawn: how often each data set comes in the epoch.
    """

    __slots__ = (
        "_begin",
        "_end_counts",
        "_first_samples",
        "_kept",
        "_offsets",
        "drawn",
        "epoch",
        "first_passes",
        "mixture",
        "spec",
    )

    def __init__(self, mixture: Mixture, epoch: int, size: int) -> None:
        self.mixture = mixture
        self.epoch = checked_int("epoch", epoch, 0, (1 << 64) - 1)
        size = checked_int("epoch_size", size, 1, MAX_SAMPLES)
        self.spec = mixture.spec(size)
        self._first_samples = mixture.first_samples
        self._kept: dict[tuple[int, int], EpochOrder] = {}

        # Whole rounds of the pattern are taken off, so that array arithmetic stays below 2^62.
        proportions = mixture.proportions
        rounds, self._begin = divmod(self.epoch * size, proportions.total)
        ends = proportions.counts(np.array([self._begin, self._begin + size], np.int64))
        self.drawn = ends[1] - ends[0]
        self._end_counts = ends[1].tolist()
        self.first_passes: list[int] = []
        self._offsets: list[int] = []
        for source, spec in enumerate(mixture.specs):
            before = rounds * proportions.weights[source] + int(ends[0, source])
            which, offset = divmod(before, spec.num_samples)
            self.first_passes.append(which)
            self._offsets.append(offset - int(ends[0, source]))

    def locate(self, positions: npt.ArrayLike) -> Located:
        """As ``EpochOrder.locate``, for positions in [0, size); samples are the mixture's."""
        places = np.atleast_1d(np.asarray(positions, dtype=np.int64))
        source, count = self.mixture.proportions.draw(self._begin + places)
        parts = {field.name: np.empty_like(places) for field in dataclasses.fields(Located)}
        for which in np.unique(source).tolist():
            rows = np.flatnonzero(source == which)
            self._locate_source(which, self._offsets[which] + count[rows], rows, parts)
        return Located(**parts)

    def counts(self, positions: I64Array) -> I64Array:
        """How often each data set comes before positions, from the epoch's pass of it on.

        Args:
            positions: int64 ``[n]``, from 0 up, also beyond the epoch's end.

        Returns:
            int64 ``[n, data sets]``; divided by a data set's size, the pass counted from the
            epoch's first one, and the position in it.
        """
        return self.mixture.proportions.counts(self._begin + positions) + self._offsets

    def places(self, source: int, counts: I64Array) -> I64Array:
        """Positions of the draws that ``counts`` numbers in the same way; int64 ``[n]``."""
        numbers = counts - self._offsets[source]
        return self.mixture.proportions.place(source, numbers) - self._begin

    def _locate_source(
        self, source: int, counts: I64Array, rows: I64Array, parts: dict[str, I64Array]
    ) -> None:
        """Fills in the rows of one data set; ``counts`` as of the method of that name."""
        spec = self.mixture.specs[source]
        later = counts // spec.num_samples
        for passes in np.unique(later).tolist():
            inside = np.flatnonzero(later == passes)
            begin = passes * spec.num_samples
            part = self._pass(source, passes).locate(counts[inside] - begin)
            mine = rows[inside]
            parts["sample"][mine] = self._first_samples[source] + part.sample
            parts["lane"][mine] = part.lane
            parts["piece"][mine] = piece_of_pass(part.piece, spec, passes, source)
            parts["piece_first"][mine] = self._first_samples[source] + part.piece_first
            parts["piece_count"][mine] = part.piece_count
            parts["window_end"][mine] = self._window_end(source, begin + part.window_end)
            parts["repeat"][mine] = passes

    def _window_end(self, source: int, ends: I64Array) -> I64Array:
        """The epoch's position behind the last draw of a window, or the epoch's end before it."""
        last = self._end_counts[source] + self._offsets[source] - 1
        within = self.places(source, np.minimum(ends - 1, last)) + 1
        return np.where(ends - 1 > last, self.spec.num_samples, within)

    def _pass(self, source: int, passes: int) -> EpochOrder:
        """The order of a pass, counted from the epoch's first one."""
        order = self._kept.get((source, passes))
        if order is None:
            if len(self._kept) >= max(_PASSES_KEPT, 2 * len(self.mixture.specs)):
                del self._kept[next(iter(self._kept))]
            spec = self.mixture.specs[source]
            order = EpochOrder(spec, self.first_passes[source] + passes)
            self._kept[source, passes] = order
        return order

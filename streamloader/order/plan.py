"""The batches of one rank: which positions of the global order are its rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from streamloader.errors import ConfigError
from streamloader.order.bijection import I64Array
from streamloader.order.gaps import GapOrder
from streamloader.order.lane_rows import dealt_lanes, lane_positions
from streamloader.order.located import Located, single_sample_id
from streamloader.order.mixed import MixedOrder
from streamloader.order.mixed_rows import MixedRows
from streamloader.order.passes import Order
from streamloader.order.spec import checked_int

LastBatch: TypeAlias = Literal["pad", "drop", "partial"]
LAST_BATCH_RULES = ("pad", "drop", "partial")
_MAX_BATCH = 1 << 31
_STRETCH_ROWS = 16_384


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BatchRows:
    """What a batch of one rank consists of. Arrays are ``[b]``, one entry a row.

    b is the batch size, but for a last batch under ``"partial"``.
    """

    number: int
    """Counts this rank's batches from where the plan starts."""

    positions: I64Array
    """int64 positions in the global order; ``num_samples`` or more where ``valid`` is False."""

    samples: I64Array
    """int64 numbers of the samples; the sample of position 0 where ``valid`` is False."""

    valid: npt.NDArray[np.bool_]
    """False for rows that only fill the batch."""

    repeat: I64Array
    """int64 passes over the row's data set that the epoch has begun before; 0 but in a mixture."""

    next_position: int
    """Global position consumed once this batch is: the cursor to save, and to start from."""

    own_rows: I64Array | None = None
    """For batches by arrival: int64 numbers of the rows in ``ArrivalPlan``, -1 where ``valid`` is
    False."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BatchPlan(BatchRows):
    """A batch, rows by ascending position, and what to read for it; arrays are ``[b]``."""

    piece: I64Array
    """int64 identity, within the epoch, of the piece to read the row from."""

    piece_first: I64Array
    """int64 number of that piece's first sample."""

    piece_count: I64Array
    """int64 count of its samples."""

    piece_last_batch: I64Array
    """int64 number of the last batch of this rank that may need the piece; drop it after that."""


@dataclass(frozen=True, slots=True, eq=False)
class _Stretch:
    """Some consecutive batches, planned in one go; arrays are ``[batches * batch_size]``."""

    first: int
    batches: int
    positions: I64Array
    valid: npt.NDArray[np.bool_]
    located: Located


class RankPlan:
    """The batches of one rank in one epoch.

    A global batch is ``batch_size * world_size`` consecutive positions. With g = gcd(world_size,
    lanes), those of equal residue modulo g are put in a row, lane by lane, and cut into runs of
    ``batch_size``; rank r has run r // g of residue r % g. So a rank stays with its lanes, and
    reads close to its share of the bytes, also where ranks do not divide lanes. Where they do, it
    has every position p with ``p % world_size == rank``. For a mixture see ``MixedRows``.

    Args:
        order: the epoch's order.
        batch_size: rows of one rank's batch.
        rank: this rank (with several devices in a process, each counts as one).
        world_size: number of ranks.
        last_batch: ``"pad"``: every batch has ``batch_size`` rows, those beyond the end invalid.
            ``"drop"``: no short global batch. ``"partial"``: the rows that exist, or one invalid
            row where there is none. Every rank has the same number of batches under each rule.
        start: global position already consumed, 0 to num_samples.

    Raises:
        ConfigError: an argument is out of range.
    """

    __slots__ = (
        "_filler",
        "_global_batch",
        "_group",
        "_lanes",
        "_mixed",
        "_stretch",
        "batch_size",
        "last_batch",
        "num_batches",
        "order",
        "rank",
        "start",
        "world_size",
    )

    def __init__(
        self,
        order: Order,
        *,
        batch_size: int,
        rank: int,
        world_size: int,
        last_batch: LastBatch = "pad",
        start: int = 0,
    ) -> None:
        spec = order.spec
        self.order = order
        self.batch_size = checked_int("batch_size", batch_size, 1, _MAX_BATCH)
        self.world_size = checked_int("world_size", world_size, 1, _MAX_BATCH)
        self.rank = checked_int("rank", rank, 0, self.world_size - 1)
        self.start = checked_int("start", start, 0, spec.num_samples)
        if last_batch not in LAST_BATCH_RULES:
            raise ConfigError(f"last_batch must be one of {LAST_BATCH_RULES}, got {last_batch!r}")
        self.last_batch = last_batch
        self._global_batch = self.batch_size * self.world_size
        left = spec.num_samples - self.start
        whole, rest = divmod(left, self._global_batch)
        self.num_batches = whole + (rest > 0 and last_batch != "drop")
        self._group = math.gcd(self.world_size, spec.lanes)
        self._lanes = self._dealt_lanes()
        self._mixed: MixedRows | None = None
        inner = order.whole if isinstance(order, GapOrder) else order
        if isinstance(inner, MixedOrder):
            self._mixed = MixedRows(
                inner,
                batch_size=self.batch_size,
                rank=self.rank,
                world_size=self.world_size,
                start=self.start,
            )
        self._filler = int(order.locate([0]).sample[0])
        self._stretch: _Stretch | None = None

    def batch(self, number: int) -> BatchPlan:
        """The rank's batch of that number, counted from ``start``.

        Batches are cheapest in ascending order: a few are planned ahead at a time, because numpy's
        calls cost more than its arithmetic on one batch.

        Raises:
            ConfigError: there is no such batch.
        """
        number = checked_int("batch number", number, 0, self.num_batches - 1)
        stretch = self._stretch
        if stretch is None or not 0 <= number - stretch.first < stretch.batches:
            self._stretch = stretch = self._plan_stretch(number)
        low = (number - stretch.first) * self.batch_size
        rows = slice(low, low + self.batch_size)
        if self.last_batch == "partial":
            real = int(np.count_nonzero(stretch.valid[rows]))
            rows = slice(low, low + max(1, real))
        valid = stretch.valid[rows]
        located = stretch.located
        last_use = (located.window_end[rows] - 1 - self.start) // self._global_batch
        last_use = np.minimum(last_use, self.num_batches - 1)
        single = single_sample_id(np.int64(self._filler))
        consumed = self.start + (number + 1) * self._global_batch
        return BatchPlan(
            number=number,
            positions=stretch.positions[rows],
            samples=located.sample[rows],
            valid=valid,
            piece=np.where(valid, located.piece[rows], single),
            piece_first=np.where(valid, located.piece_first[rows], self._filler),
            piece_count=np.where(valid, located.piece_count[rows], 1),
            piece_last_batch=np.where(valid, last_use, number),
            repeat=np.where(valid, located.repeat[rows], 0),
            next_position=min(consumed, self.order.spec.num_samples),
        )

    def _plan_stretch(self, first: int) -> _Stretch:
        most = _STRETCH_ROWS // max(self.batch_size, self._lanes.size)
        batches = max(1, min(most, self.num_batches - first))
        positions = self.positions(first, batches)
        valid = positions < self.order.spec.num_samples
        located = self.order.locate(np.where(valid, positions, 0))
        return _Stretch(first, batches, positions, valid, located)

    def _dealt_lanes(self) -> I64Array:
        """Lanes of this rank's residue, as the ranks that share it have them."""
        residue = self.rank % self._group
        lanes = np.arange(residue, self.order.spec.lanes, self._group, dtype=np.int64)
        return dealt_lanes(lanes, self.world_size // self._group)

    def positions(self, first: int, batches: int) -> I64Array:
        """Positions of this rank's rows in consecutive batches, ascending in each.

        Args:
            first: number of the first batch.
            batches: how many.

        Returns:
            int64 ``[batches * batch_size]``; ``num_samples`` or more beyond the end.
        """
        if self._mixed is not None:
            return self._mixed.positions(first, batches)
        begins = self.start + (first + np.arange(batches, dtype=np.int64)) * self._global_batch
        low = self.rank // self._group * self.batch_size
        row = low + np.arange(self.batch_size, dtype=np.int64)
        row = row + self._global_batch // self._group * np.arange(batches)[:, None]
        backwards = None
        if self.order.spec.shuffle == "window":
            # A lane that two ranks share runs backwards in every other global batch, so that one of
            # them goes on where it stopped, and no window is cut at the border of two batches.
            backwards = begins[:, None] // self._global_batch % 2 == 1
        positions = lane_positions(
            row,
            begins=begins,
            counts=self._global_batch,
            lanes=self._lanes,
            stride=self.order.spec.lanes,
            backwards=backwards,
        )
        positions.sort(axis=1)
        return positions.reshape(-1)

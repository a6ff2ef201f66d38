"""What a rank has left to deliver when its batches are made by arrival."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from streamloader.order.arrived import Arrived
from streamloader.order.bijection import I64Array
from streamloader.order.located import single_sample_id
from streamloader.order.passes import Order
from streamloader.order.plan import BatchPlan, LastBatch, RankPlan

_LOOK_AHEAD_ROWS = 16_384
_LOOK_AHEAD_BATCHES = (4, 256)
_PER_ROW = (
    "positions",
    "samples",
    "piece",
    "piece_first",
    "piece_count",
    "piece_last_batch",
    "repeat",
)


def look_ahead_rows(batch_size: int) -> int:
    """How far beyond the first row that a rank's consumer lacks a batch may reach.

    It bounds the bits of a state: 16,384 rows, but at least 4 batches and at most 256.
    """
    least, most = _LOOK_AHEAD_BATCHES
    return min(most * batch_size, max(least * batch_size, _LOOK_AHEAD_ROWS))


class ArrivalPlan:
    """The batches that a rank has left, as they are if everything comes in turn.

    Which row is in which batch is then decided by arrival; how many batches there are, and how
    many rows each has, is decided here and the same for every arrival.

    Args:
        order: the epoch's order.
        batch_size, rank, world_size, last_batch: as of ``RankPlan``.
        start: global position already consumed, where ``arrived`` is None.
        arrived: what this rank's consumer has; its cut goes on.

    Raises:
        ConfigError: an argument is out of range.
    """

    def __init__(
        self,
        order: Order,
        *,
        batch_size: int,
        rank: int,
        world_size: int,
        last_batch: LastBatch = "pad",
        start: int = 0,
        arrived: Arrived | None = None,
    ) -> None:
        fresh = Arrived(start, batch_size, world_size, rank, rows=0)
        self.arrived = arrived = arrived or fresh
        self.order = order
        self.batch_size = batch_size
        self.last_batch = last_batch
        self._cut = RankPlan(
            order,
            batch_size=arrived.batch_size,
            rank=rank,
            world_size=world_size,
            last_batch="drop" if last_batch == "drop" else "pad",
            start=arrived.start,
        )
        left = max(0, self._rows_of_every_rank() - arrived.rows)
        self.num_batches = left // batch_size if last_batch == "drop" else -(-left // batch_size)

    @property
    def look_ahead_rows(self) -> int:
        """See the function of this name."""
        return look_ahead_rows(self.batch_size)

    def batch(self, number: int) -> BatchPlan:
        """The batch of that number if all rows came in turn: what to read for it.

        As cheap as ``RankPlan.batch``, in ascending order.
        """
        begin = min(number * self.batch_size, self._rows_left)
        end = min(begin + self.batch_size, self._rows_left)
        own = self._own_rows(np.arange(begin, end, dtype=np.int64))
        columns = self._columns(own, number)
        total = self.batch_size if self.last_batch != "partial" else max(1, own.size)
        fill = self._filler(total - own.size, number)
        columns = {name: np.concatenate([columns[name], fill[name]]) for name in columns}
        own = np.concatenate([own, np.full(total - own.size, -1, dtype=np.int64)])
        return BatchPlan(
            number=number,
            valid=own >= 0,
            own_rows=own,
            next_position=self.position_after(number),
            **columns,
        )

    def position_after(self, number: int) -> int:
        """Samples of the epoch that all ranks together have after their batch of that number."""
        rows = self.arrived.rows + (number + 1) * self.batch_size
        reached = self.arrived.start + rows * self.arrived.world_size
        is_last = number >= self.num_batches - 1
        samples = self.order.spec.num_samples
        return samples if is_last else min(reached, samples)

    @cached_property
    def _skipped(self) -> I64Array:
        """For each own row that the consumer has ahead: how many that it lacks come before it."""
        ahead = self.arrived.rows_ahead
        return ahead - self.arrived.base - np.arange(ahead.size)

    @cached_property
    def _rows_left(self) -> int:
        """Real own rows that the consumer lacks."""
        cut = self._cut
        rows = 0
        if cut.num_batches:
            last = cut.num_batches - 1
            rows = last * cut.batch_size + _num_valid(cut, last)
        ahead = self.arrived.rows_ahead
        return max(0, rows - self.arrived.base - int(np.count_nonzero(ahead < rows)))

    def _rows_of_every_rank(self) -> int:
        """Own rows that every rank's number of batches must have room for."""
        cut = self._cut
        rows = cut.num_batches * cut.batch_size
        whole_batches = cut.batch_size == self.batch_size and not self.arrived.rows % cut.batch_size
        if whole_batches or cut.last_batch == "drop" or not rows:
            return rows
        last = cut.num_batches - 1
        fullest = max(_num_valid(_of_rank(cut, rank), last) for rank in range(cut.world_size))
        return last * cut.batch_size + fullest

    def _own_rows(self, left: I64Array) -> I64Array:
        """Own rows by their places among those that the consumer lacks."""
        return self.arrived.base + left + np.searchsorted(self._skipped, left, side="right")

    def _place_left(self, own_row: I64Array) -> I64Array:
        """How many own rows that the consumer lacks come before these."""
        ahead = self.arrived.rows_ahead
        return own_row - self.arrived.base - np.searchsorted(ahead, own_row, side="left")

    def _columns(self, own: I64Array, number: int) -> dict[str, I64Array]:
        size = self._cut.batch_size
        if not own.size:
            return {name: np.empty(0, dtype=np.int64) for name in _PER_ROW}
        first, last = int(own[0]) // size, int(own[-1]) // size
        batches = [self._cut.batch(n) for n in range(first, last + 1)]
        rows = own - first * size
        columns: dict[str, I64Array] = {
            name: np.concatenate([getattr(batch, name) for batch in batches])[rows]
            for name in _PER_ROW
        }
        last_row = (columns["piece_last_batch"] + 1) * size - 1
        last_batch = self._place_left(last_row) // self.batch_size
        columns["piece_last_batch"] = np.clip(last_batch, number, max(self.num_batches - 1, number))
        return columns

    def _filler(self, count: int, number: int) -> dict[str, I64Array]:
        """Rows beyond the end repeat the sample of position 0, read alone."""
        sample = int(self.order.locate([0]).sample[0]) if count else 0
        values = {
            "positions": self.order.spec.num_samples,
            "samples": sample,
            "piece": int(single_sample_id(np.int64(sample))),
            "piece_first": sample,
            "piece_count": 1,
            "piece_last_batch": number,
            "repeat": 0,
        }
        return {name: np.full(count, value, dtype=np.int64) for name, value in values.items()}


def _num_valid(plan: RankPlan, number: int) -> int:
    return int(np.count_nonzero(plan.positions(number, 1) < plan.order.spec.num_samples))


def _of_rank(cut: RankPlan, rank: int) -> RankPlan:
    return RankPlan(
        cut.order,
        batch_size=cut.batch_size,
        rank=rank,
        world_size=cut.world_size,
        last_batch=cut.last_batch,
        start=cut.start,
    )

"""Which positions of a mixture's global batches are one rank's rows.

Every rank has the weights in each of its batches, and of each data set the same lanes batch after
batch. In a global batch the positions of each data set are put in a row, lane by lane, and these
rows are dealt to the ranks side by side: of the first B, the first 2·B, … each data set has its
part of the global batch, as closely as whole rows allow.
"""

from __future__ import annotations

import numpy as np

from streamloader.errors import ConfigError
from streamloader.order.bijection import I64Array
from streamloader.order.lane_rows import dealt_lanes, lane_positions
from streamloader.order.mixed import MixedOrder
from streamloader.order.proportions import MAX_TOTAL


class MixedRows:
    """A rank's rows of a ``MixedOrder``.

    Args:
        order, batch_size, rank, world_size, start: as of ``RankPlan``, which has checked them.

    Raises:
        ConfigError: a global batch of more than 2^40 rows.
    """

    __slots__ = ("_batch_size", "_global_batch", "_lanes", "_order", "_rank", "_start")

    def __init__(
        self, order: MixedOrder, *, batch_size: int, rank: int, world_size: int, start: int
    ) -> None:
        self._order = order
        self._batch_size = batch_size
        self._global_batch = batch_size * world_size
        self._rank = rank
        self._start = start
        if self._global_batch > MAX_TOTAL:
            raise ConfigError(
                f"batch_size * world_size must be at most 2^40, got {self._global_batch}"
            )
        self._lanes = [
            dealt_lanes(np.arange(spec.lanes, dtype=np.int64), world_size)
            for spec in order.mixture.specs
        ]

    def positions(self, first: int, batches: int) -> I64Array:
        """Positions of the rank's rows in consecutive batches, ascending.

        Returns:
            int64 ``[batches * batch_size]``.
        """
        order = self._order
        begins = self._start + (first + np.arange(batches, dtype=np.int64)) * self._global_batch
        counts = order.counts(begins)
        amounts = order.counts(begins + self._global_batch) - counts
        low, high = (
            order.mixture.proportions.deal(amounts, np.full(batches, (rank * self._batch_size)))
            for rank in (self._rank, self._rank + 1)
        )
        falls = begins // self._global_batch % 2 == 1
        parts = [
            self._of_source(
                source,
                counts[:, source],
                amounts[:, source],
                low[:, source],
                high[:, source],
                falls,
            )
            for source in range(len(order.mixture.specs))
        ]
        positions = np.concatenate(parts)
        positions.sort()
        return positions

    def _of_source(
        self,
        source: int,
        begins: I64Array,
        amounts: I64Array,
        low: I64Array,
        high: I64Array,
        falls: np.typing.NDArray[np.bool_],
    ) -> I64Array:
        """The rows from ``low`` to ``high`` of one data set's row in each batch, as positions."""
        spec = self._order.mixture.specs[source]
        taken = high - low
        batch = np.repeat(np.arange(len(begins)), taken)
        before = np.cumsum(amounts) - amounts
        within = np.arange(len(batch)) - np.repeat(np.cumsum(taken) - taken, taken)
        # A batch at the end of a pass has its last rows in lanes counted on, as if it went on.
        in_pass = begins % spec.num_samples
        counts = lane_positions(
            before[batch] + low[batch] + within,
            begins=in_pass,
            counts=amounts,
            lanes=self._lanes[source],
            stride=spec.lanes,
            backwards=falls[batch] if spec.shuffle == "window" else None,
        )
        return self._order.places(source, begins[batch] - in_pass[batch] + counts)

"""Which rows go into the next batch, when whatever has come may go."""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from streamloader.order.arrival_plan import ArrivalPlan
from streamloader.order.bijection import I64Array
from streamloader.order.plan import BatchPlan, BatchRows

_OWN_ROW, _POSITION, _SAMPLE, _TAG = range(4)


class ArrivalPool:
    """Rows of the batches that were planned ahead, less those that batches took.

    As many rows are added as are taken, batch by batch, so while there is a row, there are enough
    for a batch, and whoever adds rows in order never waits for what was not added.

    Args:
        plan: whose batches are added and taken.
    """

    def __init__(self, plan: ArrivalPlan) -> None:
        self._plan = plan
        self._rows = np.empty((4, 0), dtype=np.int64)
        self._sizes: deque[tuple[int, int]] = deque()
        self._next = 0

    def __len__(self) -> int:
        return self._rows.shape[1]

    @property
    def tags(self) -> I64Array:
        """What was given with each row, int64 ``[n]``."""
        tags: I64Array = self._rows[_TAG]
        return tags

    def has_room(self, planned: BatchPlan) -> bool:
        """Whether a batch may be added: none reaches further ahead than the plan allows."""
        own = _own_rows(planned)
        if not len(self) or self._rows[_OWN_ROW, 0] < 0 or own[0] < 0:
            return True
        return int(own.max()) < int(self._rows[_OWN_ROW, 0]) + self._plan.look_ahead_rows

    def add(self, planned: BatchPlan, tags: I64Array) -> None:
        """Adds the next planned batch, with a number for each of its rows."""
        own = _own_rows(planned)
        rows = np.stack([own, planned.positions, planned.samples, tags])
        self._rows = np.concatenate([self._rows, rows], axis=1)
        self._sizes.append((own.size, int(np.count_nonzero(planned.valid))))

    def take(self, is_ready: npt.NDArray[np.bool_]) -> tuple[BatchRows, I64Array] | None:
        """The next batch, of the first rows that are ready, with their tags; None if too few are.

        Args:
            is_ready: for each row of ``tags``, bool ``[n]``.
        """
        if not self._sizes:
            return None
        size, real = self._sizes[0]
        if real < size:
            # Nothing but these rows is left before the padding that fills the batch.
            chosen = np.arange(size) if is_ready[:size].all() else np.empty(0, dtype=np.int64)
        else:
            chosen = np.flatnonzero(is_ready & (self._rows[_OWN_ROW] >= 0))[:size]
        if chosen.size < size:
            return None
        self._sizes.popleft()
        taken = self._rows[:, chosen]
        stays = np.ones(len(self), dtype=np.bool_)
        stays[chosen] = False
        self._rows = self._rows[:, stays]
        number = self._next
        self._next += 1
        batch = BatchRows(
            number=number,
            positions=taken[_POSITION],
            samples=taken[_SAMPLE],
            valid=taken[_OWN_ROW] >= 0,
            own_rows=taken[_OWN_ROW],
            next_position=self._plan.position_after(number),
        )
        return batch, taken[_TAG]


def _own_rows(planned: BatchPlan) -> I64Array:
    assert planned.own_rows is not None
    return planned.own_rows

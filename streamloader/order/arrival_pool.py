"""Which rows go into the next batch, when whatever has come may go."""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from streamloader.order.arrival_plan import ArrivalPlan
from streamloader.order.bijection import I64Array
from streamloader.order.plan import BatchPlan, BatchRows

_OWN_ROW, _POSITION, _SAMPLE, _REPEAT, _TAG = range(5)
_COLUMNS = 5


class ArrivalPool:
    """Rows of the batches that were planned ahead, less those that batches took.

    As many rows are added as are taken, batch by batch, so while there is a row, there are enough
    for a batch, and whoever adds rows in order never waits for what was not added.

    Args:
        plan: whose batches are added and taken.
    """

    def __init__(self, plan: ArrivalPlan) -> None:
        self._plan = plan
        # Rows lie in columns from head to tail. What a batch leaves behind is moved up to the rows
        # that it did not look at, so a batch costs what it looks at, however much is planned ahead.
        self._rows = np.empty((_COLUMNS, 4 * plan.batch_size), dtype=np.int64)
        self._head = 0
        self._tail = 0
        self._sizes: deque[tuple[int, int]] = deque()
        self._next = 0

    def __len__(self) -> int:
        return self._tail - self._head

    def has_room(self, planned: BatchPlan) -> bool:
        """Whether a batch may be added: none reaches further ahead than the plan allows."""
        own = _own_rows(planned)
        first = int(self._rows[_OWN_ROW, self._head]) if len(self) else -1
        if first < 0 or own[0] < 0:
            return True
        return int(own.max()) < first + self._plan.look_ahead_rows

    def add(self, planned: BatchPlan, tags: I64Array) -> None:
        """Adds the next planned batch, with a number from 0 up for each of its rows."""
        own = _own_rows(planned)
        if self._tail + own.size > self._rows.shape[1]:
            self._make_room(own.size)
        added = self._rows[:, self._tail : self._tail + own.size]
        added[_OWN_ROW], added[_POSITION] = own, planned.positions
        added[_SAMPLE], added[_TAG] = planned.samples, tags
        added[_REPEAT] = planned.repeat
        self._tail += own.size
        self._sizes.append((own.size, int(np.count_nonzero(planned.valid))))

    def take(self, is_ready: npt.NDArray[np.bool_]) -> tuple[BatchRows, I64Array] | None:
        """The next batch, of the first rows that are ready, with their tags; None if too few are.

        Args:
            is_ready: by tag.
        """
        if not self._sizes:
            return None
        size, real = self._sizes[0]
        chosen = self._first_real(size, is_ready) if real == size else self._last(size, is_ready)
        if chosen.size < size:
            return None
        self._sizes.popleft()
        taken = self._remove(chosen)
        number = self._next
        self._next += 1
        batch = BatchRows(
            number=number,
            positions=taken[_POSITION],
            samples=taken[_SAMPLE],
            valid=taken[_OWN_ROW] >= 0,
            repeat=taken[_REPEAT],
            own_rows=taken[_OWN_ROW],
            next_position=self._plan.position_after(number),
        )
        return batch, taken[_TAG]

    def _first_real(self, size: int, is_ready: npt.NDArray[np.bool_]) -> I64Array:
        """Columns of the first rows that are ready and no padding; ``size`` of them at most."""
        found, count, low, step = [], 0, self._head, size
        while count < size and low < self._tail:
            high = min(low + step, self._tail)
            part = self._rows[:, low:high]
            ready = low + np.flatnonzero(is_ready[part[_TAG]] & (part[_OWN_ROW] >= 0))
            found.append(ready)
            count += ready.size
            low, step = high, 2 * step
        return np.concatenate(found)[:size]

    def _last(self, size: int, is_ready: npt.NDArray[np.bool_]) -> I64Array:
        """The same for a batch with padding: nothing else is left before it."""
        tags = self._rows[_TAG, self._head : self._head + size]
        count = size if is_ready[tags].all() else 0
        return np.arange(self._head, self._head + count, dtype=np.int64)

    def _remove(self, chosen: I64Array) -> I64Array:
        """The columns of ``chosen``, ascending, which are gone afterwards."""
        taken: I64Array = self._rows[:, chosen]
        end = int(chosen[-1]) + 1
        stays = np.ones(end - self._head, dtype=np.bool_)
        stays[chosen - self._head] = False
        left = self._rows[:, self._head : end][:, stays]
        self._head = end - left.shape[1]
        self._rows[:, self._head : end] = left
        return taken

    def _make_room(self, count: int) -> None:
        live = self._rows[:, self._head : self._tail]
        rows = np.empty((_COLUMNS, 2 * (live.shape[1] + count)), dtype=np.int64)
        rows[:, : live.shape[1]] = live
        self._rows, self._head, self._tail = rows, 0, live.shape[1]


def _own_rows(planned: BatchPlan) -> I64Array:
    assert planned.own_rows is not None
    return planned.own_rows

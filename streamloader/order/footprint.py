"""How much of the data set a rank reads in an epoch, from its plan alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamloader.order.plan import RankPlan

_BATCHES_AT_ONCE = 1024


@dataclass(frozen=True, slots=True)
class Footprint:
    """What one rank touches from a plan's start to its end, everything counted once."""

    rows: int
    """Valid rows that the rank delivers."""

    pieces: int
    """Pieces with at least one of these rows."""

    samples_read: int
    """Samples of those pieces; times the mean record it is what a rank reads, keeping each piece
    until its last use."""


def footprint_of(plan: RankPlan) -> Footprint:
    """Count what a rank reads; takes the time of planning all its batches.

    Args:
        plan: the rank's plan, usually of a whole epoch.
    """
    rows = 0
    ids = np.empty(0, dtype=np.int64)
    counts = np.empty(0, dtype=np.int64)
    for low in range(0, plan.num_batches, _BATCHES_AT_ONCE):
        high = min(low + _BATCHES_AT_ONCE, plan.num_batches)
        batches = [plan.batch(number) for number in range(low, high)]
        valid = np.concatenate([batch.valid for batch in batches])
        rows += int(np.count_nonzero(valid))
        ids = np.concatenate([ids, *(batch.piece for batch in batches)])
        counts = np.concatenate([counts, *(batch.piece_count for batch in batches)])
        keep = np.concatenate([np.ones(ids.size - valid.size, dtype=np.bool_), valid])
        ids, first = np.unique(ids[keep], return_index=True)
        counts = counts[keep][first]
    return Footprint(rows=rows, pieces=ids.size, samples_read=int(counts.sum()))

"""Consecutive positions of a global batch put in a row, lane by lane."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from streamloader.order.bijection import I64Array


def dealt_lanes(lanes: I64Array, sharing: int) -> I64Array:
    """Lanes dealt in turn to the ``sharing`` ranks that have them, rank by rank.

    A global batch smaller than a round of the lanes covers neighbours; dealt lanes give each rank
    its part of any neighbours, where plain order would give all of them to one rank.
    """
    dealt: I64Array = lanes[np.argsort(np.arange(lanes.size) % sharing, kind="stable")]
    return dealt


def lane_positions(
    rows: I64Array,
    *,
    begins: I64Array,
    counts: I64Array | int,
    lanes: I64Array,
    stride: int,
    backwards: npt.NDArray[np.bool_] | None = None,
) -> I64Array:
    """Positions of rows, where each batch's positions stand lane by lane in the order of ``lanes``.

    A batch takes a run of offsets from each lane, so the counts per lane give the rows: nothing
    grows with the number of ranks. One running count serves all the batches.

    Args:
        rows: int64, of any shape; rows of the first batch from 0 on, then those of the second, ….
        begins: int64 ``[batches]``, first position of each batch.
        counts: positions of each batch, all lanes together; int64 ``[batches]`` or one number.
        lanes: which lanes, int64 ``[lanes]``; position p is in lane p % ``stride``.
        stride: number of lanes that there are.
        backwards: for each of ``rows`` whether its lane runs by falling offsets.
    """
    begin, end = begins[:, None], (begins + counts)[:, None]
    lane_first = begin + (lanes - begin) % stride
    lane_count = (end - lane_first + stride - 1) // stride
    before = np.cumsum(lane_count)
    lane = np.searchsorted(before, rows, side="right")
    count = lane_count.reshape(-1)[lane]
    offset = rows - (before[lane] - count)
    if backwards is not None:
        offset = np.where(backwards, count - 1 - offset, offset)
    positions: I64Array = lane_first.reshape(-1)[lane] + offset * stride
    return positions

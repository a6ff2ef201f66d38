"""Bounding boxes follow the crop of their picture."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from streamloader.decode.crops import AppliedCrops, Int64s


def move_boxes(
    boxes: npt.NDArray[Any], rows: Int64s, crops: AppliedCrops, height: int, width: int
) -> npt.NDArray[np.float32]:
    """Boxes in pixels of stored pictures as boxes in pixels of the output, clipped to it.

    A box outside the crop becomes one without area, at the edge that it left by. Values that are
    not finite stay what clipping makes of them, NaN stays NaN.

    Args:
        boxes: [n, 4] of a float type, (x0, y0, x1, y1), edges and not centres.
        rows: int64 [n], the row of the batch that each belongs to.
        crops: of the batch.
        height: of the output, in pixels.
        width: of the output, in pixels.

    Returns:
        float32 [n, 4], computed in float64 and rounded once.
    """
    cut = crops.boxes[rows]
    corner, extent = cut[:, None, :2], (cut[:, 2:] - cut[:, :2])[:, None]
    size = np.array([width, height], np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        moved = (boxes.astype(np.float64).reshape(-1, 2, 2) - corner) * size / extent
    mirrored = crops.flips[rows]
    # The left edge comes from the right one.
    moved[mirrored, :, 0] = width - moved[mirrored, ::-1, 0]
    return np.clip(moved, 0.0, size).astype(np.float32).reshape(-1, 4)

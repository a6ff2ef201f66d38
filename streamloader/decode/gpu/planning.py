"""Header checks and crops of a batch's pictures, in C where the kernel was built, else in numpy."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from streamloader.decode import native_kernel
from streamloader.decode.crops import Bools, CropPlan, Int64s, plan_crops, step_key
from streamloader.decode.gpu.headers import luma_factors, sound_headers
from streamloader.decode.limits import DEFAULT_LIMITS
from streamloader.decode.share import Share
from streamloader.decode.specs import Transform, output_size, steps


def plan_pictures(
    transform: Transform,
    share: Share,
    widths: Int64s,
    heights: Int64s,
    kinds: npt.NDArray[np.integer],
    *,
    native: bool | None = None,
) -> tuple[Bools, CropPlan]:
    """Which pictures the engines may be given, as of ``sound_headers``, and the crops of those.

    Args:
        transform: what to do to each picture.
        share: the pictures, n of them.
        widths, heights, kinds: [n], their columns.
        native: False leaves the kernel in C out; None takes it where it was built.

    Returns:
        bool [n]; the crops of the pictures for which it is true.
    """
    if native is False or native_kernel.MISSING is not None:
        places = (np.asarray(share.data), share.offsets, share.lengths)
        sound = sound_headers(*places, widths, heights, kinds)
        crops = plan_crops(
            transform,
            widths[sound],
            heights[sound],
            seed=share.seed,
            epoch=share.epoch,
            samples=share.samples[sound],
        )
        return sound, crops
    task = _task(transform, share.seed, share.epoch)
    sound, planned = native_kernel.plan_engine(task, share, widths, heights, luma_factors(kinds))
    kept = planned[sound]
    boxes = np.stack([kept[edge] for edge in ("x0", "y0", "x1", "y1")], axis=1)
    return sound, CropPlan(boxes, kept["flip"] != 0, *output_size(transform))


@lru_cache(maxsize=8)
def _task(transform: Transform, seed: int, epoch: int) -> Any:
    flat = tuple(steps(transform))
    keys = tuple(step_key(seed, epoch, number) for number in range(len(flat)))
    return native_kernel.Task(flat, keys, output_size(transform), None, DEFAULT_LIMITS)

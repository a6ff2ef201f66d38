"""From specs to crop boxes: plain arithmetic over a whole share at once.

Every random number is a function of (seed, epoch, step, sample, draw), so a picture gets the same
crop in any batch, worker, thread or decode path.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from streamloader.decode.specs import (
    CenterCrop,
    RandomResizedCrop,
    Resize,
    Size,
    Transform,
    output_size,
    size_of,
    steps,
)
from streamloader.order import derive_key, random_unit

Int64s: TypeAlias = npt.NDArray[np.int64]
Float64s: TypeAlias = npt.NDArray[np.float64]
Bools: TypeAlias = npt.NDArray[np.bool_]

_NUM_TRIES = 10
_DRAW_TOP = 2 * _NUM_TRIES
_DRAW_LEFT = _DRAW_TOP + 1
_DRAW_FLIP = _DRAW_TOP + 2
_DRAWS_PER_SAMPLE = 32
_TAYLOR_TERMS = 12
# Keeps these numbers apart from those that shuffle: both rooms derive keys from seed and epoch.
_CROP_DOMAIN = 0x63726F70


@dataclass(frozen=True, slots=True, eq=False)
class CropPlan:
    """What to cut from each picture of a share.

    Args:
        boxes: float64 [n, 4], (x0, y0, x1, y1) in pixels of the stored picture, edges and not
            centres: the whole picture is (0, 0, width, height).
        flips: bool [n], mirror left for right after the resize.
        height: of the output, in pixels.
        width: of the output, in pixels.
    """

    boxes: Float64s
    flips: Bools
    height: int
    width: int


@dataclass(frozen=True, slots=True, eq=False)
class AppliedCrops:
    """What a decoder did to the pictures of a batch, for whoever must do the same to its masks.

    Arrays have one entry a row of the batch. A decoder writes those of the pictures whose header
    it read; entries of other rows mean nothing.

    Args:
        sizes: int64 [B, 2], (width, height) of the stored picture in pixels.
        boxes: float64 [B, 4], as of ``CropPlan``.
        flips: bool [B], as of ``CropPlan``.
    """

    sizes: Int64s
    boxes: Float64s
    flips: Bools

    @staticmethod
    def empty(num_rows: int) -> AppliedCrops:
        """For a batch of ``num_rows``, nothing applied yet."""
        return AppliedCrops(
            np.zeros((num_rows, 2), np.int64),
            np.zeros((num_rows, 4), np.float64),
            np.zeros(num_rows, np.bool_),
        )

    def note(self, rows: Int64s, widths: Int64s, heights: Int64s, plan: CropPlan) -> None:
        """Writes the entries of ``rows``, [n], whose pictures have these sizes, [n], and plan."""
        self.sizes[rows, 0] = widths
        self.sizes[rows, 1] = heights
        self.boxes[rows] = plan.boxes
        self.flips[rows] = plan.flips


def plan_crops(
    spec: Transform,
    widths: Int64s,
    heights: Int64s,
    *,
    seed: int,
    epoch: int,
    samples: Int64s,
) -> CropPlan:
    """The crop box and the flip of each of n pictures.

    Args:
        spec: what to do.
        widths: int64 [n], of the stored pictures, in pixels.
        heights: int64 [n], the same.
        seed: of the data order.
        epoch: from 0.
        samples: int64 [n], the pictures' numbers in the data set.

    Raises:
        ConfigError: the output size of ``spec`` differs from picture to picture.
    """
    height, width = output_size(spec)
    fold = _Fold(np.asarray(widths, np.int64), np.asarray(heights, np.int64))
    counters = np.asarray(samples, np.int64).astype(np.uint64) * np.uint64(_DRAWS_PER_SAMPLE)
    for number, step in enumerate(steps(spec)):
        if isinstance(step, RandomResizedCrop):
            draws = _Draws(step_key(seed, epoch, number), counters)
            fold.random_resized_crop(step, draws)
        elif isinstance(step, Resize):
            fold.resize(step.size)
        else:
            fold.center_crop(step)
    return CropPlan(fold.boxes(), fold.flips, height, width)


def step_key(seed: int, epoch: int, number: int) -> int:
    """The key of the random numbers of the ``number``-th step of a flattened spec."""
    return derive_key(_CROP_DOMAIN, seed, epoch, number)


def exp_halvings(largest: float) -> int:
    """How often numbers up to ``largest`` in size are halved until all are below 1/8."""
    return max(0, math.frexp(largest)[1] + 3)


class _Draws:
    """The uniform numbers of one random step."""

    __slots__ = ("_counters", "_key")

    def __init__(self, key: int, counters: npt.NDArray[np.uint64]) -> None:
        self._key = key
        self._counters = counters

    def unit(self, draw: int, rows: Int64s | None = None) -> Float64s:
        """Draw number ``draw`` of every picture, or of the chosen rows, in [0, 1)."""
        counters = self._counters if rows is None else self._counters[rows]
        return random_unit(self._key, counters + np.uint64(draw))


class _Fold:
    """Specs folded so far: a box of each stored picture, and the pixel grid laid over it.

    A step sees the grid (``widths`` x ``heights``) as its picture; cutting the grid cuts the box
    in proportion, and resizing changes the grid alone.
    """

    def __init__(self, widths: Int64s, heights: Int64s) -> None:
        count = len(widths)
        self.widths = widths
        self.heights = heights
        self.flips = np.zeros(count, np.bool_)
        self._x0 = np.zeros(count)
        self._y0 = np.zeros(count)
        self._x1 = widths.astype(np.float64)
        self._y1 = heights.astype(np.float64)

    def boxes(self) -> Float64s:
        return np.stack([self._x0, self._y0, self._x1, self._y1], axis=1)

    def resize(self, size: int | Size) -> None:
        if not isinstance(size, int):
            self._set_grid(*size)
            return
        # The product before the quotient, then cut: torchvision's rounding to the pixel.
        tall = self.widths <= self.heights
        short = np.where(tall, self.widths, self.heights)
        long = (size * np.where(tall, self.heights, self.widths) / short).astype(np.int64)
        self.widths = np.where(tall, size, long)
        self.heights = np.where(tall, long, size)

    def center_crop(self, step: CenterCrop) -> None:
        height, width = size_of(step.size)
        grow = np.maximum(1.0, np.maximum(width / self.widths, height / self.heights))
        # A picture that must grow is cut to the crop's proportions exactly; one that need not is
        # cut on whole pixels of its grid.
        part_width = width / grow
        part_height = height / grow
        left = (self.widths - part_width) / 2
        top = (self.heights - part_height) / 2
        left = np.where(grow > 1.0, left, np.rint(left))
        top = np.where(grow > 1.0, top, np.rint(top))
        self._cut(left, top, part_width, part_height)
        self._set_grid(height, width)

    def random_resized_crop(self, step: RandomResizedCrop, draws: _Draws) -> None:
        crop_widths, crop_heights, found = _draw_sizes(step, self.widths, self.heights, draws)
        spare_x = self.widths - crop_widths
        spare_y = self.heights - crop_heights
        left = np.where(found, np.floor(draws.unit(_DRAW_LEFT) * (spare_x + 1)), spare_x // 2)
        top = np.where(found, np.floor(draws.unit(_DRAW_TOP) * (spare_y + 1)), spare_y // 2)
        self._cut(left, top, crop_widths.astype(np.float64), crop_heights.astype(np.float64))
        self.flips = self.flips ^ (draws.unit(_DRAW_FLIP) < step.flip)
        self._set_grid(*size_of(step.size))

    def _cut(self, left: Float64s, top: Float64s, width: Float64s, height: Float64s) -> None:
        # The flip comes last, so a cut made after it is mirrored here.
        left = np.where(self.flips, self.widths - width - left, left)
        scale_x = (self._x1 - self._x0) / self.widths
        scale_y = (self._y1 - self._y0) / self.heights
        x0, y0 = self._x0, self._y0
        # Rounding must not push the box over the edge of the box it is cut from.
        self._x0 = np.maximum(x0 + left * scale_x, x0)
        self._y0 = np.maximum(y0 + top * scale_y, y0)
        self._x1 = np.minimum(x0 + (left + width) * scale_x, self._x1)
        self._y1 = np.minimum(y0 + (top + height) * scale_y, self._y1)

    def _set_grid(self, height: int, width: int) -> None:
        self.widths = np.full_like(self.widths, width)
        self.heights = np.full_like(self.heights, height)


def _draw_sizes(
    step: RandomResizedCrop, widths: Int64s, heights: Int64s, draws: _Draws
) -> tuple[Int64s, Int64s, Bools]:
    """Crop widths and heights, and whether a random try fitted.

    torchvision's rule: up to ten tries of an area uniform in ``scale`` and a ratio uniform in its
    logarithm, the first that fits wins; else the largest central part within ``ratio``.
    """
    crop_widths, crop_heights = _central_sizes(step.ratio, widths, heights)
    found = np.zeros(len(widths), np.bool_)
    areas = (widths * heights).astype(np.float64)
    log_low, log_high = math.log(step.ratio[0]), math.log(step.ratio[1])
    rows = np.arange(len(widths))
    for attempt in range(_NUM_TRIES):
        share = step.scale[0] + draws.unit(2 * attempt, rows) * (step.scale[1] - step.scale[0])
        log_ratio = log_low + draws.unit(2 * attempt + 1, rows) * (log_high - log_low)
        ratio = _exp(log_ratio, max(abs(log_low), abs(log_high)))
        tried_widths = np.rint(np.sqrt(areas[rows] * share * ratio)).astype(np.int64)
        tried_heights = np.rint(np.sqrt(areas[rows] * share / ratio)).astype(np.int64)
        fits = (tried_widths > 0) & (tried_widths <= widths[rows])
        fits &= (tried_heights > 0) & (tried_heights <= heights[rows])
        hits = rows[fits]
        crop_widths[hits] = tried_widths[fits]
        crop_heights[hits] = tried_heights[fits]
        found[hits] = True
        rows = rows[~fits]
        if not len(rows):
            break
    return crop_widths, crop_heights, found


def _central_sizes(
    ratio: tuple[float, float], widths: Int64s, heights: Int64s
) -> tuple[Int64s, Int64s]:
    own = widths / heights
    too_tall = own < ratio[0]
    too_wide = own > ratio[1]
    cut_heights = np.clip(np.rint(widths / ratio[0]).astype(np.int64), 1, heights)
    cut_widths = np.clip(np.rint(heights * ratio[1]).astype(np.int64), 1, widths)
    return np.where(too_wide, cut_widths, widths), np.where(too_tall, cut_heights, heights)


def _exp(values: Float64s, largest: float) -> Float64s:
    """e to the power of ``values``, none beyond ``largest`` in size; the same bits everywhere.

    numpy's and the C library's differ in the last bit between processors, which is enough to move
    a crop by a pixel. Additions, products and quotients are exact by IEEE 754: a Taylor series of
    the values halved until they are below 1/8, squared back as often.
    """
    halvings = exp_halvings(largest)
    small = values * 2.0**-halvings
    total = np.ones_like(small)
    for power in range(_TAYLOR_TERMS, 0, -1):
        total = 1.0 + total * small / power
    for _ in range(halvings):
        total = total * total
    return total

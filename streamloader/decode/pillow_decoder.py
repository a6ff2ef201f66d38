"""The decoder that reads everything Pillow reads."""

from __future__ import annotations

from collections import deque
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image

from streamloader.decode.crops import plan_crops
from streamloader.decode.faults import PictureFault, RowFault
from streamloader.decode.limits import DEFAULT_LIMITS, PictureLimits
from streamloader.decode.picture import OpenPicture, flat_view, load_rgb, open_picture
from streamloader.decode.pixel_format import PixelFormat
from streamloader.decode.share import Share
from streamloader.decode.specs import Transform, output_size
from streamloader.monitor import Counters

_Box: TypeAlias = tuple[float, float, float, float]

# Headers are read ahead of pixels, so that crops are planned together; each open header holds a
# copy of its compressed picture, so not the whole share at once.
_PICTURES_PLANNED_AT_ONCE = 32


class PillowDecoder:
    """A ``Decoder`` by Pillow: crop and antialiased bilinear resize in one step, then flip.

    It keeps nothing between calls. A row is written once, when its picture is complete. Its
    arguments are those of ``open_decoder``.
    """

    name = "pillow"

    def __init__(
        self,
        transform: Transform,
        pixel_format: PixelFormat | None = None,
        limits: PictureLimits = DEFAULT_LIMITS,
        *,
        counters: Counters | None = None,
    ) -> None:
        self.transform = transform
        self.pixel_format = PixelFormat() if pixel_format is None else pixel_format
        self.limits = limits
        self._counters = counters
        self.height, self.width = output_size(transform)
        self._tables = None if self.pixel_format.dtype == "uint8" else self.pixel_format.tables()

    def decode(self, share: Share) -> list[RowFault]:
        """As of ``Decoder``."""
        share.check_out(self.height, self.width, self.pixel_format.numpy_dtype)
        faults: list[RowFault] = []
        for first in range(0, len(share.offsets), _PICTURES_PLANNED_AT_ONCE):
            last = min(first + _PICTURES_PLANNED_AT_ONCE, len(share.offsets))
            opened = self._open_headers(share, range(first, last), faults)
            self._fill_rows(share, opened, faults)
            if self._counters is not None:
                self._counters.add("decode.pictures", last - first)
        return faults

    def _open_headers(
        self, share: Share, places: range, faults: list[RowFault]
    ) -> deque[tuple[int, OpenPicture]]:
        """The pictures at ``places`` of the share with a sound header."""
        view = flat_view(share.data)
        opened: deque[tuple[int, OpenPicture]] = deque()
        for place in places:
            if share.aborted:
                return deque()
            start = int(share.offsets[place])
            try:
                data = view[start : start + int(share.lengths[place])]
                opened.append((place, open_picture(data, self.limits)))
            except PictureFault as fault:
                faults.append(_reject(share, place, fault))
        return opened

    def _fill_rows(
        self, share: Share, opened: deque[tuple[int, OpenPicture]], faults: list[RowFault]
    ) -> None:
        places = np.array([place for place, _ in opened], np.int64)
        widths = np.array([picture.width for _, picture in opened], np.int64)
        heights = np.array([picture.height for _, picture in opened], np.int64)
        plan = plan_crops(
            self.transform,
            widths,
            heights,
            seed=share.seed,
            epoch=share.epoch,
            samples=share.samples[places],
        )
        if share.crops is not None:
            share.crops.note(share.rows[places], widths, heights, plan)
        for box, flip in zip(plan.boxes.tolist(), plan.flips.tolist(), strict=True):
            if share.aborted:
                return
            # Taken out of the queue, so that its pixels are freed before the next are decoded.
            place, picture = opened.popleft()
            try:
                pixels = self._pixels(picture, tuple(box), flip)
            except PictureFault as fault:
                faults.append(_reject(share, place, fault))
            except MemoryError as error:
                error.add_note(
                    f"while decoding sample {share.samples[place]}, "
                    f"{picture.width}x{picture.height} pixels; lower max_pixels or num_workers"
                )
                raise
            else:
                self._write(share.out[share.rows[place]], pixels)

    def _pixels(self, picture: OpenPicture, box: _Box, flip: bool) -> npt.NDArray[np.uint8]:
        size = (self.width, self.height)
        image = load_rgb(picture).resize(size, Image.Resampling.BILINEAR, box)
        if flip:
            # numpy copies a view that runs backwards thirteen times as slowly.
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return np.asarray(image)

    def _write(self, row: npt.NDArray[Any], pixels: npt.NDArray[np.uint8]) -> None:
        if self._tables is None:
            row[...] = pixels
            return
        for channel, table in enumerate(self._tables):
            row[:, :, channel] = table[pixels[:, :, channel]]


def _reject(share: Share, place: int, fault: PictureFault) -> RowFault:
    row = int(share.rows[place])
    share.out[row] = 0
    return RowFault(row, int(share.samples[place]), fault.reason)

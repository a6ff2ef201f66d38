"""Masks: pictures whose pixels are numbers of classes or objects, never to be mixed.

Decoded as stored in one channel and sampled at pixel centres, with the crop of their picture.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image

from streamloader.decode.crops import AppliedCrops
from streamloader.decode.faults import PictureFault, RowFault
from streamloader.decode.limits import DEFAULT_LIMITS, PictureLimits
from streamloader.decode.picture import OpenPicture, flat_view, load_as, open_picture
from streamloader.decode.share import Share
from streamloader.decode.specs import MaskType
from streamloader.errors import ConfigError

_Box: TypeAlias = tuple[float, float, float, float]

_ONE_BYTE_MODES = frozenset(["L", "P"])
# Of 16 and 32 bits: I;16, I;16B, I.
_INTEGER_MODE = "I"
_ALPHA_MODES = frozenset(["LA", "PA"])


class MaskDecoder:
    """Decodes shares of masks with crops that were already applied to their pictures.

    A row of the batch is what Pillow's ``resize((width, height), NEAREST, box)`` gives for the
    stored values, mirrored if the picture was: palette indices, grey values of 8, 16 or (signed)
    32 bits, 0 and 1 for 1-bit masks. Grey PNGs of 2 and 4 bits come spread over 0 to 255, as from
    Pillow. One decoder may serve any number of threads; it keeps nothing between calls.

    Args:
        height: of the output, in pixels.
        width: of the output, in pixels.
        dtype: of the batch; a mask of more than 8 bits is a fault unless it is "int32".
        limits: a mask beyond them is a fault.
    """

    def __init__(
        self,
        height: int,
        width: int,
        dtype: MaskType = "uint8",
        limits: PictureLimits = DEFAULT_LIMITS,
    ) -> None:
        self.height = height
        self.width = width
        self.dtype = dtype
        self.limits = limits

    def decode(self, share: Share) -> list[RowFault]:
        """Fills the share's rows of ``share.out``, by ``share.crops`` at the same rows.

        The call looks at ``share.abort`` before each mask; after an abort the remaining rows are
        as they were.

        Returns:
            The masks that could not be decoded, or have another size than their picture; their
            rows are now zero.

        Raises:
            ConfigError: ``share.out`` is not [B, height, width] of ``dtype``, or there are no
                crops.
            MemoryError: no memory for a mask within the limits.
        """
        crops = self._checked_crops(share)
        view = flat_view(share.data)
        faults: list[RowFault] = []
        for place, row in enumerate(share.rows.tolist()):
            if share.aborted:
                break
            start = int(share.offsets[place])
            data = view[start : start + int(share.lengths[place])]
            try:
                share.out[row] = self._values(data, crops, row, int(share.samples[place]))
            except PictureFault as fault:
                share.out[row] = 0
                faults.append(RowFault(row, int(share.samples[place]), fault.reason))
        return faults

    def _checked_crops(self, share: Share) -> AppliedCrops:
        shape = (self.height, self.width)
        if share.out.shape[1:] != shape or share.out.dtype != self.dtype:
            raise ConfigError(
                f"these masks fill batches [B, {self.height}, {self.width}] of {self.dtype}, "
                f"got {list(share.out.shape)} of {share.out.dtype}"
            )
        if share.crops is None:
            raise ConfigError("masks are cut as their pictures were: the share needs crops")
        return share.crops

    def _values(
        self, data: memoryview, crops: AppliedCrops, row: int, sample: int
    ) -> npt.NDArray[Any]:
        picture = open_picture(data, self.limits)
        _check_size(picture, tuple(crops.sizes[row].tolist()))
        box: _Box = tuple(crops.boxes[row].tolist())
        try:
            image = load_as(picture, _one_channel)
        except MemoryError as error:
            error.add_note(
                f"while decoding the mask of sample {sample}, {picture.width}x{picture.height} "
                "pixels; lower max_pixels or num_workers"
            )
            raise
        if self.dtype == "uint8" and image.mode not in _ONE_BYTE_MODES:
            raise PictureFault(
                f"{picture.format} of more than 8 bits, as a mask of uint8; pass "
                "mask_dtype='int32' to Joint"
            )
        image = image.resize((self.width, self.height), Image.Resampling.NEAREST, box)
        if crops.flips[row]:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return np.asarray(image)


def _check_size(picture: OpenPicture, size: tuple[int, ...]) -> None:
    if (picture.width, picture.height) != size:
        raise PictureFault(different_size(picture.width, picture.height, *size))


def different_size(width: int, height: int, first_width: int, first_height: int) -> str:
    """The reason of a fault: a picture or mask that is not as large as the first picture."""
    return (
        f"{width}x{height} pixels, where the picture that draws the crop has "
        f"{first_width}x{first_height}; a Joint takes pictures and masks of one size"
    )


def _one_channel(image: Image.Image) -> Image.Image:
    """The stored values in mode L, P, I or a 16-bit mode; indices and not colours."""
    if image.mode in _ONE_BYTE_MODES or image.mode.startswith(_INTEGER_MODE):
        return image
    if image.mode == "1":
        # Pillow holds 0 and 255 for it.
        return image.point([min(value, 1) for value in range(256)], "L")
    if image.mode in _ALPHA_MODES:
        return image.getchannel(0)
    raise PictureFault(
        f"{image.format} with {'-'.join(image.getbands())} pixels, as a mask, which is grey or "
        "has a palette; convert it to one number a pixel"
    )

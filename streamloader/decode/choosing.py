"""Which decoder reads the pictures: the native one where it was built, else Pillow's."""

from __future__ import annotations

import logging

import numpy as np
import numpy.typing as npt

from streamloader.decode import native_decoder, native_kernel, picture
from streamloader.decode.decoder import Decoder
from streamloader.decode.picture import MAX_PIXELS, MAX_SCANS, Pixels
from streamloader.decode.pillow_decoder import PillowDecoder
from streamloader.decode.pixel_format import PixelFormat
from streamloader.decode.specs import Joint, Transform
from streamloader.errors import ConfigError
from streamloader.monitor import Counters

_LOG = logging.getLogger("streamloader.decode")

DECODERS = ("native", "pillow")


def native_is_built() -> bool:
    """Whether the native decoder is part of this installation."""
    return native_kernel.MISSING is None


def open_decoder(
    transform: Transform,
    pixel_format: PixelFormat | None = None,
    *,
    max_pixels: int = MAX_PIXELS,
    max_scans: int = MAX_SCANS,
    counters: Counters | None = None,
    name: str | None = None,
) -> Decoder:
    """The decoder of a loader.

    Args:
        transform, pixel_format, max_pixels, max_scans, counters: as of ``NativeDecoder``.
        name: "native" or "pillow"; None is native, but Pillow for a ``Joint``, and with a logged
            warning where the native one was not built.

    Raises:
        ConfigError: another name, a native decoder that was not built, or wrong arguments.
    """
    if name is not None and name not in DECODERS:
        raise ConfigError(f"decoders are {' and '.join(DECODERS)}, got {name!r}")
    if name is None and isinstance(transform, Joint):
        # Masks and boxes need the crop that was cut, which only Pillow's decoder notes so far.
        name = "pillow"
    if name is None and not native_is_built():
        _LOG.warning(
            "the native JPEG decoder was not built (%s), so Pillow decodes, at less than half the "
            "speed; install libjpeg-turbo's headers (Debian: libjpeg-dev), then streamloader again",
            native_kernel.MISSING,
        )
        name = "pillow"
    kind = PillowDecoder if name == "pillow" else native_decoder.NativeDecoder
    return kind(transform, pixel_format, max_pixels, max_scans=max_scans, counters=counters)


def decode_picture(
    data: bytes | bytearray | memoryview | npt.NDArray[np.uint8],
    *,
    max_pixels: int = MAX_PIXELS,
    max_scans: int = MAX_SCANS,
) -> Pixels:
    """The whole picture as uint8 [height, width, 3], by the decoder that a loader would use.

    Args:
        data: one compressed picture, contiguous.
        max_pixels: a header that claims more is refused before memory for pixels is taken.
        max_scans: a JPEG with more is refused: each is a pass over the picture.

    Raises:
        PictureFault: the bytes are no picture, or a broken one.
    """
    pixels = None
    if native_is_built():
        view = picture.flat_view(data)
        pixels = native_decoder.decode_jpeg(view, max_pixels=max_pixels, max_scans=max_scans)
    if pixels is None:
        pixels = picture.decode_picture(data, max_pixels=max_pixels, max_scans=max_scans)
    return pixels

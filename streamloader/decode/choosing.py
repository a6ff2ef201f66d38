"""Which decoder reads the pictures: the native one where it was built, else Pillow's."""

from __future__ import annotations

import logging

import numpy as np
import numpy.typing as npt

from streamloader.decode import native_decoder, native_kernel
from streamloader.decode.decoder import Decoder
from streamloader.decode.limits import DEFAULT_LIMITS, PictureLimits
from streamloader.decode.picture import Pixels, flat_view, load_rgb, open_picture
from streamloader.decode.pillow_decoder import PillowDecoder
from streamloader.decode.pixel_format import PixelFormat
from streamloader.decode.specs import Transform
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
    limits: PictureLimits = DEFAULT_LIMITS,
    *,
    counters: Counters | None = None,
    name: str | None = None,
) -> Decoder:
    """The decoder of a loader.

    Args:
        transform: what to do to each picture; its output size must not depend on the picture.
        pixel_format: the numbers in the batch; None is uint8.
        limits: a picture beyond them is a fault.
        counters: told the number of pictures read as ``decode.pictures``, faults included, and by
            the native decoder those of them that Pillow read as ``decode.pictures_by_pillow``.
        name: "native" or "pillow"; None is native, but Pillow with a logged warning where the
            native one was not built.

    Raises:
        ConfigError: another name, a native decoder that was not built, or a transform whose
            output size differs from picture to picture.
    """
    if name is not None and name not in DECODERS:
        raise ConfigError(f"decoders are {' and '.join(DECODERS)}, got {name!r}")
    if name is None and not native_is_built():
        _LOG.warning(
            "the native JPEG decoder was not built (%s), so Pillow decodes, at less than half the "
            "speed; install libjpeg-turbo's headers (Debian: libjpeg-dev), then streamloader again",
            native_kernel.MISSING,
        )
        name = "pillow"
    kind = PillowDecoder if name == "pillow" else native_decoder.NativeDecoder
    return kind(transform, pixel_format, limits, counters=counters)


def check_picture(
    data: bytes | bytearray | memoryview | npt.NDArray[np.uint8],
    limits: PictureLimits = DEFAULT_LIMITS,
) -> None:
    """Return if ``decode_picture`` would, at less than half its cost for a JPEG.

    Args:
        data: one compressed picture, contiguous.
        limits: of the picture.

    Raises:
        PictureFault: what ``decode_picture`` would raise.
    """
    view = flat_view(data)
    if not (native_is_built() and native_decoder.check_jpeg(view, limits)):
        load_rgb(open_picture(view, limits))


def decode_picture(
    data: bytes | bytearray | memoryview | npt.NDArray[np.uint8],
    limits: PictureLimits = DEFAULT_LIMITS,
) -> Pixels:
    """The whole picture as uint8 [height, width, 3], by the decoder that a loader would use.

    Args:
        data: one compressed picture, contiguous.
        limits: of the picture.

    Raises:
        PictureFault: the bytes are no picture, a broken one, or one beyond the limits.
    """
    view = flat_view(data)
    pixels = native_decoder.decode_jpeg(view, limits) if native_is_built() else None
    return np.array(load_rgb(open_picture(view, limits))) if pixels is None else pixels

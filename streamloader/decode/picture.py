"""One stored picture to RGB pixels, with Pillow.

Whatever the bytes are, the result is three 8-bit channels as stored (no orientation applied, no
alpha blended, no colour profile) or a PictureFault that names the true format and the fault.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile, JpegImagePlugin, PngImagePlugin

from streamloader.decode.faults import PictureFault
from streamloader.decode.limits import DEFAULT_LIMITS, PictureLimits
from streamloader.decode.pixel_stream import (
    JPEG_START,
    PNG_START,
    JpegStream,
    jpeg_pixel_stream,
    png_pixel_stream,
)
from streamloader.decode.signatures import true_format

Pixels: TypeAlias = npt.NDArray[np.uint8]

# Pillow runs Ghostscript on these: a data set must not start programs.
_PROGRAM_FORMATS = frozenset(["EPS"])
# Formats whose 32-bit integer mode holds 16-bit samples.
_WIDE_GREY_FORMATS = frozenset(["PNG", "PPM"])
# Picture data for a scan cut anywhere: in a restart interval, or where any restart is due.
_INTERVAL = bytes(range(1, 0xFE, 3))
_SCAN_FILLER = b"".join(_INTERVAL + bytes([0xFF, restart]) for restart in range(0xD0, 0xD8))
# The middle of 8 bits, and its complement in CMYK.
_GREYS_OF_MISSING_DATA = frozenset([127, 128])
# How much of a file Pillow shows to its drivers, and how much of a WebP tells its size.
_ACCEPT_BYTES = 16
_SIGNATURE_BYTES = 30


@dataclass(slots=True)
class OpenPicture:
    """A picture whose header was read and whose pixels were not.

    Args:
        image: Pillow's lazy image.
        jpeg: the stream behind it, if it is a JPEG.
    """

    image: ImageFile.ImageFile
    jpeg: JpegStream | None

    @property
    def width(self) -> int:
        return self.image.width

    @property
    def height(self) -> int:
        return self.image.height

    @property
    def format(self) -> str:
        return self.image.format or "picture"


def flat_view(data: bytes | bytearray | memoryview | Pixels) -> memoryview:
    """The bytes of a contiguous buffer, one dimension, not copied."""
    view = data.data if isinstance(data, np.ndarray) else memoryview(data)
    return view.cast("B")


def open_picture(view: memoryview, limits: PictureLimits = DEFAULT_LIMITS) -> OpenPicture:
    """Reads the header of the picture in ``view`` (a flat view of bytes).

    Raises:
        PictureFault: the bytes are no picture, or one beyond the limits.
    """
    start = bytes(view[:_SIGNATURE_BYTES])
    jpeg = None
    image: ImageFile.ImageFile
    # Image.open would warn of, or refuse, sizes by limits of its own that are global; the drivers
    # themselves leave the size to the check below.
    with _as_fault(view):
        if start.startswith(JPEG_START):
            jpeg = jpeg_pixel_stream(view)
            image = JpegImagePlugin.JpegImageFile(io.BytesIO(jpeg.data))
        elif start.startswith(PNG_START):
            image = PngImagePlugin.PngImageFile(io.BytesIO(png_pixel_stream(view)))
        else:
            _check_webp_canvas(start, limits.max_pixels)
            image = _open_other_format(view)
    _check_pixels(image.format, image.width, image.height, limits.max_pixels)
    if jpeg is not None and jpeg.num_scans() > limits.max_scans:
        raise PictureFault(
            f"JPEG with more than {limits.max_scans} scans, each a pass over the picture; "
            "convert it, or raise max_scans"
        )
    return OpenPicture(image, jpeg)


def load_rgb(picture: OpenPicture) -> Image.Image:
    """Decodes the pixels; mode RGB, as stored.

    Raises:
        PictureFault: the pixels are broken, cut short, or have no agreed meaning in 8 bits.
    """
    return load_as(picture, _to_rgb)


def load_as(
    picture: OpenPicture, convert: Callable[[ImageFile.ImageFile], Image.Image]
) -> Image.Image:
    """Decodes the pixels and converts them from the mode that they are stored in.

    Args:
        picture: an open one; loaded by the call.
        convert: gives the result from the loaded picture; may raise PictureFault.

    Raises:
        PictureFault: the pixels are broken or cut short, or cannot be converted.
    """
    image = picture.image
    declared = image.size
    if picture.jpeg is not None and picture.jpeg.end_offset() < 0:
        raise PictureFault("truncated JPEG: no end-of-image marker after its scan")
    with _as_fault(picture.format):
        image.load()
        # Pillow would look for a colour of its own that stands for it, and warn.
        image.info.pop("transparency", None)
        converted = convert(image)
        lost_its_tail = picture.jpeg is not None and _lost_its_tail(image, picture.jpeg)
    if image.size != declared:
        raise PictureFault(
            f"broken {picture.format}: claims {declared[0]}x{declared[1]} pixels, "
            f"holds {image.width}x{image.height}"
        )
    if lost_its_tail:
        raise PictureFault("truncated JPEG: its scan ends early and the rest would be grey")
    return converted


def _open_other_format(view: memoryview) -> ImageFile.ImageFile:
    """Asks Pillow's drivers, in Pillow's order."""
    Image.preinit()
    Image.init()
    data = bytes(view)
    stream = io.BytesIO(data)
    complaint = ""
    for name in tuple(Image.ID):
        factory, accept = Image.OPEN[name]
        is_its_own = False
        try:
            answer = accept is None or accept(data[:_ACCEPT_BYTES])
            if isinstance(answer, str):
                complaint = answer
            elif answer and name in _PROGRAM_FORMATS:
                raise PictureFault(f"{name}: a program that draws, not a picture; convert it first")
            elif answer:
                is_its_own = accept is not None
                stream.seek(0)
                return factory(stream, "")
        except (SyntaxError, IndexError, TypeError, struct.error) as error:
            # How a driver says that the bytes are not its own, or that their header is broken.
            complaint = str(error) if is_its_own else complaint
    what = true_format(view)
    raise PictureFault(f"{what}: {complaint}" if complaint else f"{what}, which cannot be decoded")


def _check_webp_canvas(start: bytes, max_pixels: int) -> None:
    """Refuses an oversize WebP, whose driver takes memory for its canvas while it opens."""
    if start[:4] != b"RIFF" or start[8:12] != b"WEBP" or len(start) < _SIGNATURE_BYTES:
        return
    if start[12:16] == b"VP8X":
        width = 1 + int.from_bytes(start[24:27], "little")
        height = 1 + int.from_bytes(start[27:30], "little")
    elif start[12:16] == b"VP8L":
        bits = int.from_bytes(start[21:25], "little")
        width, height = 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    else:
        width = int.from_bytes(start[26:28], "little") & 0x3FFF
        height = int.from_bytes(start[28:30], "little") & 0x3FFF
    _check_pixels("WebP", width, height, max_pixels)


def _check_pixels(name: str | None, width: int, height: int, max_pixels: int) -> None:
    if width * height > max_pixels:
        raise PictureFault(
            f"{name} claims {width}x{height} pixels, more than max_pixels {max_pixels}; "
            "raise max_pixels if that is its true size"
        )


def _to_rgb(image: ImageFile.ImageFile) -> Image.Image:
    if image.mode == "RGB":
        return image
    if image.mode.startswith("I;16"):
        return _grey_from_16_bits(np.asarray(image))
    if image.mode == "I" and image.format in _WIDE_GREY_FORMATS:
        return _grey_from_16_bits(np.clip(np.asarray(image), 0, 0xFFFF))
    if image.mode in ("I", "F"):
        raise PictureFault(
            f"{image.format} with 32-bit samples, whose range nothing tells; "
            "convert it to 8 or 16 bits"
        )
    return image.convert("RGB")


def _grey_from_16_bits(values: npt.NDArray[np.integer]) -> Image.Image:
    return Image.fromarray((values >> 8).astype(np.uint8)).convert("RGB")


def _lost_its_tail(image: Image.Image, jpeg: JpegStream) -> bool:
    """Whether a Huffman-coded scan stopped before the picture was complete.

    libjpeg fills what is missing with mid grey and tells only its own warning counter. So: where
    the last pixel has that grey, decode again with bytes added at the end of the scan. A complete
    scan leaves them unread; one that was cut takes them for picture data.
    """
    last = image.getpixel((image.width - 1, image.height - 1))
    channels = last if isinstance(last, tuple) else (last,)
    if not jpeg.huffman_coded or not _GREYS_OF_MISSING_DATA.issuperset(channels):
        return False
    end = jpeg.end_offset()
    filled = b"".join([jpeg.data[:end], _SCAN_FILLER, jpeg.data[end:]])
    with JpegImagePlugin.JpegImageFile(io.BytesIO(filled)) as other:
        return other.tobytes() != image.tobytes()


@contextmanager
def _as_fault(source: memoryview | str) -> Iterator[None]:
    """Tells any failure over a picture's content as a PictureFault.

    Drivers raise nearly every kind of exception on broken bytes. MemoryError stays: the machine
    is short of it, the picture is within its limits.
    """
    try:
        yield
    except (PictureFault, MemoryError):
        raise
    except Exception as error:
        name = source if isinstance(source, str) else true_format(source)
        raise PictureFault(_reason(name, error)) from error


def _reason(name: str, error: Exception) -> str:
    message = str(error) or type(error).__name__
    if message == "not identified by this driver":
        message = "its header claims no pixels or no known kind of them"
    cut = isinstance(error, EOFError) or "truncated" in message.lower()
    return f"{'truncated' if cut else 'broken'} {name}: {message}"

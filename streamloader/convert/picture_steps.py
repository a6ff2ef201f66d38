"""What a picture goes through between the source and its record."""

from __future__ import annotations

import io

from PIL import Image

from streamloader.convert.lossless import to_baseline
from streamloader.convert.picture_check import UnsoundPicture, memory_for, require_sound
from streamloader.convert.picture_options import PictureOptions
from streamloader.decode import PictureFault, decode_picture
from streamloader.dts import PictureHeader

_UPRIGHT = 1
_ORIENTATION_TAG = 0x0112
# EXIF orientation to the turn that makes a picture upright.
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_LOSSLESS_FORMATS = frozenset({"png"})


def prepare_picture(
    data: bytes | memoryview, options: PictureOptions, *, decode: bool
) -> tuple[bytes | memoryview, PictureHeader | None]:
    """Return the bytes to store of a picture, and their header where it is known.

    Args:
        data: as the source has it.
        options: what is done to it.
        decode: decode it fully, whatever is done.

    Raises:
        UnsoundPicture: it cannot be stored.
    """
    if options.keep_all:
        return data, require_sound(data, decode=decode)
    header = require_sound(data, decode=False)
    if _changes_pixels(header, options):
        return _encode_anew(data, header, options), None
    if decode:
        require_sound(data, decode=True)
    if options.lossless_baseline and header.progressive:
        return to_baseline(bytes(data)), None
    return data, header


def _changes_pixels(header: PictureHeader, options: PictureOptions) -> bool:
    short = options.resize_short
    return (
        (short is not None and min(header.width, header.height) > short)
        or (options.orient and header.orientation in _TURNS)
        or (options.to_jpeg and header.format != "jpeg")
    )


def _encode_anew(data: bytes | memoryview, header: PictureHeader, options: PictureOptions) -> bytes:
    with memory_for(header):
        try:
            image = Image.fromarray(decode_picture(data))
        except PictureFault as fault:
            raise UnsoundPicture(str(fault)) from fault
        orientation = header.orientation
        if options.orient and orientation in _TURNS:
            image = image.transpose(_TURNS[orientation])
            orientation = _UPRIGHT
        image = _shrunk(image, options.resize_short)
    keep_lossless = header.format in _LOSSLESS_FORMATS and not options.to_jpeg
    return _encoded(image, orientation, None if keep_lossless else options.jpeg_quality)


def _shrunk(image: Image.Image, short: int | None) -> Image.Image:
    if short is None or min(image.size) <= short:
        return image
    scale = short / min(image.size)
    size = tuple(max(short, round(side * scale)) for side in image.size)
    return image.resize((size[0], size[1]), Image.Resampling.LANCZOS)


def _encoded(image: Image.Image, orientation: int, quality: int | None) -> bytes:
    """Return a JPEG of this quality, or a PNG for None; its orientation stays in its EXIF."""
    exif = Image.Exif()
    if orientation in _TURNS:
        exif[_ORIENTATION_TAG] = orientation
    file = io.BytesIO()
    if quality is None:
        image.save(file, format="PNG", exif=exif)
    else:
        image.save(file, format="JPEG", quality=quality, exif=exif)
    return file.getvalue()

"""Decides whether the bytes of a picture may be stored."""

from __future__ import annotations

import threading
from contextlib import nullcontext

from streamloader.decode import MAX_PIXELS, PictureFault, check_picture
from streamloader.dts import PictureHeader, PictureHeaderError, read_picture_header

# Decoded pictures above this are checked one at a time: at 7 bytes a pixel while decoding, one of
# the largest that is allowed takes 1.2 GB.
LARGE_PICTURE_PIXELS = 32_000_000
_large_pictures = threading.Lock()


class UnsoundPicture(Exception):
    """What is wrong with a picture, in words for the user."""


def require_sound(data: bytes | memoryview, *, decode: bool) -> PictureHeader:
    """Return the header of a picture that can be stored.

    Args:
        data: the picture.
        decode: decode it fully, instead of reading its header only.

    Raises:
        UnsoundPicture: it cannot.
    """
    try:
        header = read_picture_header(data)
    except PictureHeaderError as error:
        raise UnsoundPicture(str(error)) from error
    if header.width * header.height > MAX_PIXELS:
        raise UnsoundPicture(
            f"claims {header.width}x{header.height} pixels, more than the {MAX_PIXELS:,} allowed"
        )
    if decode:
        try:
            with memory_for(header):
                check_picture(data)
        except PictureFault as fault:
            raise UnsoundPicture(str(fault)) from fault
    return header


def memory_for(header: PictureHeader) -> threading.Lock | nullcontext[None]:
    """Hold this while the pixels of a picture are in memory."""
    large = header.width * header.height > LARGE_PICTURE_PIXELS
    return _large_pictures if large else nullcontext()

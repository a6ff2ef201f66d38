"""Size and kind of a picture from its first bytes.

Nothing is decoded and no stated size is trusted: every read is inside the bytes given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from streamloader.dts.jpeg_header import read_jpeg
from streamloader.dts.layout import byte_view
from streamloader.dts.native_jpeg_header import read_sound_jpeg
from streamloader.dts.picture_kind import (
    FORMAT_CODES,
    SAMPLING_CODES,
    UNREADABLE_KIND,
    PictureHeader,
    PictureHeaderError,
)
from streamloader.dts.raster_headers import read_bmp, read_gif, read_png, read_tiff, read_webp
from streamloader.dts.signatures import name_non_picture

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "FORMAT_CODES",
    "SAMPLING_CODES",
    "UNREADABLE_KIND",
    "PictureHeader",
    "PictureHeaderError",
    "read_picture_header",
]

_READERS: Final[tuple[tuple[bytes, Callable[[memoryview], PictureHeader]], ...]] = (
    (b"\x89PNG\r\n\x1a\n", read_png),
    (b"GIF87a", read_gif),
    (b"GIF89a", read_gif),
    (b"BM", read_bmp),
    (b"II*\0", read_tiff),
    (b"MM\0*", read_tiff),
)


def read_picture_header(data: Buffer) -> PictureHeader:
    """Read the header of a picture; the bytes decide, never a name.

    Args:
        data: the whole picture, or as much of its beginning as there is.

    Raises:
        PictureHeaderError: when it is no picture, or its header is damaged or cut short.
    """
    view = byte_view(data)
    start = bytes(view[:12])
    if start.startswith(b"\xff\xd8"):
        # Python has the words for what is wrong with one.
        return read_sound_jpeg(view) or read_jpeg(bytes(view))
    for magic, read in _READERS:
        if start.startswith(magic):
            return read(view)
    if start[:4] == b"RIFF" and start[8:] == b"WEBP":
        return read_webp(view)
    raise name_non_picture(view)

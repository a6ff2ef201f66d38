"""Headers of JPEGs by native code, a tenth of the cost of ``jpeg_header``."""

from __future__ import annotations

from streamloader.dts.native_kernel import ffi, lib
from streamloader.dts.picture_kind import SAMPLING_CODES, PictureHeader

_SAMPLING_NAMES = {code: name for name, code in SAMPLING_CODES.items()}


def read_sound_jpeg(view: memoryview) -> PictureHeader | None:
    """Return the header of a JPEG that ``jpeg_header.read_jpeg`` would return.

    Args:
        view: flat bytes that start with a SOI marker.

    Returns:
        None where ``read_jpeg`` would raise, or where nothing native was built.
    """
    if lib is None:
        return None
    found = ffi.new("sl_jpeg_header *")
    if not lib.sl_read_jpeg_header(ffi.from_buffer("uint8_t[]", view), len(view), found):
        return None
    return PictureHeader(
        format="jpeg",
        width=found.width,
        height=found.height,
        progressive=bool(found.progressive),
        components=found.components,
        sampling=_SAMPLING_NAMES[found.sampling],
        orientation=found.orientation,
    )

"""Headers of PNG, WebP, GIF, BMP and TIFF."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Final

from streamloader.dts.exif import ORIENTATION_TAG, byte_order, directory_entries, read_orientation
from streamloader.dts.picture_kind import PictureHeader, PictureHeaderError

_PNG_COMPONENTS: Final = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_MAX_CHUNKS: Final = 4096

_TIFF_WIDTH: Final = 0x0100
_TIFF_HEIGHT: Final = 0x0101
_TIFF_SAMPLES: Final = 0x0115
_TIFF_CODES: Final = {1: "B", 3: "H", 4: "I"}


def read_png(view: memoryview) -> PictureHeader:
    """Size and colour type of IHDR (PNG specification, 11.2.1), orientation of eXIf."""
    if len(view) < 33:
        raise PictureHeaderError("truncated PNG header", "png")
    if bytes(view[8:16]) != b"\0\0\0\rIHDR":
        raise PictureHeaderError("PNG that does not start with its header chunk", "png")
    width, height, _, colour, _, _, _, crc = struct.unpack_from(">IIBBBBBI", view, 16)
    if zlib.crc32(view[12:29]) != crc:
        raise PictureHeaderError("PNG with a damaged header: its checksum does not match", "png")
    if colour not in _PNG_COMPONENTS:
        raise PictureHeaderError(f"PNG of unknown colour type {colour}", "png")
    _check_size(width, height, 2**31 - 1, "PNG")
    return PictureHeader(
        "png",
        width,
        height,
        components=_PNG_COMPONENTS[colour],
        orientation=_png_orientation(view),
    )


def _png_orientation(view: memoryview) -> int:
    at = 33
    for _ in range(_MAX_CHUNKS):
        if at + 8 > len(view):
            return 1
        (length,) = struct.unpack_from(">I", view, at)
        name = bytes(view[at + 4 : at + 8])
        if name == b"eXIf":
            return read_orientation(view[at + 8 : at + 8 + length])
        if name == b"IDAT":
            return 1
        at += 12 + length
    return 1


def read_webp(view: memoryview) -> PictureHeader:
    """Size of the first VP8, VP8L or VP8X chunk (WebP container specification; RFC 6386, 9.1)."""
    kind, body = bytes(view[12:16]), view[20:]
    if kind == b"VP8 " and len(body) >= 10:
        if bytes(body[3:6]) != b"\x9d\x01\x2a":
            raise PictureHeaderError("WebP without a key frame", "webp")
        width, height = (size & 0x3FFF for size in struct.unpack_from("<HH", body, 6))
        components = 3
    elif kind == b"VP8L" and len(body) >= 5:
        if body[0] != 0x2F:
            raise PictureHeaderError("WebP with a damaged lossless header", "webp")
        (bits,) = struct.unpack_from("<I", body, 1)
        width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        components = 4 if bits >> 28 & 1 else 3
    elif kind == b"VP8X" and len(body) >= 10:
        width = int.from_bytes(body[4:7], "little") + 1
        height = int.from_bytes(body[7:10], "little") + 1
        components = 4 if body[0] & 0x10 else 3
    else:
        raise PictureHeaderError("truncated or damaged WebP header", "webp")
    _check_size(width, height, 2**24, "WebP")
    return PictureHeader(
        "webp", width, height, components=components, orientation=_webp_orientation(view)
    )


def _webp_orientation(view: memoryview) -> int:
    if bytes(view[12:16]) != b"VP8X":
        return 1
    for name, body in _riff_chunks(view):
        if name == b"EXIF":
            return read_orientation(body[6:] if bytes(body[:6]) == b"Exif\0\0" else body)
    return 1


def _riff_chunks(view: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    at = 12
    for _ in range(_MAX_CHUNKS):
        if at + 8 > len(view):
            return
        (length,) = struct.unpack_from("<I", view, at + 4)
        yield bytes(view[at : at + 4]), view[at + 8 : at + 8 + length]
        at += 8 + length + (length & 1)


def read_gif(view: memoryview) -> PictureHeader:
    """Size of the logical screen."""
    if len(view) < 13:
        raise PictureHeaderError("truncated GIF header", "gif")
    width, height = struct.unpack_from("<HH", view, 6)
    _check_size(width, height, 2**16 - 1, "GIF")
    return PictureHeader("gif", width, height, components=1)


def read_bmp(view: memoryview) -> PictureHeader:
    """Size of the bitmap header, the old 12-byte one or a later one."""
    if len(view) < 26:
        raise PictureHeaderError("truncated BMP header", "bmp")
    (header_bytes,) = struct.unpack_from("<I", view, 14)
    if header_bytes == 12:
        width, height, _, bits = struct.unpack_from("<HHHH", view, 18)
    elif 16 <= header_bytes <= 124 and len(view) >= 30:
        width, height, _, bits = struct.unpack_from("<iiHH", view, 18)
        height = abs(height)
    else:
        raise PictureHeaderError(
            "text or data that only begins like a BMP, or a damaged BMP header", "bmp"
        )
    _check_size(width, height, 2**31 - 1, "BMP")
    components = 4 if bits == 32 else 3 if bits > 8 else 1
    return PictureHeader("bmp", width, height, components=components)


def read_tiff(view: memoryview) -> PictureHeader:
    """Size, samples per pixel and orientation of the first directory (TIFF 6.0)."""
    order = byte_order(view)
    if order is None:
        raise PictureHeaderError("damaged TIFF header", "tiff")
    tags: dict[int, int] = {}
    for tag, kind, count, raw in directory_entries(view, order):
        if kind in _TIFF_CODES and count == 1:
            tags.setdefault(tag, struct.unpack_from(order + _TIFF_CODES[kind], raw)[0])
    if _TIFF_WIDTH not in tags or _TIFF_HEIGHT not in tags:
        raise PictureHeaderError("truncated TIFF, or one without a size", "tiff")
    _check_size(tags[_TIFF_WIDTH], tags[_TIFF_HEIGHT], 2**32 - 1, "TIFF")
    orientation = tags.get(ORIENTATION_TAG, 1)
    return PictureHeader(
        "tiff",
        tags[_TIFF_WIDTH],
        tags[_TIFF_HEIGHT],
        components=min(max(tags.get(_TIFF_SAMPLES, 1), 1), 4),
        orientation=orientation if 1 <= orientation <= 8 else 1,
    )


def _check_size(width: int, height: int, most: int, name: str) -> None:
    if not (1 <= width <= most and 1 <= height <= most):
        raise PictureHeaderError(f"{name} of {width}x{height} pixels", name.lower())

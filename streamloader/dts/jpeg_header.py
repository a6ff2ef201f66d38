"""JPEG headers, walked segment by segment so that nothing inside a segment can mislead.

Thumbnails, colour profiles and comments of any size are stepped over by their length. Marker
codes and frame layout: ITU-T T.81, annex B.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from streamloader.dts.exif import read_orientation
from streamloader.dts.picture_kind import PictureHeader, PictureHeaderError

_SOI: Final = 0xD8
_EOI: Final = 0xD9
_SOS: Final = 0xDA
_APP1: Final = 0xE1
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_NO_LENGTH: Final = frozenset({0x01, *range(0xD0, 0xD8)})
_PROGRESSIVE: Final = frozenset({0xC2, 0xC6, 0xCA, 0xCE})
_HUFFMAN_DCT: Final = frozenset({0xC0, 0xC1, 0xC2})
_EXIF: Final = b"Exif\0\0"
_unpack_frame: Final = struct.Struct(">BHHB").unpack_from

_SAMPLING_OF_LUMA: Final = {
    0x11: "4:4:4",
    0x21: "4:2:2",
    0x22: "4:2:0",
    0x12: "4:4:0",
    0x41: "4:1:1",
    0x42: "4:1:0",
    0x14: "4:4:1",
}


def read_jpeg(data: bytes) -> PictureHeader:
    """Header of a JPEG; `data` starts with its SOI marker.

    Raises:
        PictureHeaderError: when the bytes end before the picture data starts, or the frame
            states what no JPEG can have.
    """
    frame: tuple[int, bytes] | None = None
    orientation = 0
    for marker, start, end in _segments(data):
        if marker in _FRAMES:
            if frame is not None:
                raise _fault("JPEG with two frame headers")
            frame = marker, data[start:end]
        elif marker == _APP1 and not orientation and data[start : start + 6] == _EXIF:
            orientation = read_orientation(memoryview(data)[start + 6 : end])
    if frame is None:
        raise _fault("JPEG without a frame header, so without a size")
    return _read_frame(*frame, orientation or 1)


def _segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """(marker, start, end) of the body of each segment in front of the picture data.

    Coming to the picture data, or to an end marker, is the only way to end without an error.
    """
    at, data_bytes = 2, len(data)
    while True:
        marker, at = _next_marker(data, at)
        if marker in _NO_LENGTH:
            continue
        if marker == _SOI:
            raise _fault("JPEG with two start markers in a row")
        if marker in (_EOI, _SOS):
            return
        if at + 2 > data_bytes:
            raise _fault("truncated JPEG header")
        length = data[at] << 8 | data[at + 1]
        if length < 2:
            raise _fault(f"JPEG header segment of {length} bytes, less than its length field")
        if at + length > data_bytes:
            raise _fault("truncated JPEG header")
        yield marker, at + 2, at + length
        at += length


def _next_marker(data: bytes, at: int) -> tuple[int, int]:
    """Code of the next marker from `at`, and the position behind it.

    Like libjpeg it steps over stray bytes before a marker, fill bytes and stuffed zeros.
    """
    end = len(data)
    while True:
        at = data.find(0xFF, at)
        if at < 0:
            raise _fault("truncated JPEG header")
        while at < end and data[at] == 0xFF:
            at += 1
        if at == end:
            raise _fault("truncated JPEG header")
        if data[at]:
            return data[at], at + 1


def _read_frame(marker: int, body: bytes, orientation: int) -> PictureHeader:
    """Header from the body of a frame segment (SOF)."""
    if len(body) < 6 or len(body) != 6 + 3 * body[5]:
        raise _fault("JPEG frame header of the wrong length")
    bits, height, width, components = _unpack_frame(body)
    if width == 0 or height == 0:
        raise _fault(f"JPEG of {width}x{height} pixels")
    if not 1 <= components <= 4:
        raise _fault(f"JPEG of {components} components")
    factors = tuple(body[7::3])
    if any(not (1 <= factor >> 4 <= 4 and 1 <= factor & 15 <= 4) for factor in factors):
        raise _fault("JPEG with sampling factors outside 1 to 4")
    plain = bits == 8 and marker in _HUFFMAN_DCT
    return PictureHeader(
        format="jpeg",
        width=width,
        height=height,
        progressive=marker in _PROGRESSIVE,
        components=components,
        sampling=_sampling_name(factors) if plain else "other",
        orientation=orientation,
    )


def _sampling_name(factors: tuple[int, ...]) -> str:
    """Name of the chroma sampling when written in its usual form, with chroma factors 1x1.

    Equivalent forms (every factor 2x1, say) are "other": decoders in hardware differ on them.

    Args:
        factors: of each component, horizontal << 4 | vertical.
    """
    if len(factors) == 1:
        return "gray"
    if len(factors) == 2 or factors[1] != 0x11 or factors[2] != 0x11:
        return "other"
    if len(factors) == 4 and factors[3] != factors[0]:
        return "other"
    return _SAMPLING_OF_LUMA.get(factors[0], "other")


def _fault(reason: str) -> PictureHeaderError:
    return PictureHeaderError(reason, "jpeg")

"""JPEG and PNG streams without their metadata.

EXIF, XMP, ICC profiles, previews and comments never change a pixel that we give out, yet they make
decoders warn, raise or take a camera's second picture for the first. They are left out of the copy
that the decoder needs anyway, so a fault in them cannot reach it.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamloader.decode.faults import PictureFault

JPEG_START = b"\xff\xd8\xff"
PNG_START = b"\x89PNG\r\n\x1a\n"

_SOI_BYTES = 2
_END_OF_IMAGE = b"\xff\xd9"
_START_OF_SCAN = 0xDA
_SCAN_START = bytes([0xFF, _START_OF_SCAN])
# APP1 to APP13, APP15 and comments. APP0 (JFIF) and APP14 (Adobe) say what the colours are.
_METADATA_MARKERS = frozenset([*range(0xE1, 0xEE), 0xEF, 0xFE])
_ARITHMETIC_FRAMES = frozenset([0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF])
# Markers without a length: a header that has one is broken, and the decoder says how.
_BARE_MARKERS = frozenset([0x00, 0x01, *range(0xD0, 0xDA)])
_ANCILLARY_BIT = 0x20


@dataclass(frozen=True, slots=True)
class JpegStream:
    """A JPEG without metadata.

    Args:
        data: the stream, from SOI to whatever followed the picture.
        scan_offset: byte offset in ``data`` of the first scan's marker.
        huffman_coded: False if the frame says arithmetic coding.
    """

    data: bytes
    scan_offset: int
    huffman_coded: bool

    def end_offset(self) -> int:
        """Byte offset of the first end-of-image marker after the header, or -1.

        Inside a scan a 0xFF byte is always followed by 0x00 or by a marker, so the first hit is
        the end of the picture, whatever follows it.
        """
        return self.data.find(_END_OF_IMAGE, self.scan_offset)

    def num_scans(self) -> int:
        """How many scans begin, up to the end of the bytes."""
        return self.data.count(_SCAN_START, self.scan_offset)


def jpeg_pixel_stream(view: memoryview) -> JpegStream:
    """The JPEG in ``view`` without metadata segments, walked by their lengths.

    What is no marker segment ends the walk, and the rest stays as it is for the decoder to judge.

    Raises:
        PictureFault: the bytes end before a scan begins.
    """
    kept = [view[:_SOI_BYTES]]
    start = _SOI_BYTES
    huffman_coded = True
    while True:
        at = start
        while at < len(view) and view[at] == 0xFF:
            at += 1
        if at + 3 > len(view):
            raise _no_scan(view)
        if at == start or view[at] == _START_OF_SCAN or view[at] in _BARE_MARKERS:
            break
        end = at + 1 + int.from_bytes(view[at + 1 : at + 3], "big")
        if end > len(view):
            raise _no_scan(view)
        huffman_coded = huffman_coded and view[at] not in _ARITHMETIC_FRAMES
        if view[at] not in _METADATA_MARKERS:
            kept.append(view[start:end])
        start = end
    scan_offset = sum(map(len, kept))
    kept.append(view[start:])
    return JpegStream(b"".join(kept), scan_offset, huffman_coded)


def png_pixel_stream(view: memoryview) -> bytes:
    """The PNG in ``view`` with its critical chunks only: header, palette and pixels.

    Transparency is not among them: alpha is dropped, never blended. Bytes that are no whole chunk
    stay as they are, for the decoder to judge.
    """
    kept = [view[: len(PNG_START)]]
    position = len(PNG_START)
    while position + 12 <= len(view):
        end = position + 12 + int.from_bytes(view[position : position + 4], "big")
        if end > len(view):
            break
        if not view[position + 4] & _ANCILLARY_BIT:
            kept.append(view[position:end])
        position = end
    kept.append(view[position:])
    return b"".join(kept)


def _no_scan(view: memoryview) -> PictureFault:
    return PictureFault(f"truncated JPEG: its {len(view)} bytes end before the first scan")

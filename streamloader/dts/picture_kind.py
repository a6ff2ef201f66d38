"""What is known of a picture without decoding it, and the 16-bit code it is stored as."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from streamloader.errors import StreamLoaderError

FORMAT_CODES: Final = {
    "unknown": 0,
    "jpeg": 1,
    "png": 2,
    "webp": 3,
    "gif": 4,
    "bmp": 5,
    "tiff": 6,
}
"""Bits 0-3 of a picture's kind."""

SAMPLING_CODES: Final = {
    "": 0,
    "gray": 1,
    "4:4:4": 2,
    "4:2:2": 3,
    "4:2:0": 4,
    "4:4:0": 5,
    "4:1:1": 6,
    "4:1:0": 7,
    "4:4:1": 8,
    "other": 15,
}
"""Bits 8-11 of a picture's kind. ``""``: no chroma sampling in this format; ``other``: factors
outside this table, or a JPEG coding other than 8-bit Huffman baseline or progressive."""

UNREADABLE_KIND: Final = 0
"""The kind of a stored picture whose header could not be read."""

_FORMAT_NAMES: Final = {code: name for name, code in FORMAT_CODES.items()}
_SAMPLING_NAMES: Final = {code: name for name, code in SAMPLING_CODES.items()}


@dataclass(frozen=True, slots=True)
class PictureHeader:
    """What a picture's header says.

    Args:
        format: a key of `FORMAT_CODES`.
        width: in pixels, as stored (orientation not applied), 1 or more.
        height: in pixels, as stored, 1 or more.
        progressive: a progressive JPEG; False for other formats.
        components: channels as coded, 1 to 4; a palette counts as 1.
        sampling: a key of `SAMPLING_CODES`.
        orientation: EXIF orientation 1 to 8; 1 when absent or invalid.
    """

    format: str
    width: int
    height: int
    progressive: bool = False
    components: int = 3
    sampling: str = ""
    orientation: int = 1

    @property
    def kind(self) -> int:
        """The header but its size, packed into 16 bits.

        Bits 0-3 format, 4 progressive, 5-7 components, 8-11 sampling, 12-15 orientation.
        """
        return (
            FORMAT_CODES[self.format]
            | self.progressive << 4
            | self.components << 5
            | SAMPLING_CODES[self.sampling] << 8
            | self.orientation << 12
        )

    @classmethod
    def from_columns(cls, width: int, height: int, kind: int) -> PictureHeader | None:
        """The header behind one sample's generated columns; None where it was unreadable.

        Codes that this version does not know read as ``unknown`` and ``other``.
        """
        if kind == UNREADABLE_KIND:
            return None
        return cls(
            format=_FORMAT_NAMES.get(kind & 15, "unknown"),
            width=int(width),
            height=int(height),
            progressive=bool(kind >> 4 & 1),
            components=kind >> 5 & 7,
            sampling=_SAMPLING_NAMES.get(kind >> 8 & 15, "other"),
            orientation=kind >> 12 & 15,
        )


class PictureHeaderError(StreamLoaderError):
    """Bytes that are not a picture this version can read the header of.

    Args:
        reason: what they are or what is wrong, fit to be shown: "an HTML page".
        true_format: short name of what the bytes are: ``html``, ``heic``, ``jpeg`` …
    """

    def __init__(self, reason: str, true_format: str) -> None:
        self.reason = reason
        self.true_format = true_format
        super().__init__(reason)

    def __reduce__(self) -> tuple[object, ...]:
        return (PictureHeaderError, (self.reason, self.true_format))

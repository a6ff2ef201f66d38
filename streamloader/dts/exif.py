"""EXIF orientation. Damaged metadata never makes a picture unreadable: it counts as absent."""

from __future__ import annotations

import struct
from typing import Final

ORIENTATION_TAG: Final = 0x0112
_SHORT: Final = 3
_ENTRY_BYTES: Final = 12


def read_orientation(tiff: memoryview) -> int:
    """Orientation 1 to 8 stated by the first directory of a TIFF structure, else 1."""
    order = byte_order(tiff)
    if order is None:
        return 1
    for tag, kind, count, value in directory_entries(tiff, order):
        if tag == ORIENTATION_TAG:
            (orientation,) = struct.unpack_from(order + "H", value)
            if kind == _SHORT and count == 1 and 1 <= orientation <= 8:
                return int(orientation)
            return 1
    return 1


def byte_order(tiff: memoryview) -> str | None:
    """The struct prefix of a TIFF structure's byte order, None when it is not one."""
    return {b"II*\0": "<", b"MM\0*": ">"}.get(bytes(tiff[:4]))


def directory_entries(tiff: memoryview, order: str) -> list[tuple[int, int, int, bytes]]:
    """(tag, type, count, 4 value bytes) of the first directory, as far as the bytes go."""
    if len(tiff) < 8:
        return []
    (start,) = struct.unpack_from(order + "I", tiff, 4)
    if start + 2 > len(tiff):
        return []
    (stated,) = struct.unpack_from(order + "H", tiff, start)
    present = min(stated, (len(tiff) - start - 2) // _ENTRY_BYTES)
    entries = tiff[start + 2 : start + 2 + present * _ENTRY_BYTES]
    return list(struct.iter_unpack(order + "HHI4s", entries))

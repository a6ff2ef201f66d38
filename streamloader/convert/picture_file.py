"""Reads one source file and decides whether it is a sound picture."""

from __future__ import annotations

import os
import stat
import threading
from contextlib import nullcontext
from pathlib import Path

from streamloader.convert.folder import PictureFile, open_nonblocking
from streamloader.convert.report import Rejected
from streamloader.decode import MAX_PIXELS, PictureFault, decode_picture
from streamloader.dts import DEFAULT_LIMITS, PictureHeaderError, read_picture_header

# Decoded pictures above this are checked one at a time: at 7 bytes a pixel while decoding, one of
# the largest that is allowed takes 1.2 GB.
_LARGE_PICTURE_PIXELS = 32_000_000
_large_pictures = threading.Lock()


def read_picture(root: Path, picture: PictureFile, *, decode: bool) -> bytes | Rejected:
    """Return the bytes of a picture, or why it is rejected.

    Args:
        root: folder that the picture's path is relative to.
        picture: the file and the size it was listed with.
        decode: decode it fully, instead of reading its header only.
    """
    if picture.size > DEFAULT_LIMITS.record_bytes:
        return Rejected(picture.path, f"{picture.size} bytes are more than a record can have")
    try:
        data = _read_listed(root, picture)
        header = read_picture_header(data)
    except OSError as error:
        return Rejected(picture.path, f"cannot be read: {error.strerror or error}")
    except (_ChangedError, PictureHeaderError) as error:
        return Rejected(picture.path, str(error))
    pixels = header.width * header.height
    if pixels > MAX_PIXELS:
        return Rejected(
            picture.path,
            f"claims {header.width}x{header.height} pixels, more than the {MAX_PIXELS:,} allowed",
        )
    try:
        if decode:
            with _large_pictures if pixels > _LARGE_PICTURE_PIXELS else nullcontext():
                decode_picture(data)
    except PictureFault as fault:
        return Rejected(picture.path, str(fault))
    return data


class _ChangedError(Exception):
    """The file is not the one that was listed."""


def _read_listed(root: Path, picture: PictureFile) -> bytes:
    """Read exactly the bytes that were listed: shards are planned by them."""
    path = os.path.join(root, picture.path)
    with open(path, "rb", opener=open_nonblocking) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise _ChangedError("changed during the conversion: no regular file any more")
        data = file.read(picture.size + 1)
    if len(data) != picture.size:
        raise _ChangedError(
            f"changed during the conversion: listed with {picture.size} bytes, now {status.st_size}"
        )
    return data

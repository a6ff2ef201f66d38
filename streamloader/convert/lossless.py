"""Rewrites progressive JPEGs as baseline ones, coefficient by coefficient: no pixel changes.

Done by libjpeg-turbo's TurboJPEG library through its C interface (``tjTransform``), the way
``jpegtran`` does it; the library is looked for when the first picture needs it.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import threading
from typing import Any

from streamloader.convert.picture_check import UnsoundPicture
from streamloader.errors import ConfigError

_NAMES = ("libturbojpeg.so.0", "libturbojpeg.so", "libturbojpeg.dylib")
_INIT_TRANSFORM = "tjInitTransform"
_FLAG_STOP_ON_WARNING = 8192

_handles = threading.local()


class _Transform(ctypes.Structure):
    """``tjtransform``: all zero is the identity, baseline Huffman, metadata kept."""

    _fields_ = (
        ("x", ctypes.c_int),
        ("y", ctypes.c_int),
        ("w", ctypes.c_int),
        ("h", ctypes.c_int),
        ("op", ctypes.c_int),
        ("options", ctypes.c_int),
        ("data", ctypes.c_void_p),
        ("filter", ctypes.c_void_p),
    )


def require_lossless() -> None:
    """Check that progressive JPEGs can be rewritten here.

    Raises:
        ConfigError: TurboJPEG is not installed.
    """
    _library()


def to_baseline(data: bytes) -> bytes:
    """Return a JPEG with the same coefficients, and so the same pixels, as a baseline JPEG.

    Raises:
        UnsoundPicture: the library cannot rewrite it.
        ConfigError: TurboJPEG is not installed.
    """
    library = _library()
    handle = _handle(library)
    out = ctypes.POINTER(ctypes.c_ubyte)()
    out_bytes = ctypes.c_ulong(0)
    transform = _Transform()
    failed = library.tjTransform(
        handle,
        data,
        ctypes.c_ulong(len(data)),
        1,
        ctypes.byref(out),
        ctypes.byref(out_bytes),
        ctypes.byref(transform),
        _FLAG_STOP_ON_WARNING,
    )
    try:
        if failed:
            message = library.tjGetErrorStr2(handle).decode("ascii", "replace")
            raise UnsoundPicture(f"cannot be rewritten as a baseline JPEG: {message}")
        return ctypes.string_at(out, out_bytes.value)
    finally:
        library.tjFree(out)


def _handle(library: Any) -> Any:
    """Return this thread's transformer; closed with the thread by ``_Handle``."""
    if not hasattr(_handles, "owner"):
        _handles.owner = _Handle(library)
    return _handles.owner.pointer


class _Handle:
    """Owns one transformer."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self.pointer = ctypes.c_void_p(library.tjInitTransform())
        if not self.pointer:
            raise MemoryError("TurboJPEG could not start a transformer")

    def __del__(self) -> None:
        if getattr(self, "pointer", None):
            self._library.tjDestroy(self.pointer)


@functools.cache
def _library() -> Any:
    tried = [*_NAMES]
    found = ctypes.util.find_library("turbojpeg")
    if found is not None and found not in tried:
        tried.insert(0, found)
    for name in tried:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        if hasattr(library, _INIT_TRANSFORM):
            return _declared(library)
    raise ConfigError(
        "lossless_baseline needs the TurboJPEG library, which was not found as"
        f" {', '.join(tried)}; install it (Debian: libturbojpeg0) or leave the option out"
    )


def _declared(library: Any) -> Any:
    library.tjInitTransform.restype = ctypes.c_void_p
    library.tjDestroy.argtypes = [ctypes.c_void_p]
    library.tjFree.argtypes = [ctypes.POINTER(ctypes.c_ubyte)]
    library.tjFree.restype = None
    library.tjGetErrorStr2.argtypes = [ctypes.c_void_p]
    library.tjGetErrorStr2.restype = ctypes.c_char_p
    library.tjTransform.argtypes = [
        ctypes.c_void_p,
        ctypes.c_char_p,
        ctypes.c_ulong,
        ctypes.c_int,
        ctypes.POINTER(ctypes.POINTER(ctypes.c_ubyte)),
        ctypes.POINTER(ctypes.c_ulong),
        ctypes.POINTER(_Transform),
        ctypes.c_int,
    ]
    library.tjTransform.restype = ctypes.c_int
    return library

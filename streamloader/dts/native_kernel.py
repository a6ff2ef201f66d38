"""The native part of the format, both names None where it was not built."""

from __future__ import annotations

try:
    from streamloader.dts._native import ffi as ffi
    from streamloader.dts._native import lib as lib
except ImportError:
    ffi = lib = None

"""The native part of the fetch, both names None where it was not built."""

from __future__ import annotations

try:
    from streamloader.fetch._native import ffi as ffi
    from streamloader.fetch._native import lib as lib
except ImportError:
    ffi = lib = None

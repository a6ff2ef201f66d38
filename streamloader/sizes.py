"""Sizes in bytes as people write them: ``"200gb"``, ``"128mib"``, ``1048576``."""

from __future__ import annotations

import re
from decimal import Decimal

from streamloader.errors import ConfigError

_UNIT_BYTES = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_SIZE = re.compile(r"\s*([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([a-z]*)\s*", re.IGNORECASE | re.ASCII)


def parse_size(size: str | int, name: str = "size") -> int:
    """Return a size in bytes; gb = 10^9, gib = 2^30, a bare number is bytes.

    Args:
        size: a positive number of bytes, or a number with one of the units b, kb, mb, gb, tb
            (powers of 1000), kib, mib, gib, tib (powers of 1024), in any case.
        name: what the size is for, for the message.

    Raises:
        ConfigError: not a size, or less than one byte.
    """
    if isinstance(size, bool) or not isinstance(size, (int, str)):
        raise ConfigError(f"{name} must be bytes or a size like '128mib', got {size!r}")
    if isinstance(size, int):
        size_bytes = size
    else:
        match = _SIZE.fullmatch(size)
        unit = match[2].lower() if match else None
        if match is None or unit not in _UNIT_BYTES:
            raise ConfigError(
                f"{name} must be a size like '200gb' (10^9) or '128mib' (2^20), got {size!r}"
            )
        size_bytes = int(Decimal(match[1]) * _UNIT_BYTES[unit])
    if size_bytes < 1:
        raise ConfigError(f"{name} must be at least one byte, got {size!r}")
    return size_bytes


def format_size(size_bytes: int) -> str:
    """Return a size for people, in powers of 1024: ``"1.5 GiB"``."""
    size = float(size_bytes)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size_bytes} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"

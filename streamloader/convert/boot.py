"""Tells one run of the machine from another."""

from __future__ import annotations

import secrets
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_UNKNOWN = secrets.token_hex(16)


def boot_id() -> str:
    """Name this run of the machine; where that is not known, this run of the program."""
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return _UNKNOWN

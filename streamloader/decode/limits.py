"""How large a picture may claim to be."""

from __future__ import annotations

from dataclasses import dataclass

from streamloader.errors import ConfigError

MAX_PIXELS = 178_956_970
MAX_SCANS = 100

# What the fields of the kernel in C hold.
_MOST = {"max_pixels": 2**63 - 1, "max_scans": 2**31 - 1}


@dataclass(frozen=True, slots=True)
class PictureLimits:
    """What a header may claim; a picture beyond it is a fault before memory for it is taken.

    Args:
        max_pixels: width times height.
        max_scans: of a JPEG, each a pass over the picture.
    """

    max_pixels: int = MAX_PIXELS
    max_scans: int = MAX_SCANS

    def __post_init__(self) -> None:
        for name, most in _MOST.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
                raise ConfigError(f"{name} must be a whole number from 1 to {most}, got {value!r}")


DEFAULT_LIMITS = PictureLimits()

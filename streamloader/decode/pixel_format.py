"""The numbers that stand for a pixel in a batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from streamloader.errors import ConfigError

PixelType: TypeAlias = Literal["uint8", "float16", "bfloat16", "float32"]

_STORED_AS = {
    "uint8": "uint8",
    "float16": "float16",
    "bfloat16": "uint16",
    "float32": "float32",
}


@dataclass(frozen=True, slots=True)
class PixelFormat:
    """uint8 as decoded, or a float type holding (x / 255 - mean) / std.

    Args:
        dtype: "uint8", "float16", "bfloat16" or "float32".
        mean: of red, green and blue on the 0-1 scale; None is 0.
        std: the same, all positive; None is 1.
    """

    dtype: PixelType = "uint8"
    mean: tuple[float, float, float] | None = None
    std: tuple[float, float, float] | None = None

    def __post_init__(self) -> None:
        if self.dtype not in _STORED_AS:
            raise ConfigError(f"pixels are one of {', '.join(_STORED_AS)}, got {self.dtype!r}")
        if self.dtype == "uint8" and (self.mean is not None or self.std is not None):
            raise ConfigError(
                "uint8 pixels cannot be normalised; choose a float type or leave out mean and std, "
                f"got mean={self.mean} std={self.std}"
            )
        for name in ("mean", "std"):
            object.__setattr__(self, name, _channels(name, getattr(self, name)))
        if self.std is not None and min(self.std) <= 0.0:
            raise ConfigError(f"std must be positive in each channel, got {self.std}")
        if not np.isfinite(self._normalised()).all():
            raise ConfigError(
                f"(x / 255 - mean) / std must fit in {self.dtype}, "
                f"got mean={self.mean} std={self.std}"
            )

    @property
    def numpy_dtype(self) -> str:
        """The numpy type that stores these pixels; "uint16" for the bits of bfloat16."""
        return _STORED_AS[self.dtype]

    @property
    def torch_dtype(self) -> str | None:
        """The torch type to view the stored bits as, where numpy has no such type; else None."""
        return "bfloat16" if self.dtype == "bfloat16" else None

    def tables(self) -> npt.NDArray[Any]:
        """[3, 256]: what stands for each byte value in each channel.

        Computed in float32 and rounded once, to nearest even, to the pixel type.
        """
        values = self._normalised()
        if self.dtype == "bfloat16":
            return _bfloat16_bits(values.astype(np.float32))
        return values

    def _normalised(self) -> npt.NDArray[Any]:
        levels = np.arange(256, dtype=np.float32)
        if self.dtype == "uint8":
            return np.tile(levels.astype(np.uint8), (3, 1))
        mean = np.array(self.mean or (0.0, 0.0, 0.0), np.float32)
        std = np.array(self.std or (1.0, 1.0, 1.0), np.float32)
        with np.errstate(over="ignore", divide="ignore"):
            values = (levels / np.float32(255) - mean[:, None]) / std[:, None]
            return values.astype(np.float16) if self.dtype == "float16" else values


def _channels(name: str, values: Sequence[float] | None) -> tuple[float, float, float] | None:
    if values is None:
        return None
    try:
        red, green, blue = (float(value) for value in values)
    except (TypeError, ValueError):
        raise ConfigError(f"{name} takes three numbers, one a channel, got {values!r}") from None
    if not all(map(math.isfinite, (red, green, blue))):
        raise ConfigError(f"{name} takes three finite numbers, got {values!r}")
    return red, green, blue


def _bfloat16_bits(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """The upper half of each float32, rounded to nearest, ties to even."""
    bits = values.view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype(np.uint16)

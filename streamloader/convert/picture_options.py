"""What is done to pictures before they are stored, checked once."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from streamloader.errors import ConfigError

DEFAULT_QUALITY = 90
_MAX_SIDE = 65_500


@dataclass(frozen=True, slots=True)
class PictureOptions:
    """How pictures are changed; by default they are stored as they are.

    Args:
        resize_short: shrink pictures whose short side is longer to this many pixels, antialiased.
        quality: of the JPEGs that are encoded anew, 1 to 100.
        orient: turn pictures as their EXIF says, so that they are stored upright.
        lossless_baseline: rewrite progressive JPEGs as baseline ones with the same pixels.
        to_jpeg: encode every other format as JPEG.
    """

    resize_short: int | None = None
    quality: int | None = None
    orient: bool = False
    lossless_baseline: bool = False
    to_jpeg: bool = False

    def __post_init__(self) -> None:
        _check_range(self.resize_short, "resize_short", 1, _MAX_SIDE)
        _check_range(self.quality, "quality", 1, 100)
        encodes = self.resize_short is not None or self.orient or self.to_jpeg
        if self.quality is not None and not encodes:
            raise ConfigError(
                "quality has no use where no picture is encoded anew; give resize_short, orient"
                " or to_jpeg with it"
            )

    @property
    def jpeg_quality(self) -> int:
        """Quality to encode with."""
        return DEFAULT_QUALITY if self.quality is None else self.quality

    @property
    def keep_all(self) -> bool:
        """Whether every picture is stored as it is."""
        return self == PictureOptions()

    def shaping(self) -> dict[str, Any]:
        """What of it shapes the bytes of a shard, as JSON values; empty where nothing does."""
        if self.keep_all:
            return {}
        values = dataclasses.asdict(self)
        values["quality"] = self.jpeg_quality
        return {"pictures": values}


def _check_range(value: int | None, name: str, low: int, high: int) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(f"{name} must be an integer in [{low}, {high}], got {value!r}")

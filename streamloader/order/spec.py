"""What an order is made of: the few numbers that fix the order of every epoch."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from streamloader.errors import ConfigError

ShuffleMode: TypeAlias = Literal["window", "global", "none"]

ORDER_VERSION = 1
"""Version of the rules. Any change that moves a sample in any epoch raises it."""

MAX_SAMPLES = 1 << 40
MAX_LANES = 1 << 20
SHUFFLE_MODES = ("window", "global", "none")
_MIN_BLOCKS_PER_LANE = 4


@dataclass(frozen=True, slots=True)
class OrderSpec:
    """The numbers that fix the order of every epoch; with an epoch they say where a sample is.

    Raises:
        ConfigError: a number is out of range, or lanes are asked of a mode that has none.
    """

    num_samples: int
    """Samples of the data set, 1 to 2^40."""

    block_samples: int
    """Samples of a block, the unit of reading; the last block may be shorter."""

    seed: int
    """Seed of the run, in [0, 2^64)."""

    shuffle: ShuffleMode
    """``"window"``: blocks and samples of a few blocks mixed. ``"global"``: any sample anywhere.
    ``"none"``: stored order."""

    lanes: int
    """Segments of the data set that are read side by side; 1 unless ``shuffle`` is ``"window"``."""

    window: int
    """Consecutive pieces of a lane whose samples are mixed."""

    def __post_init__(self) -> None:
        for name, low, high in (
            ("num_samples", 1, MAX_SAMPLES),
            ("block_samples", 1, MAX_SAMPLES),
            ("seed", 0, (1 << 64) - 1),
            ("lanes", 1, MAX_LANES),
            ("window", 1, MAX_SAMPLES),
        ):
            object.__setattr__(self, name, checked_int(name, getattr(self, name), low, high))
        if self.shuffle not in SHUFFLE_MODES:
            raise ConfigError(
                f"shuffle must be True, False, 'window', 'global' or 'none', got {self.shuffle!r}"
            )
        if self.shuffle != "window" and self.lanes != 1:
            raise ConfigError(
                f"shuffle={self.shuffle!r} has no lanes; pass lanes=1, got {self.lanes}"
            )

    @classmethod
    def choose(
        cls,
        num_samples: int,
        block_samples: int,
        *,
        seed: int = 0,
        shuffle: bool | str = True,
        lanes: int = 256,
        window: int = 2,
    ) -> OrderSpec:
        """The spec for a data set, with fewer lanes where it is too small for those asked.

        A lane should have at least four blocks; where it would not, the lanes become the largest
        power of two that gives that, at least 1. The number of ranks never plays a part, so that
        every number of ranks sees the same order.

        Args:
            num_samples: samples of the data set (or split, or subset).
            block_samples: samples of a block.
            seed: seed of the run.
            shuffle: True means ``"window"``, False means ``"none"``.
            lanes: lanes wanted with ``"window"``.
            window: pieces of a window.

        Raises:
            ConfigError: as the constructor.
        """
        if isinstance(shuffle, bool):
            shuffle = "window" if shuffle else "none"
        lanes = checked_int("lanes", lanes, 1, MAX_LANES)
        wanted = cls(
            num_samples,
            block_samples,
            seed,
            cast(ShuffleMode, shuffle),
            lanes if shuffle == "window" else 1,
            window,
        )
        most = max(1, wanted.num_blocks // _MIN_BLOCKS_PER_LANE)
        if wanted.lanes <= most:
            return wanted
        fewer = 1 << (most.bit_length() - 1)
        return cls(num_samples, block_samples, seed, wanted.shuffle, fewer, window)

    @property
    def num_blocks(self) -> int:
        """Blocks of the data set, a short last one included."""
        return -(-self.num_samples // self.block_samples)


def checked_int(name: str, value: object, low: int, high: int) -> int:
    """An argument as a plain ``int`` in [low, high].

    Raises:
        ConfigError: it is no integer (booleans are none), or lies outside the range.
    """
    try:
        number = operator.index(cast(int, value))
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or not low <= number <= high:
        raise ConfigError(f"{name} must be an integer from {low} to {high}, got {value!r}")
    return number

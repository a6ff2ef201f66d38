"""A worker's share of a batch: what one decode call is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from streamloader.decode.crops import AppliedCrops
from streamloader.errors import ConfigError


class AbortFlag(Protocol):
    """What a decoder looks at between pictures; ``threading.Event`` is one."""

    def is_set(self) -> bool: ...


Abort: TypeAlias = AbortFlag | Callable[[], bool] | None


class AbortWord:
    """An abort flag in memory that a decoder in C can look at without the interpreter."""

    __slots__ = ("word",)

    def __init__(self) -> None:
        self.word = np.zeros(1, np.int32)

    def set(self) -> None:
        self.word[0] = 1

    def is_set(self) -> bool:
        return bool(self.word[0])


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """n compressed pictures and the rows of a batch that they belong to.

    The buffers are the caller's, and must stay until the call that decodes the share returned.

    Args:
        data: bytes that hold all n compressed pictures, C-contiguous.
        offsets: int64 [n], where each picture starts in ``data``.
        lengths: int64 [n], in bytes.
        samples: int64 [n], the pictures' numbers in the data set.
        rows: int64 [n], rows of the batch, each at most once.
        out: [B, H, W, 3], or [B, H, W] for masks: the whole batch; only ``rows`` are written.
        seed: of the data order, keys the random crops.
        epoch: from 0, keys the random crops.
        abort: looked at between pictures; once true the call returns, the rest left as it was.
        crops: of the whole batch, B entries: pictures write what was done to them if it is given,
            masks, which need it, read it.
    """

    data: memoryview | npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    samples: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    out: npt.NDArray[Any]
    seed: int
    epoch: int
    abort: Abort = None
    crops: AppliedCrops | None = None

    def __post_init__(self) -> None:
        count = len(self.offsets)
        for name in ("lengths", "samples", "rows"):
            if len(getattr(self, name)) != count:
                raise ConfigError(
                    f"a share has as many {name} as offsets ({count}), "
                    f"got {len(getattr(self, name))}"
                )
        if self.crops is not None and len(self.crops.flips) != len(self.out):
            raise ConfigError(
                f"a share has crops for each of the {len(self.out)} rows of its batch, "
                f"got {len(self.crops.flips)}"
            )
        if not count:
            return
        ends = self.offsets + self.lengths
        if self.offsets.min() < 0 or self.lengths.min() < 0 or ends.max() > self.num_bytes:
            raise ConfigError(
                f"the pictures of a share must lie in its {self.num_bytes} bytes of data, "
                f"got offsets from {self.offsets.min()} and ends up to {ends.max()}"
            )
        if self.rows.min() < 0 or self.rows.max() >= len(self.out):
            raise ConfigError(
                f"the rows of a share must lie in its batch of {len(self.out)}, "
                f"got {self.rows.min()} to {self.rows.max()}"
            )

    def check_out(self, height: int, width: int, dtype: str) -> None:
        """Raises ConfigError unless ``out`` is [B, height, width, 3] of ``dtype``, and writable."""
        shape = (height, width, 3)
        if self.out.ndim != 4 or self.out.shape[1:] != shape or self.out.dtype != dtype:
            raise ConfigError(
                f"this transform fills batches [B, {', '.join(map(str, shape))}] of {dtype}, "
                f"got {list(self.out.shape)} of {self.out.dtype}"
            )
        if not self.out.flags.writeable:
            raise ConfigError("a share's batch must be writable, got a read-only array")

    def part(self, places: slice | npt.NDArray[np.int64]) -> Share:
        """The pictures at these places of the share, as a share."""
        return replace(
            self,
            offsets=self.offsets[places],
            lengths=self.lengths[places],
            samples=self.samples[places],
            rows=self.rows[places],
        )

    def at_rows(self, rows: npt.NDArray[np.int64]) -> Share:
        """The same pictures for other rows of the batch."""
        return replace(self, rows=rows)

    def into(self, out: npt.NDArray[Any]) -> Share:
        """The same share for another batch of the same length."""
        return replace(self, out=out)

    @property
    def num_bytes(self) -> int:
        return self.data.nbytes

    @property
    def aborted(self) -> bool:
        if self.abort is None:
            return False
        return self.abort() if callable(self.abort) else self.abort.is_set()

"""Which rows of a batch the engines decode, and what the GPU needs to know of each row.

All of it is arithmetic on the columns of the data set, for a whole batch at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from streamloader.decode.crops import Bools, CropPlan, Int64s
from streamloader.decode.gpu.headers import is_engine_kind
from streamloader.decode.gpu.nvjpeg import IMAGE_DTYPE
from streamloader.errors import ConfigError
from streamloader.order import mix64

TABLE_WORDS: Final = 16
"""int32 words of a row in the table that the GPU reads."""

SLAB_ALIGNMENT: Final = 256
_SHORTEST_SIDE: Final = 64
_LONGEST_SIDE: Final = 16_384
_PIXEL_BYTES: Final = 3
# Keeps these numbers apart from those that shuffle and crop.
_ROUTE_DOMAIN: Final = 0x726F757465


class Source(IntEnum):
    """Where the GPU finds the picture of a row."""

    NOTHING = 0
    """Nowhere: the row is zero."""
    STAGED = 1
    """Decoded and resized by the CPU, in the batch's slot."""
    DECODED = 2
    """Decoded by an engine, whole, in a slab."""


ROW_DTYPE: Final = np.dtype(
    [
        ("source", "<i4"),
        ("chunk", "<i4"),
        ("offset", "<i4"),
        ("pitch", "<i4"),
        ("width", "<i4"),
        ("height", "<i4"),
        ("flip", "<i4"),
        ("place", "<i4"),
        ("x0", "<f4"),
        ("y0", "<f4"),
        ("scale_x", "<f4"),
        ("scale_y", "<f4"),
        ("unused", "<i4", (4,)),
    ]
)
"""One row of the table. ``offset`` and ``pitch`` in bytes, of the picture in its slab; ``width``
and ``height`` of it in pixels; ``place`` of a staged picture; the box from ``x0``, ``y0`` on, whose
``scale`` is pixels of the stored picture for each of the output."""


def check_share(share: float) -> float:
    """Raises ConfigError unless ``share`` is a number from 0 to 1."""
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0.0 <= share <= 1.0:
        raise ConfigError(f"gpu_decode_share must be a number from 0 to 1, got {share!r}")
    return float(share)


def choose_engine_rows(
    kinds: npt.NDArray[np.integer],
    widths: Int64s,
    heights: Int64s,
    samples: Int64s,
    lengths: Int64s,
    *,
    share: float,
    max_pixels: int,
    max_bytes: int,
    slab_bytes: int,
) -> tuple[Bools, Bools]:
    """Which rows go to the engines, and which others could not, whatever the share.

    The share is drawn from the sample's number, so a sample takes the same way, and has the same
    bytes, in any batch, on any rank and after any resume.

    Args:
        kinds, widths, heights: [n], columns of the picture field.
        samples: int64 [n], numbers in the data set.
        lengths: int64 [n], bytes of each picture as it is stored.
        share: of the pictures that the engines can decode, how many they get.
        max_pixels: a picture that claims more is left to the CPU, which refuses it.
        max_bytes: a picture that is longer as it is stored is left to the CPU.
        slab_bytes: a picture that does not fit is left to the CPU.
    """
    pixels = widths * heights
    able = is_engine_kind(kinds)
    able &= (np.minimum(widths, heights) >= _SHORTEST_SIDE) & (pixels <= max_pixels)
    able &= np.maximum(widths, heights) <= _LONGEST_SIDE
    able &= (slab_room(widths, heights) <= slab_bytes) & (lengths <= max_bytes)
    drawn = mix64(samples.astype(np.uint64) + np.uint64(_ROUTE_DOMAIN))
    chosen = np.ones(len(samples), np.bool_) if share >= 1.0 else drawn < np.uint64(share * 2.0**64)
    return able & chosen, ~able


def slab_room(widths: Int64s, heights: Int64s) -> Int64s:
    """Bytes that each picture takes in a slab."""
    return -(-widths * heights * _PIXEL_BYTES // SLAB_ALIGNMENT) * SLAB_ALIGNMENT


@dataclass(frozen=True, slots=True, eq=False)
class EngineBatch:
    """The pictures of one field of a batch for the engines, in chunks that fit a slab each.

    Args:
        rows: int64 [n], of the batch.
        offsets: int64 [n], of the compressed pictures in the arena.
        lengths: uint64 [n], in bytes.
        images: [n] of ``IMAGE_DTYPE``; the addresses count from the start of the slab.
        bounds: pictures ``bounds[c]`` to ``bounds[c + 1]`` are chunk c.
    """

    rows: Int64s
    offsets: Int64s
    lengths: npt.NDArray[np.uint64]
    images: npt.NDArray[np.void]
    bounds: tuple[int, ...]

    @property
    def num_chunks(self) -> int:
        return len(self.bounds) - 1

    def chunks(self) -> Iterator[tuple[int, slice]]:
        """Number and pictures of each chunk."""
        for number in range(self.num_chunks):
            yield number, slice(self.bounds[number], self.bounds[number + 1])


def plan_engine_batch(
    table: npt.NDArray[np.void],
    rows: Int64s,
    offsets: Int64s,
    lengths: Int64s,
    widths: Int64s,
    heights: Int64s,
    crops: CropPlan,
    *,
    slab_bytes: int,
) -> EngineBatch:
    """Lays the decoded pictures out in slabs and writes their rows of ``table``.

    Args:
        table: [B] of ``ROW_DTYPE``, of the batch.
        rows: int64 [n].
        offsets, lengths: int64 [n], of the compressed pictures.
        widths, heights: int64 [n], in pixels.
        crops: of these n pictures.
        slab_bytes: no picture needs more.
    """
    room = slab_room(widths, heights)
    ends = np.cumsum(room)
    bounds = _chunk_bounds(ends, slab_bytes)
    firsts = np.repeat(bounds[:-1], np.diff(bounds))
    within = ends - room - (ends - room)[firsts] if len(rows) else ends
    images = np.zeros(len(rows), IMAGE_DTYPE)
    images["channel"][:, 0] = within
    images["pitch"][:, 0] = widths * _PIXEL_BYTES
    entries = np.zeros(len(rows), ROW_DTYPE)
    entries["source"] = Source.DECODED
    entries["chunk"] = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    entries["offset"] = within
    entries["pitch"] = widths * _PIXEL_BYTES
    entries["width"], entries["height"] = widths, heights
    entries["flip"] = crops.flips
    entries["x0"], entries["y0"] = crops.boxes[:, 0], crops.boxes[:, 1]
    entries["scale_x"] = (crops.boxes[:, 2] - crops.boxes[:, 0]) / crops.width
    entries["scale_y"] = (crops.boxes[:, 3] - crops.boxes[:, 1]) / crops.height
    table[rows] = entries
    return EngineBatch(rows, offsets, lengths.astype(np.uint64), images, tuple(bounds))


def _chunk_bounds(ends: Int64s, slab_bytes: int) -> list[int]:
    """Where chunks begin and end, of about one size: few pictures leave engines idle."""
    bounds = [0]
    total = int(ends[-1]) if len(ends) else 0
    while bounds[-1] < len(ends):
        begun = int(ends[bounds[-1] - 1]) if bounds[-1] else 0
        left = total - begun
        aim = begun + left // -(-left // slab_bytes)
        fits = int(np.searchsorted(ends, begun + slab_bytes, side="right"))
        bounds.append(min(fits, int(np.searchsorted(ends, aim, side="left")) + 1))
    return bounds


def stage_rows(table: npt.NDArray[np.void], rows: Int64s, places: Int64s) -> None:
    """Writes into ``table`` that the pictures of ``rows`` are staged at ``places``."""
    entries = np.zeros(len(rows), ROW_DTYPE)
    entries["source"] = Source.STAGED
    entries["place"] = places
    table[rows] = entries

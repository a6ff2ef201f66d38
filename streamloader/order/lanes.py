"""Lanes: the data set's blocks in one fixed random sequence, cut into equal segments.

Only the seed decides, never the epoch, so a rank reads the same bytes in every epoch and a cache on
its node serves the second one. Everything is closed form: besides a few numbers per lane, nothing
is stored.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamloader.order.bijection import I64Array, permute, unpermute
from streamloader.order.random import derive_key
from streamloader.order.spec import OrderSpec

_BLOCK_SEQUENCE = 0x626C6F636B


@dataclass(frozen=True, slots=True)
class Lanes:
    """The lanes of a data set, as int64 arrays ``[lanes]`` where a field is per lane.

    A *slot* is a place in the sequence of blocks, and a *piece* is the part of a block that lies in
    one lane: all of it, except where a lane's border cuts the block. A piece is *short* by the
    samples that it lacks to a full block.
    """

    block_samples: int
    num_blocks: int
    sequence_key: int
    tail_slot: int
    """Slot of the data set's last block, the only one that may be short itself."""
    length: I64Array
    """Samples of the lane; 0 when there are more lanes than samples."""
    first_slot: I64Array
    pieces: I64Array
    """Pieces of the lane, at least 1 also for an empty lane, so that formulas need no exception."""
    skipped: I64Array
    """Samples of the block in ``first_slot`` that belong to the lane before."""
    short_piece: I64Array
    """``[3, lanes]``: the pieces that may be short: first, last, and that of ``tail_slot``."""
    short_by: I64Array
    """``[3, lanes]``: samples that they lack; 0 where another row has the same piece."""

    @classmethod
    def of(cls, spec: OrderSpec) -> Lanes:
        """Cut the lanes of a data set; time and memory grow with the lanes only."""
        size = spec.block_samples
        sequence_key = derive_key(_BLOCK_SEQUENCE, spec.seed)
        tail = spec.num_samples - (spec.num_blocks - 1) * size
        tail_slot = int(unpermute(spec.num_blocks - 1, spec.num_blocks, np.uint64(sequence_key)))

        lane = np.arange(spec.lanes, dtype=np.int64)
        share, longer = divmod(spec.num_samples, spec.lanes)
        length = share + (lane < longer)
        start = lane * share + np.minimum(lane, longer)
        last = start + np.maximum(length, 1) - 1
        # With the last block imagined full, slots are plain multiples of the block size.
        tail_end = tail_slot * size + tail
        start = np.where(start >= tail_end, start + size - tail, start)
        last = np.where(last >= tail_end, last + size - tail, last)

        first_slot = start // size
        last_slot = last // size
        skipped = start - first_slot * size
        cut_off = (last_slot + 1) * size - last - 1
        has_tail = (first_slot <= tail_slot) & (tail_slot < last_slot)
        tail_short = np.where(has_tail, size - tail, 0)
        tail_piece = np.where(has_tail, tail_slot - first_slot, 0)
        pieces = last_slot - first_slot + 1
        short_piece = np.stack([np.zeros_like(lane), pieces - 1, tail_piece])
        short_by = np.stack([skipped, cut_off, tail_short])
        for row in (1, 2):
            same_as_first = short_piece[row] == 0
            short_by[0] += np.where(same_as_first, short_by[row], 0)
            short_by[row] = np.where(same_as_first, 0, short_by[row])
        return cls(
            block_samples=size,
            num_blocks=spec.num_blocks,
            sequence_key=sequence_key,
            tail_slot=tail_slot,
            length=length,
            first_slot=first_slot,
            pieces=pieces,
            skipped=skipped,
            short_piece=short_piece,
            short_by=short_by,
        )

    def piece_start(self, lane: I64Array, piece: I64Array) -> I64Array:
        """Number of the first sample of each piece; both arguments int64 ``[n]``."""
        block = permute(
            self.first_slot[lane] + piece, self.num_blocks, np.uint64(self.sequence_key)
        )
        return block * self.block_samples + np.where(piece == 0, self.skipped[lane], 0)

"""Window shuffle: where each offset of each lane leads, in one epoch.

A lane's pieces are permuted, the first is turned by a random part of its length (its start becomes
the lane's last piece), and the samples of a few consecutive pieces, a *window*, are permuted among
themselves. The turn and a first window of random length keep lanes from changing windows at the
same time, which would double the memory that a rank needs.
"""

from __future__ import annotations

import numpy as np

from streamloader.order.bijection import I64Array, permute, unpermute
from streamloader.order.lanes import Lanes
from streamloader.order.located import Located, piece_id
from streamloader.order.random import U64Array, derive_key, random_u64
from streamloader.order.spec import OrderSpec

_LANE_KEYS = 0x6C616E65
_PIECE_ORDER, _TURN, _FIRST_WINDOW, _WINDOW_KEYS = range(4)
_NEVER = np.int64(1 << 62)


class WindowShuffle:
    """One epoch of a window-shuffled data set.

    *Places* number the pieces of a lane in the order in which the epoch takes them: place 0 is the
    turned first piece, place ``pieces`` its other part (when there is one).

    Args:
        spec: an order with ``shuffle="window"``.
        epoch: number of the epoch, in [0, 2^64).
    """

    __slots__ = (
        "_first_window",
        "_keys",
        "_lanes",
        "_num_lanes",
        "_places",
        "_short_by",
        "_short_end",
        "_short_place",
        "_turn",
        "_window",
        "_window_keys",
    )

    def __init__(self, spec: OrderSpec, epoch: int) -> None:
        self._lanes = lanes = Lanes.of(spec)
        self._num_lanes = spec.lanes
        self._window = spec.window

        epoch_key = derive_key(_LANE_KEYS, spec.seed, epoch)
        lane_keys = random_u64(epoch_key, np.arange(spec.lanes, dtype=np.int64))
        self._keys: U64Array = random_u64(lane_keys, _PIECE_ORDER)
        self._window_keys: U64Array = random_u64(lane_keys, _WINDOW_KEYS)

        place = unpermute(lanes.short_piece, lanes.pieces, self._keys)
        is_short = lanes.short_by > 0
        first_length = lanes.block_samples - np.where(place == 0, lanes.short_by, 0).sum(axis=0)
        filled_end = (place + 1) * lanes.block_samples - lanes.short_by
        ascending = np.argsort(np.where(is_short, place, _NEVER), axis=0, kind="stable")
        self._short_place, self._short_end, self._short_by = (
            np.take_along_axis(rows, ascending, axis=0)
            for rows in (
                np.where(is_short, place, _NEVER),
                np.where(is_short, filled_end, _NEVER),
                lanes.short_by,
            )
        )

        self._turn: I64Array = _below(random_u64(lane_keys, _TURN), np.maximum(first_length, 1))
        self._places: I64Array = lanes.pieces + (self._turn > 0)
        window = np.int64(spec.window)
        self._first_window: I64Array = 1 + _below(random_u64(lane_keys, _FIRST_WINDOW), window)

    def locate(self, positions: I64Array) -> Located:
        """Where positions lead; int64 ``[n]``, each in [0, num_samples)."""
        lane = positions % self._num_lanes
        offset = positions // self._num_lanes
        window = self._window_of(lane, self._place_of(lane, offset))
        low = self._place_start(lane, self._window_start(lane, window))
        high = self._place_start(lane, self._window_start(lane, window + 1))

        window_key = random_u64(self._window_keys[lane], window)
        offset = low + permute(offset - low, high - low, window_key)
        place = self._place_of(lane, offset)
        start = self._place_start(lane, place)

        pieces = self._lanes.pieces[lane]
        is_rest = place == pieces
        piece = permute(np.where(is_rest, 0, place), pieces, self._keys[lane])
        first = self._lanes.piece_start(lane, piece) + np.where(place == 0, self._turn[lane], 0)
        return Located(
            sample=first + (offset - start),
            lane=lane,
            piece=piece_id(lane, place),
            piece_first=first,
            piece_count=self._place_start(lane, place + 1) - start,
            window_end=(high - 1) * self._num_lanes + lane + 1,
            repeat=np.zeros_like(positions),
        )

    def _place_of(self, lane: I64Array, offset: I64Array) -> I64Array:
        """The place whose piece holds an offset of a lane.

        With every short piece filled up, the place is a quotient; so each short piece that ends
        before the offset adds what it lacks, in ascending order.
        """
        filled = offset + self._turn[lane]
        is_rest = filled >= self._lanes.length[lane]
        ends = self._short_end[:, lane]
        short_by = self._short_by[:, lane]
        for row in range(3):
            filled += np.where(filled >= ends[row], short_by[row], 0)
        return np.where(is_rest, self._lanes.pieces[lane], filled // self._lanes.block_samples)

    def _place_start(self, lane: I64Array, place: I64Array) -> I64Array:
        """Offset at which a place's samples start; beyond the last place, the lane's length."""
        missing = np.where(self._short_place[:, lane] < place, self._short_by[:, lane], 0)
        start = place * self._lanes.block_samples - missing.sum(axis=0) - self._turn[lane]
        bounded: I64Array = np.clip(start, 0, self._lanes.length[lane])
        return bounded

    def _window_of(self, lane: I64Array, place: I64Array) -> I64Array:
        later = (place - self._first_window[lane]) // self._window + 1
        return np.where(later > 0, later, 0)

    def _window_start(self, lane: I64Array, window: I64Array) -> I64Array:
        later = self._first_window[lane] + (window - 1) * self._window
        return np.minimum(np.where(window == 0, 0, later), self._places[lane])


def _below(bits: U64Array, sizes: I64Array | np.int64) -> I64Array:
    """A number in [0, size) from 64 random bits; for sizes up to 2^40 the bias is below 2^-24."""
    return (bits % np.asarray(sizes).astype(np.uint64)).astype(np.int64)

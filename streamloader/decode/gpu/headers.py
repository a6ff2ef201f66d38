"""Which JPEGs the engines may be given: headers read for a whole batch at once.

An engine writes as many pixels as the header states, wherever it was told to, and says nothing
about a scan that ends early. So the header is compared with the size that memory was set aside for,
and a picture that is odd in any way is left to the decoder on the CPU, which judges it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from streamloader.decode.crops import Bools, Int64s
from streamloader.dts.picture_kind import FORMAT_CODES, SAMPLING_CODES

_SOF0: Final = 0xC0
_DHT: Final = 0xC4
_SOS: Final = 0xDA
_DQT: Final = 0xDB
_DRI: Final = 0xDD
_ADOBE: Final = 0xEE
_COMMENT: Final = 0xFE
_LONGEST_HEADER_SEGMENTS: Final = 256
_SHORTEST_BYTES: Final = 128

_FRAME_BYTES: Final = 2 + 17
_SCAN_LENGTH: Final = 12
_ADOBE_BYTES: Final = 2 + 14
_ADOBE_NAME: Final = np.frombuffer(b"Adobe", np.uint8)
_ADOBE_YCC: Final = 1
_RGB_NAMES: Final = np.frombuffer(b"RGB", np.uint8)

# Sampling factors of the luma component by the sampling code of a picture's kind; 0: not taken.
_LUMA_FACTORS: Final = np.zeros(16, np.uint8)
for _name, _factors in (("4:4:4", 0x11), ("4:2:2", 0x21), ("4:2:0", 0x22), ("4:4:0", 0x12)):
    _LUMA_FACTORS[SAMPLING_CODES[_name]] = _factors

_NEEDED: Final = 0b111
_SEEN: Final = np.zeros(256, np.uint8)
_SEEN[[_SOF0, _DHT, _DQT]] = 1, 2, 4
_PASSED: Final = np.zeros(256, np.bool_)
_PASSED[[_SOF0, _DHT, _DQT, _DRI, _COMMENT, *range(0xE0, 0xF0)]] = True

Bytes = npt.NDArray[np.uint8]


def is_engine_kind(kinds: npt.NDArray[np.integer]) -> Bools:
    """Whether the engines decode pictures of these kinds: baseline YCbCr JPEG, usual sampling.

    Args:
        kinds: [n], the column ``kind`` of a picture field.
    """
    kinds = kinds.astype(np.int64)
    jpeg = (kinds & 15) == FORMAT_CODES["jpeg"]
    baseline = (kinds >> 4 & 1) == 0
    three = (kinds >> 5 & 7) == 3
    able: Bools = jpeg & baseline & three & (_LUMA_FACTORS[kinds >> 8 & 15] > 0)
    return able


def luma_factors(kinds: npt.NDArray[np.integer]) -> Bytes:
    """Sampling factors of the first component of pictures of these kinds, uint8 [n]."""
    factors: Bytes = _LUMA_FACTORS[kinds.astype(np.int64) >> 8 & 15]
    return factors


def sound_headers(
    data: Bytes,
    offsets: Int64s,
    lengths: Int64s,
    widths: Int64s,
    heights: Int64s,
    kinds: npt.NDArray[np.integer],
) -> Bools:
    """Whether each JPEG is what its columns say, in one plain scan, with all it needs.

    True means: SOI first, EOI last, tables and one 8-bit baseline frame of this size and sampling
    before a scan of all three components, and colours that are YCbCr by libjpeg's rules.

    Args:
        data: holds all pictures.
        offsets, lengths: int64 [n], where they lie.
        widths, heights: int64 [n], as their columns say.
        kinds: [n], the column ``kind``, each an engine's.
    """
    sound = np.zeros(len(offsets), np.bool_)
    seen = np.zeros(len(offsets), np.uint8)
    ends = offsets + lengths
    live = np.flatnonzero(lengths >= _SHORTEST_BYTES)
    live = live[_starts_and_ends(data, offsets[live], ends[live])]
    factors = luma_factors(kinds)
    at = offsets + 2
    for _ in range(_LONGEST_HEADER_SEGMENTS):
        if not len(live):
            break
        # Every segment before the scan leaves room for the scan's own, so these reads stay inside.
        start = _take(data, at[live], 4)
        marker = start[:, 1]
        segment = start[:, 2].astype(np.int64) << 8 | start[:, 3]
        good = (start[:, 0] == 0xFF) & (segment >= 2)
        good &= at[live] + 2 + segment + _FRAME_BYTES <= ends[live]
        begins = good & (marker == _SOS)
        done = live[begins]
        whole = segment[begins] == _SCAN_LENGTH
        whole &= _take(data, at[done], 5)[:, 4] == 3
        sound[done] = whole & (seen[done] == _NEEDED)
        good &= _PASSED[marker]
        frames = good & (marker == _SOF0)
        good[frames] = _is_frame(
            data,
            at[live[frames]],
            widths[live[frames]],
            heights[live[frames]],
            factors[live[frames]],
        ) & (seen[live[frames]] & 1 == 0)
        adobe = good & (marker == _ADOBE)
        good[adobe] = _is_ycc(data, at[live[adobe]])
        seen[live] |= _SEEN[marker]
        at[live] += 2 + segment
        live = live[good]
    return sound


def _take(data: Bytes, at: Int64s, count: int) -> Bytes:
    """``count`` bytes from each place, uint8 [len(at), count]."""
    taken: Bytes = data[at[:, None] + np.arange(count)]
    return taken


def _starts_and_ends(data: Bytes, starts: Int64s, ends: Int64s) -> Bools:
    first, last = _take(data, starts, 2), _take(data, ends - 2, 2)
    begins = (first[:, 0] == 0xFF) & (first[:, 1] == 0xD8)
    whole: Bools = begins & (last[:, 0] == 0xFF) & (last[:, 1] == 0xD9)
    return whole


def _is_frame(data: Bytes, at: Int64s, widths: Int64s, heights: Int64s, luma: Bytes) -> Bools:
    frame = _take(data, at, _FRAME_BYTES)
    wide = frame.astype(np.int64)
    good: Bools = (wide[:, 2] << 8 | wide[:, 3]) == _FRAME_BYTES - 2
    good &= frame[:, 4] == 8
    good &= (wide[:, 5] << 8 | wide[:, 6]) == heights
    good &= (wide[:, 7] << 8 | wide[:, 8]) == widths
    good &= frame[:, 9] == 3
    good &= (frame[:, 11] == luma) & (frame[:, 14] == 0x11) & (frame[:, 17] == 0x11)
    good &= ~(frame[:, [10, 13, 16]] == _RGB_NAMES).all(axis=1)
    return good


def _is_ycc(data: Bytes, at: Int64s) -> Bools:
    """False for an Adobe segment that says the colours are not YCbCr."""
    segment = _take(data, at, _ADOBE_BYTES)
    other = (segment[:, 4:9] != _ADOBE_NAME).any(axis=1)
    good: Bools = other | (segment[:, 15] == _ADOBE_YCC)
    return good

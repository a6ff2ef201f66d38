"""Counts and durations by name, cheap enough for the hot path.

A duration goes into a histogram of fixed size (8 bins per power of two), so memory stays
constant over an epoch of any length and a percentile is right within 9 %; count, sum and
maximum are exact.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass

_BINS_PER_OCTAVE = 8
_SHORTEST_S = 1e-6
_NUM_BINS = 36 * _BINS_PER_OCTAVE  # up to about 19 hours


@dataclass(frozen=True, slots=True)
class TimeSummary:
    """Durations of one stage, in milliseconds."""

    count: int
    p50: float
    p95: float
    p99: float
    max: float
    sum: float

    def to_dict(self) -> dict[str, float]:
        return {
            "count": self.count,
            "p50": self.p50,
            "p95": self.p95,
            "p99": self.p99,
            "max": self.max,
            "sum": self.sum,
        }


class _Histogram:
    __slots__ = ("bins", "count", "max_s", "sum_s")

    def __init__(self) -> None:
        self.bins = [0] * _NUM_BINS
        self.count = 0
        self.sum_s = 0.0
        self.max_s = 0.0

    def add(self, seconds: float) -> None:
        place = 0
        if seconds > _SHORTEST_S:
            octaves = math.log2(seconds / _SHORTEST_S)
            place = min(int(octaves * _BINS_PER_OCTAVE) + 1, _NUM_BINS - 1)
        self.bins[place] += 1
        self.count += 1
        self.sum_s += seconds
        self.max_s = max(self.max_s, seconds)

    def percentile_s(self, share: float) -> float:
        wanted = share * self.count
        seen = 0
        for place, count in enumerate(self.bins):
            seen += count
            if count and seen >= wanted:
                upper = _SHORTEST_S * math.exp2(place / _BINS_PER_OCTAVE)
                return min(upper, self.max_s)
        return self.max_s


class Counters:
    """Thread-safe counts and durations; every room is given one and reports to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._times: dict[str, _Histogram] = {}

    def add(self, name: str, value: int = 1) -> None:
        """Adds ``value`` to the count ``name``."""
        with self._lock:
            self._counts[name] = self._counts.get(name, 0) + value

    def observe(self, name: str, seconds: float) -> None:
        """Records one duration of the stage ``name``."""
        with self._lock:
            histogram = self._times.get(name)
            if histogram is None:
                histogram = self._times[name] = _Histogram()
            histogram.add(seconds)

    def count(self, name: str) -> int:
        with self._lock:
            return self._counts.get(name, 0)

    def counts(self) -> dict[str, int]:
        with self._lock:
            return dict(sorted(self._counts.items()))

    def times(self) -> dict[str, TimeSummary]:
        """Summaries of every stage seen so far, in milliseconds."""
        with self._lock:
            return {name: _summarise(h) for name, h in sorted(self._times.items())}

    def time(self, name: str) -> TimeSummary:
        """The summary of one stage; all zero if it never ran."""
        with self._lock:
            return _summarise(self._times.get(name, _Histogram()))


def _summarise(histogram: _Histogram) -> TimeSummary:
    return TimeSummary(
        count=histogram.count,
        p50=histogram.percentile_s(0.50) * 1e3,
        p95=histogram.percentile_s(0.95) * 1e3,
        p99=histogram.percentile_s(0.99) * 1e3,
        max=histogram.max_s * 1e3,
        sum=histogram.sum_s * 1e3,
    )

"""The arithmetic of a pipeline: what its stages cost one after another, and overlapped."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import NamedTuple

from streamloader.errors import ConfigError


class PipelineTimes(NamedTuple):
    """Seconds per step."""

    serial_s: float
    """Every stage waits for the one before: the sum."""

    steady_s: float
    """All stages overlap, and buffers between them are never empty: the slowest stage."""


def pipeline_times(
    stages: Iterable[float] | Mapping[str, float],
    workers: int | Sequence[int] | Mapping[str, int] = 1,
) -> PipelineTimes:
    """Serial and steady-state time of one step, from the times of its stages.

    serial = sum of t; steady = max of t / w, where w workers share a stage. Stages that the
    same workers run one after another (reading and decoding in one pool) are one stage: pass
    their sum.

    Args:
        stages: seconds per step of each stage, at least one; finite and not negative.
        workers: workers of each stage: one number for all, a number per stage in their order,
            or by name for some of the stages (the others have one).

    Raises:
        ConfigError: no stage, a time that is negative, NaN or infinite, or workers that do not
            fit the stages.

    >>> pipeline_times([0.012, 0.008, 0.005, 0.020])
    PipelineTimes(serial_s=0.045, steady_s=0.02)
    """
    named = dict(stages) if isinstance(stages, Mapping) else dict(enumerate(stages))
    if not named:
        raise ConfigError("pipeline_times needs at least one stage, got none")
    times = {name: _seconds(name, value) for name, value in named.items()}
    counts = _workers_of(list(times), workers)
    serial_s = math.fsum(times.values())
    steady_s = max(time / counts[name] for name, time in times.items())
    return PipelineTimes(serial_s, steady_s)


def _seconds(name: object, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ConfigError(f"stage {name!r} must be seconds, got {value!r}")
    seconds = float(value)
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ConfigError(f"stage {name!r} must be finite and not negative, got {value!r}")
    return seconds


def _workers_of(
    names: list[object], workers: int | Sequence[int] | Mapping[str, int]
) -> dict[object, int]:
    if isinstance(workers, Mapping):
        unknown = [name for name in workers if name not in names]
        if unknown:
            raise ConfigError(f"workers names stages that do not exist: {unknown}")
        counts: dict[object, int] = dict.fromkeys(names, 1)
        counts.update(workers)
    elif isinstance(workers, Sequence):
        if len(workers) != len(names):
            raise ConfigError(f"workers has {len(workers)} numbers for {len(names)} stages")
        counts = dict(zip(names, workers, strict=True))
    else:
        counts = dict.fromkeys(names, workers)
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ConfigError(f"workers of stage {name!r} must be at least 1, got {count!r}")
    return counts

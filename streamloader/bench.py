"""Times the whole pipeline, from storage to batches on a device."""

from __future__ import annotations

import importlib
import importlib.util
import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from streamloader.loader import StreamLoader
from streamloader.monitor import TimeSummary

_STAGES = {
    "fetch": "fetch.piece_s",
    "decode": "decode.share_s",
    "transfer": "transfer_s",
    "wait": "wait_s",
}


@dataclass(frozen=True, slots=True)
class BenchReport:
    """Samples are valid rows only; CPU seconds are of this process, all threads."""

    samples: int
    seconds: float
    first_batch_s: float
    cpu_s: float
    stages: Mapping[str, TimeSummary]

    def to_dict(self) -> dict[str, Any]:
        return {
            "samples": self.samples,
            "seconds": self.seconds,
            "samples_per_s": self.samples / self.seconds if self.seconds else 0.0,
            "first_batch_s": self.first_batch_s,
            "cpu_s_per_1k": 1e3 * self.cpu_s / self.samples if self.samples else 0.0,
            "stages": {
                name: {"p50": t.p50, "p95": t.p95, "p99": t.p99, "max": t.max}
                for name, t in self.stages.items()
            },
        }


def bench(
    url: str,
    *,
    epochs: int = 1,
    seconds: float | None = None,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> BenchReport:
    """Iterates a :class:`StreamLoader` and throws the batches away.

    Time starts before the loader is made and ends after the last batch is on the device.

    Args:
        url: the data set.
        epochs: full epochs.
        seconds: stop after this long; None runs all epochs.
        progress: called with samples done and samples in all.
        options: as of ``StreamLoader``.
    """
    if importlib.util.find_spec("torch") is not None:
        importlib.import_module("torch")  # seconds that no training loop pays again
    started = time.perf_counter()
    cpu_before = _cpu_s()
    samples, first_batch_s = 0, 0.0
    with StreamLoader(url, **options) as loader:
        total = epochs * len(loader) * options["batch_size"]
        for _ in range(epochs):
            for batch in loader:
                samples += int(batch["valid"].sum())
                if not first_batch_s:
                    first_batch_s = time.perf_counter() - started
                if progress is not None:
                    progress(samples, total)
                if seconds is not None and time.perf_counter() - started >= seconds:
                    break
            else:
                continue
            break
        elapsed = time.perf_counter() - started
        cpu_s = _cpu_s() - cpu_before
        stages = {name: loader.stage_time(stage) for name, stage in _STAGES.items()}
    return BenchReport(samples, elapsed, first_batch_s, cpu_s, stages)


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime

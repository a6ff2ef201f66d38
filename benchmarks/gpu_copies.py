"""What the way to the GPU costs: bandwidth, and a training step beside it in three settings.

    python benchmarks/gpu_copies.py [--seconds 2] [--json FILE]

A bare copy from pinned memory and the loader's own station, one batch after the other; then a step
of matrix products alone, and the same step with a batch copied for each: from pageable memory, from
pinned memory, and from pinned memory on a stream of its own, which is what the station does.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

import torch

from streamloader.transfer import (
    CudaBackend,
    FieldSpec,
    HostMemory,
    SlotLayout,
    SlotRing,
    TransferStation,
)

BATCH_SIZE, SIZE = 256, 224


class Copies:
    """Batches of pixels in pinned host memory, a station that moves them, and a step."""

    def __init__(self) -> None:
        layout = SlotLayout.build([FieldSpec("image", "uint8", (SIZE, SIZE, 3))], BATCH_SIZE)
        self.nbytes = layout.nbytes
        self.pinned = torch.empty(self.nbytes, dtype=torch.uint8, pin_memory=True)
        self.pageable = torch.zeros(self.nbytes, dtype=torch.uint8)
        self._there = torch.empty(self.nbytes, dtype=torch.uint8, device="cuda")
        self._matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
        backend = CudaBackend()
        self._freed: SimpleQueue[None] = SimpleQueue()
        self._ring = SlotRing(
            layout,
            slots=4,
            max_slots=4,
            memory_factory=partial(HostMemory, pin=backend),
            on_free=lambda: self._freed.put(None),
        )
        self._station = TransferStation("cuda:0", layout, backend)

    def step(self) -> None:
        for _ in range(20):
            torch.mm(self._matrix, self._matrix)

    def bare_s(self, batches: int) -> float:
        """Seconds for copies from pinned memory with nothing else to do."""
        return _timed(batches, lambda: self._there.copy_(self.pinned, non_blocking=True))

    def alone_s(self, batches: int) -> float:
        """Seconds for steps without copies."""
        return _timed(batches, self.step)

    def blocking_s(self, batches: int, host: torch.Tensor) -> float:
        """Seconds for steps, each behind a copy on its own stream."""

        def copy_and_step() -> None:
            self._there.copy_(host)
            self.step()

        return _timed(batches, copy_and_step)

    def station_s(self, batches: int, step: Callable[[], object]) -> float:
        """Seconds for steps on batches that the station moves."""

        def receive_and_step() -> None:
            self._station.receive(60)
            step()

        producer = Thread(target=self._produce, args=(batches,))
        producer.start()
        seconds = _timed(batches, receive_and_step)
        producer.join()
        return seconds

    def _produce(self, batches: int) -> None:
        for number in range(batches):
            while (slot := self._ring.try_acquire()) is None:
                self._freed.get()
            slot.mark_filled()
            self._station.send(slot, number)

    def close(self) -> None:
        self._station.close()
        self._ring.close()


def _timed(times: int, work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    for _ in range(times):
        work()
    torch.cuda.synchronize()
    return time.perf_counter() - begun


def bandwidth(copies: Copies, seconds: float) -> dict[str, float]:
    """GB per second, bare and through the station."""
    count = max(20, int(seconds * 55e9 / copies.nbytes / 2))
    copies.bare_s(10)
    copies.station_s(10, lambda: None)
    total = count * copies.nbytes / 1e9
    return {
        "bare_gb_per_s": total / copies.bare_s(count),
        "station_gb_per_s": total / copies.station_s(count, lambda: None),
    }


def steps(copies: Copies, batches: int = 20, rounds: int = 5) -> dict[str, dict[str, float]]:
    """What a step takes in each setting, as the median of quotients to the step alone."""
    settings: dict[str, Callable[[], float]] = {
        "pageable": partial(copies.blocking_s, batches, copies.pageable),
        "pinned": partial(copies.blocking_s, batches, copies.pinned),
        "pinned, on a stream": partial(copies.station_s, batches, copies.step),
    }
    copies.alone_s(5)
    timed = [
        (copies.alone_s(batches), {name: run() for name, run in settings.items()})
        for _ in range(rounds)
    ]
    results = {}
    for name in settings:
        step_s = statistics.median(times[name] for _, times in timed) / batches
        share = statistics.median(times[name] / alone for alone, times in timed)
        results[name] = {
            "of_a_step_alone": share,
            "waits_ms": 1e3 * step_s * (1 - 1 / share),
            "idle_share": 1 - 1 / share,
            "samples_per_s": BATCH_SIZE / step_s,
        }
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    copies = Copies()
    results = {**bandwidth(copies, arguments.seconds), "steps": steps(copies)}
    copies.close()
    print(json.dumps(results, indent=1))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()

"""What stalled reads cost, with batches as planned and with batches by arrival.

    python benchmarks/stalled_reads.py [--stall 0.6] [--one-in 40] [--arena-mb 70] [--json]

The fetch path alone, against local files behind a store that answers each read 10 ms late and one
in so many much later. A consumer takes a batch every 10 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from storage_backends import Store, open_store
from streamloader import DatasetWriter
from streamloader.fetch import Arena, Catalog, Fetched, Prefetcher
from streamloader.monitor import Counters
from streamloader.order import ArrivalPlan, EpochOrder, OrderSpec, RankPlan

RECORD_BYTES, RECORDS = 2_000, 100_000
BATCH_SIZE, BATCH_S, READ_S = 256, 0.01, 0.01
LATE_S = 0.1
MAX_READS = 32


class Stalling:
    """A store some of whose reads come late, the same ones in every run."""

    def __init__(self, store: Store, stall_s: float, one_in: int) -> None:
        self._store = store
        self._stall_s = stall_s
        self._one_in = one_in
        self._rng = random.Random(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def read_into(self, *arguments: Any) -> None:
        is_stalled = self._rng.random() * self._one_in < 1
        await asyncio.sleep(self._stall_s if is_stalled else READ_S)
        await self._store.read_into(*arguments)


async def epoch(
    path: Path, plan_class: type[RankPlan | ArrivalPlan], options: argparse.Namespace
) -> dict[str, float]:
    """Seconds of an epoch, the longest wait for a batch, and the sum of waits over 0.1 s."""
    async with open_store(str(path)) as store:
        catalog = await Catalog.open(Stalling(store, options.stall, options.one_in))  # type: ignore[arg-type]  # as one
        spec = OrderSpec.choose(catalog.num_samples, catalog.blocks.block_samples, shuffle=True)
        plan = plan_class(EpochOrder(spec, 0), batch_size=BATCH_SIZE, rank=0, world_size=1)
        arena = Arena(options.arena_mb << 20)
        prefetcher = Prefetcher(catalog, arena, counters=Counters(), max_reads=MAX_READS)
        times: list[float] = []

        async def deliver(fetched: Fetched) -> None:
            fetched.release()
            times.append(time.perf_counter())
            await asyncio.sleep(BATCH_S)

        started = time.perf_counter()
        await prefetcher.run(plan, deliver)
        seconds = time.perf_counter() - started
        prefetcher.close()
    waits = np.diff(times)
    return {
        "epoch_s": seconds,
        "longest_wait_s": float(waits.max()),
        "late_s": float(waits[waits > LATE_S].sum()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stall", type=float, default=0.6, help="seconds that a read stalls")
    parser.add_argument("--one-in", type=int, default=40, help="how rarely one does")
    parser.add_argument("--arena-mb", type=int, default=70, help="memory for blocks")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "set"
        rng = np.random.default_rng(0)
        with DatasetWriter(path, {"data": "bytes"}) as writer:
            for _ in range(RECORDS):
                writer.write({"data": rng.integers(0, 256, RECORD_BYTES, dtype=np.uint8)})
        report = {
            name: asyncio.run(epoch(path, plan_class, options))
            for name, plan_class in (("as planned", RankPlan), ("by arrival", ArrivalPlan))
        }
    if options.json:
        print(json.dumps(report))
        return
    for name, figures in report.items():
        print(name, *(f"{figure}: {value:.2f}" for figure, value in figures.items()), sep="  ")


if __name__ == "__main__":
    main()

"""The rooms one by one: format, fetch and slot ring; medians and spread.

    python benchmarks/rooms.py [--rounds 5] [--json]

Order has a benchmark of its own (``benchmarks/order.py``), and so has the whole loader.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from streamloader import DatasetWriter
from streamloader.dts import Schema, ShardIndex, ShardWriter
from streamloader.fetch.offline import PrefetchOptions, prefetch_offline
from streamloader.transfer import FieldSpec, SlotLayout, SlotRing, lease_arrays

RECORD_BYTES, RECORDS = 100_000, 2_000


def timed(run: Callable[[], float], rounds: int) -> dict[str, float]:
    """Median, lowest and highest of what ``run`` returns, after one round that is not counted."""
    run()
    figures = [run() for _ in range(rounds)]
    return {
        "median": statistics.median(figures),
        "lowest": min(figures),
        "highest": max(figures),
    }


def format_room(rounds: int) -> dict[str, dict[str, float]]:
    """Records per second written, tails per second parsed, and GB/s verified."""
    data = np.random.default_rng(0).integers(0, 256, RECORD_BYTES, dtype=np.uint8)
    schema = Schema.of({"data": "bytes", "label": "int64"})
    stored: list[bytes] = []

    def write() -> float:
        stored.clear()
        writer = ShardWriter(schema, uuid=bytes(16), sink=lambda part: stored.append(bytes(part)))
        started = time.perf_counter()
        for number in range(RECORDS):
            writer.add({"data": data, "label": number})
        writer.finish()
        return RECORDS / (time.perf_counter() - started)

    written = timed(write, rounds)
    shard = b"".join(stored)
    tail_bytes = ShardIndex.tail_bytes(shard[-64:], len(shard), "benchmark")
    tail = shard[-tail_bytes:]

    def parse() -> float:
        started = time.perf_counter()
        for _ in range(100):
            ShardIndex.parse(tail, name="benchmark", file_bytes=len(shard))
        return 100 / (time.perf_counter() - started)

    index = ShardIndex.parse(tail, name="benchmark", file_bytes=len(shard))

    def verify() -> float:
        started = time.perf_counter()
        assert not index.verify_records(0, RECORDS, shard, 0)
        return RECORDS * RECORD_BYTES / 1e9 / (time.perf_counter() - started)

    return {
        "format: records written per s (100 KB)": written,
        "format: tails parsed per s (2,000 records)": timed(parse, rounds),
        "format: GB verified per s": timed(verify, rounds),
    }


def fetch_room(folder: Path, rounds: int) -> dict[str, dict[str, float]]:
    """GB/s of the whole prefetch path from the page cache, and of plain preadv beside it."""
    rng = np.random.default_rng(0)
    with DatasetWriter(folder / "set", {"data": "bytes"}) as writer:
        for _ in range(RECORDS):
            writer.write({"data": rng.integers(0, 256, RECORD_BYTES, dtype=np.uint8)})
    shards = sorted((folder / "set").glob("*.dts"))
    buffer = bytearray(1 << 20)

    def plain() -> float:
        started, total = time.perf_counter(), 0
        for shard in shards:
            descriptor = os.open(shard, os.O_RDONLY)
            offset = 0
            while count := os.preadv(descriptor, [buffer], offset):
                offset += count
            os.close(descriptor)
            total += offset
        return total / 1e9 / (time.perf_counter() - started)

    def prefetch(**options: bool) -> Callable[[], float]:
        def run() -> float:
            wanted = PrefetchOptions(epochs=5, **options)
            report = prefetch_offline(str(folder / "set"), wanted)
            return report.bytes / 1e9 / report.seconds

        return run

    return {
        "fetch: GB/s of preadv alone, 1 MiB": timed(plain, rounds),
        "fetch: GB/s of the prefetch path": timed(prefetch(verify=False), rounds),
        "fetch: GB/s with every hash checked": timed(prefetch(verify=True), rounds),
    }


def ring_room(rounds: int) -> dict[str, dict[str, float]]:
    """Slots per second through acquire, fill, lease and return (batch of 256 pictures)."""
    layout = SlotLayout.build(
        [FieldSpec("label", "int64"), FieldSpec("image", "uint8", (224, 224, 3))], 256
    )
    ring = SlotRing(layout, slots=3, max_slots=3, on_free=lambda: None)

    def pass_slots() -> float:
        started = time.perf_counter()
        for _ in range(2_000):
            slot = ring.try_acquire()
            assert slot is not None
            slot.mark_filled()
            lease_arrays(slot)
        return 2_000 / (time.perf_counter() - started)

    figures = {"ring: slots handed over per s": timed(pass_slots, rounds)}
    ring.close()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    figures = format_room(arguments.rounds) | ring_room(arguments.rounds)
    with tempfile.TemporaryDirectory() as folder:
        figures |= fetch_room(Path(folder), arguments.rounds)
    if arguments.json:
        print(json.dumps(figures))
        return
    for name, values in figures.items():
        spread = f"{values['lowest']:,.2f}-{values['highest']:,.2f}"
        print(f"{name:44} {values['median']:10,.2f} ({spread})")


if __name__ == "__main__":
    main()

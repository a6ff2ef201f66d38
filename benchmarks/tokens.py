"""Records per second of a data set of small fixed records: tokens without pictures.

python benchmarks/tokens.py [--records 1000000] [--tokens 64] [--batch-size 1024] [--rounds 5]
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from streamloader import DatasetWriter, StreamLoader


def write(path: Path, records: int, tokens: int) -> float:
    """Writes the data set; returns records per second."""
    rng = np.random.default_rng(0)
    started = time.perf_counter()
    fields = {"tokens": ("int32", (tokens,)), "document": "int64"}
    with DatasetWriter(path, fields) as writer:
        for first in range(0, records, 10_000):
            count = min(10_000, records - first)
            block = rng.integers(0, 50_000, (count, tokens), dtype=np.int32)
            for number in range(count):
                writer.write({"tokens": block[number], "document": first + number})
    return records / (time.perf_counter() - started)


def read(loader: StreamLoader) -> tuple[float, float]:
    """One epoch: records per second, CPU seconds per million records."""
    started, cpu = time.perf_counter(), _cpu_s()
    records = 0
    for batch in loader:
        records += len(batch["document"])
    elapsed = time.perf_counter() - started
    return records / elapsed, 1e6 * (_cpu_s() - cpu) / records


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "set"
        written = write(path, arguments.records, arguments.tokens)
        with StreamLoader(
            str(path),
            batch_size=arguments.batch_size,
            shuffle=True,
            device="cpu",
            num_workers=arguments.workers,
        ) as loader:
            rounds = [read(loader) for _ in range(arguments.rounds + 1)][1:]
            stages = loader.stats()["times_ms"]
    rates, cpus = zip(*rounds, strict=True)
    result = {
        "written_per_s": written,
        "read_per_s": statistics.median(rates),
        "lowest": min(rates),
        "highest": max(rates),
        "cpu_s_per_million": statistics.median(cpus),
        "p50_ms": {name: times["p50"] for name, times in stages.items()},
    }
    print(json.dumps(result, indent=None if arguments.json else 1))


if __name__ == "__main__":
    main()

"""Whether a block cache on a local disk should keep its files out of the page cache.

Blocks are written as the cache writes them, and read as it reads them, each way in a process of its
own and taking turns: left to the system; dropped from the page cache behind the reader or writer
(``POSIX_FADV_DONTNEED``, which a written page follows once it is on the disk); past the page cache
(``O_DIRECT``).

    python benchmarks/block_cache.py [--rounds 3] [--total-mib 1024] [--folder /data] [--json]

Reads begin cold, and are then repeated, as a second epoch does. The disk of a virtual machine may
have a cache of its own.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from streamloader.fetch.cache_files import write_block  # noqa: E402 - the tree beside this file

MIB = 2**20
BLOCK_BYTES = MIB
WAYS = ("left to the system", "dropped behind", "O_DIRECT")


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def page_cache_mib() -> float:
    lines = Path("/proc/meminfo").read_text().splitlines()
    (cached,) = [int(line.split()[1]) for line in lines if line.startswith("Cached:")]
    return cached / 1024


def drop(path: str) -> None:
    """Out of the page cache, once it is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fdatasync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def write_direct(path: str, memory: memoryview) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o666)
    try:
        assert os.write(descriptor, memory) == len(memory)
    finally:
        os.close(descriptor)


def read(path: str, memory: memoryview, way: str) -> None:
    direct = os.O_DIRECT if way == "O_DIRECT" else 0
    descriptor = os.open(path, os.O_RDONLY | direct)
    try:
        assert os.preadv(descriptor, [memory], 0) == len(memory)
        if way == "dropped behind":
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def measure(folder: str, way: str, count: int) -> dict[str, float]:
    """Writes, reads cold, reads again; seconds, CPU, and what the page cache has grown by."""
    memory = memoryview(mmap.mmap(-1, BLOCK_BYTES))
    memory[:] = np.random.default_rng(0).bytes(BLOCK_BYTES)
    names = [f"0-{number * BLOCK_BYTES}-{BLOCK_BYTES}.block" for number in range(count)]
    paths = [os.path.join(folder, name) for name in names]

    def write_all() -> None:
        for name, path in zip(names, paths, strict=True):
            if way == "O_DIRECT":
                write_direct(path, memory)
            else:
                write_block(folder, name, memory)
                if way == "dropped behind":
                    drop(path)

    def read_all() -> None:
        for path in paths:
            read(path, memory, way)

    found: dict[str, float] = {}
    for step, work in (("write", write_all), ("read", read_all), ("again", read_all)):
        if step == "read":
            os.sync()
            for path in paths:
                drop(path)
        cached, started, cpu = page_cache_mib(), time.perf_counter(), cpu_s()
        work()
        seconds = time.perf_counter() - started
        found[f"{step}_mb_per_s"] = count * BLOCK_BYTES / 1e6 / seconds
        found[f"{step}_cpu_s_per_gb"] = (cpu_s() - cpu) / (count * BLOCK_BYTES) * 1e9
        found[f"{step}_cache_mib"] = page_cache_mib() - cached
    return found


def run(folder: str | None, rounds: int, count: int) -> dict[str, dict[str, float]]:
    entries: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way, found in entries.items():
            with tempfile.TemporaryDirectory(prefix="block-cache-", dir=folder) as place:
                done = subprocess.run(
                    [sys.executable, __file__, "--worker", json.dumps([place, way, count])],
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                )
                found.append(json.loads(done.stdout))
    return {
        way: {key: round(statistics.median(e[key] for e in found), 3) for key in found[0]}
        for way, found in entries.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--total-mib", type=int, default=1024)
    parser.add_argument("--folder", help="on the disk in question; that of temporary files if none")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        place: Any = json.loads(args.worker)
        print(json.dumps(measure(*place)))
        return
    results = run(args.folder, args.rounds, args.total_mib * MIB // BLOCK_BYTES)
    if args.json:
        print(json.dumps(results, indent=2))
        return
    for way, figures in results.items():
        print(f"{way:20} " + "  ".join(f"{k} {v:g}" for k, v in figures.items()))


if __name__ == "__main__":
    main()

"""What reading costs: CPU seconds of the client per GB and per request, by reader; and prefetch.

Prefetch is set against the same blocks read by the same reader and nothing else, its start told
apart. With ``--stalls`` a proxy adds 100 ms to every answer, and 5 s to one in a hundred.

    python benchmarks/storage.py [--rounds 5] [--total-mib 1024] [--json]

SeaweedFS and nginx (Debian package ``nginx-light``) run on loopback and share the cores with the
client, so only the client's CPU time is its own, and only ratios within one run mean anything.
Every figure is the median of fresh processes, with the readers taking turns.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import mmap
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from storage_backends import open_store
from streamloader import DatasetWriter
from streamloader.fetch import Catalog
from streamloader.fetch.offline import PrefetchOptions, prefetch_offline

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "tests/support"))

MIB = 2**20
OBJECTS, OBJECT_BYTES = 8, 64 * MIB
DATA_SET_RECORDS, EPOCHS = 10_000, 4
LATENCY_MS, STALLED_SHARE = 100, 0.01
#: Reads at once of the blocks alone, and the buffers of each: together what a prefetch holds.
AT_ONCE, HELD = 32, 12
FIGURES = (
    "mb_per_s",
    "cpu_s_per_gb",
    "first_block_s",
    "first_batch_s",
    "with_start_mb_per_s",
    "with_start_cpu_s_per_gb",
)
SMALL_BYTES, SMALL_REQUESTS, SMALL_AT_ONCE = 100_000, 3_000, 32


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def read_ranges(
    url: str,
    options: dict[str, Any],
    ranges: list[tuple[str, int, int]],
    at_once: int,
    *,
    held: int = 1,
) -> dict[str, float]:
    """Reads (key, offset, bytes) by some tasks, each into ``held`` buffers that it uses in turn."""
    waiting = iter(ranges)
    largest = max(nbytes for _, _, nbytes in ranges)
    async with open_store(url, **options) as store:
        warm = np.zeros(4096, np.uint8)
        await store.read_into(ranges[0][0], 0, warm)

        async def work(buffers: Iterator[npt.NDArray[np.uint8]]) -> None:
            for key, offset, nbytes in waiting:
                await store.read_into(key, offset, next(buffers)[:nbytes])

        own = [[warm_buffer(largest) for _ in range(held)] for _ in range(at_once)]
        started, cpu = time.perf_counter(), cpu_s()
        await asyncio.gather(*(work(itertools.cycle(buffers)) for buffers in own))
        seconds, cpu = time.perf_counter() - started, cpu_s() - cpu
    total = sum(nbytes for _, _, nbytes in ranges)
    return {
        "cpu_s_per_gb": cpu / total * 1e9,
        "us_per_request": cpu / len(ranges) * 1e6,
        "mb_per_s": total / 1e6 / seconds,
        "requests_per_s": len(ranges) / seconds,
    }


def warm_buffer(nbytes: int) -> npt.NDArray[np.uint8]:
    """Memory like the loader's: used before, and aligned.

    Fresh pages would cost more than the reading. And large allocations of the C library begin 16
    bytes into a page, where some AMD processors copy two to three times slower.
    """
    buffer = np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)
    buffer[:] = 1
    return buffer


def large_ranges(total: int, nbytes: int) -> list[tuple[str, int, int]]:
    places = [
        (f"{number}", offset, nbytes)
        for offset in range(0, OBJECT_BYTES, nbytes)
        for number in range(OBJECTS)
    ]
    return (places * (total // (OBJECTS * OBJECT_BYTES) + 1))[: total // nbytes]


def small_ranges() -> list[tuple[str, int, int]]:
    random = np.random.default_rng(0)
    offsets = random.integers(0, OBJECT_BYTES - SMALL_BYTES, SMALL_REQUESTS)
    return [(f"{i % OBJECTS}", int(at), SMALL_BYTES) for i, at in enumerate(offsets)]


async def block_ranges(url: str, options: dict[str, Any]) -> list[tuple[str, int, int]]:
    """Every block of a data set, in an order as random as that of an epoch."""
    async with open_store(url, **options) as store:
        catalog = await Catalog.open(store)
        blocks = catalog.blocks
        names = catalog.manifest.table.names
        order = np.random.default_rng(0).permutation(blocks.num_blocks).tolist()
        return [
            (names[shard], offset, nbytes)
            for block in order
            for shard, offset, nbytes in blocks.block_span_bytes(block)
        ]


def prefetch(url: str, options: dict[str, Any], *, verify: bool) -> dict[str, float]:
    """Shuffled epochs through the prefetch path, from its first import on."""
    cpu = cpu_s()
    wanted = PrefetchOptions(verify=verify, epochs=EPOCHS)
    arrivals: list[tuple[int, float, float]] = []

    def note(done: int, total: int) -> None:
        del total
        arrivals.append((done, time.perf_counter(), cpu_s()))

    report = prefetch_offline(url, wanted, storage_options=options, progress=note)
    (first, began, cpu_began), (last, ended, cpu_ended) = arrivals[0], arrivals[-1]
    share = (last - first) / last
    waits = np.diff([at for _, at, _ in arrivals])
    return {
        "mb_per_s": report.bytes * share / 1e6 / (ended - began),
        "cpu_s_per_gb": (cpu_ended - cpu_began) / (report.bytes * share) * 1e9,
        "first_block_s": report.first_block_s,
        "first_batch_s": report.first_batch_s,
        "with_start_mb_per_s": report.bytes / 1e6 / report.seconds,
        "with_start_cpu_s_per_gb": (cpu_s() - cpu) / report.bytes * 1e9,
        "longest_wait_s": float(waits.max()),
        "median_wait_s": float(np.median(waits)),
        "p95_read_s": report.latency.p95 / 1e3,
        "longest_read_s": report.latency.max / 1e3,
    }


def read_blocks(url: str, options: dict[str, Any], *, held: int) -> dict[str, float]:
    """The same blocks by concurrent ranged reads and nothing else."""
    ranges = asyncio.run(block_ranges(url, options))
    return asyncio.run(read_ranges(url, options, ranges * EPOCHS, AT_ONCE, held=held))


def worker(task: dict[str, Any]) -> None:
    """One measurement, in a process of its own."""
    if task.get("what") == "prefetch":
        print(json.dumps(prefetch(task["url"], task["options"], verify=task["verify"])))
        return
    if task.get("what") == "blocks":
        print(json.dumps(read_blocks(task["url"], task["options"], held=task["held"])))
        return
    if task["small"]:
        ranges, at_once = small_ranges(), SMALL_AT_ONCE
    else:
        ranges, at_once = large_ranges(task["total"], task["range"]), task["at_once"]
    work = read_ranges(task["url"], task["options"], ranges, at_once)
    if task["uvloop"]:
        import uvloop

        print(json.dumps(uvloop.run(work)))
    else:
        print(json.dumps(asyncio.run(work)))


def measure(task: dict[str, Any], environment: dict[str, str]) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, __file__, "--worker", json.dumps(task)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{task}: {done.stderr}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def compare(
    name: str,
    place: dict[str, Any],
    args: argparse.Namespace,
    environment: dict[str, str],
) -> dict[str, Any]:
    """Every reader at one server, taking turns."""
    results: dict[str, Any] = {}
    cells = [(small, reader) for small in (False, True) for reader in args.readers]
    rounds: dict[tuple[bool, str], list[dict[str, float]]] = {cell: [] for cell in cells}
    for _ in range(args.rounds):
        for small, reader in cells:
            engine, _, loop = reader.partition("+")
            task = {
                "url": place["url"],
                "options": {**place["options"], "reader": engine},
                "small": small,
                "uvloop": loop == "uvloop",
                "total": args.total_mib * MIB,
                "range": args.range_mib * MIB,
                "at_once": args.at_once,
            }
            rounds[small, reader].append(measure(task, environment))
    for (small, reader), found in rounds.items():
        unit = "us_per_request" if small else "cpu_s_per_gb"
        speed = "requests_per_s" if small else "mb_per_s"
        costs = [entry[unit] for entry in found]
        results[f"{name} {'100 KB' if small else f'{args.range_mib} MiB'} {reader}"] = {
            unit: round(statistics.median(costs), 3),
            "least": round(min(costs), 3),
            "most": round(max(costs), 3),
            speed: round(statistics.median(entry[speed] for entry in found), 1),
        }
    return results


def compare_prefetch(name: str, place: dict[str, Any], rounds: int) -> dict[str, Any]:
    """What the prefetch path gives of what the same reader gives, taking turns."""
    tasks = {
        "blocks": {"what": "blocks", "held": 1},
        "blocks, kept": {"what": "blocks", "held": HELD},
        "prefetch": {"what": "prefetch", "verify": False},
        "prefetch, verified": {"what": "prefetch", "verify": True},
    }
    found: dict[str, list[dict[str, float]]] = {task: [] for task in tasks}
    for _ in range(rounds):
        for label, task in tasks.items():
            found[label].append(measure({**place, **task}, {}))
    results = {}
    for label, entries in found.items():
        figures = {
            key: round(statistics.median(entry[key] for entry in entries), 3)
            for key in FIGURES
            if key in entries[0]
        }
        raw = [entry["mb_per_s"] for entry in found["blocks"]]
        shares = [entry["mb_per_s"] / beside for entry, beside in zip(entries, raw, strict=True)]
        results[f"{name} {label}"] = {**figures, "of_raw": round(statistics.median(shares), 3)}
    return results


def compare_stalls(upstream: str, rounds: int) -> dict[str, Any]:
    """What is left of the speed, and how long a batch waits, where some answers stall."""
    found: dict[float, list[dict[str, float]]] = {0.0: [], STALLED_SHARE: []}
    for _ in range(rounds):
        for share, entries in found.items():
            entries.append(measure_through_proxy(upstream, share))
    without, stalled = found[0.0], found[STALLED_SHARE]
    ratios = [b["mb_per_s"] / a["mb_per_s"] for a, b in zip(without, stalled, strict=True)]

    def longest(entries: list[dict[str, float]]) -> float:
        return round(max(e["longest_wait_s"] - e["median_wait_s"] for e in entries), 3)

    return {
        f"{LATENCY_MS} ms, {STALLED_SHARE:.0%} stalled for 5 s": {
            "of_speed": round(statistics.median(ratios), 3),
            "longest_wait_beyond_median_s": longest(stalled),
            "the_same_without_stalls_s": longest(without),
            "longest_read_s": round(max(e["longest_read_s"] for e in stalled), 3),
            # An answer is asked for again after one and a half times what 95 in 100 take.
            "twice_the_delay_s": round(3 * statistics.median(e["p95_read_s"] for e in without), 3),
        }
    }


def measure_through_proxy(upstream: str, share: float) -> dict[str, float]:
    """Prefetch with ``LATENCY_MS`` for each answer, and 5 s for a share of them."""
    module = "tests.storage_backends.run_fault_proxy"
    options = ("--latency-ms", str(LATENCY_MS), "--share", str(share), "--faults", "slow")
    proxy = subprocess.Popen(
        [sys.executable, "-m", module, upstream, *options],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert proxy.stdout is not None
        url = f"{proxy.stdout.readline().split(' ')[0]}/set"
        return measure({"what": "prefetch", "verify": False, "url": url, "options": {}}, {})
    finally:
        proxy.send_signal(signal.SIGINT)
        proxy.communicate()


def write_data_set(url: str, options: dict[str, Any]) -> None:
    """Records of 100 KB, as photographs have."""
    random = np.random.default_rng(0)
    with DatasetWriter(url, {"image": "bytes"}, storage_options=options) as writer:
        for _ in range(DATA_SET_RECORDS):
            writer.write({"image": random.integers(0, 256, SMALL_BYTES, dtype=np.uint8)})


async def fill(url: str, options: dict[str, Any]) -> None:
    random = np.random.default_rng(0)
    async with open_store(url, **options) as store:
        for number in range(OBJECTS):
            async with store.open_writer(f"{number}") as writer:
                await writer.write(random.integers(0, 256, OBJECT_BYTES, dtype=np.uint8))


def run(args: argparse.Namespace) -> dict[str, Any]:
    from nginx_server import NginxServer

    from streamloader.cli.s3_server import SeaweedServer

    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="storage-benchmark-") as folder:
        root = Path(folder)
        asyncio.run(fill(str(root / "bench"), {}))
        with NginxServer(root) as nginx:
            plain = {
                "url": "s3://bench",
                "options": {"endpoint_url": nginx.url, "anonymous": True, "region": "us-east-1"},
            }
            results |= compare("nginx", plain, args, {})
            write_data_set(str(root / "set"), {})
            served = {"url": f"{nginx.url}/set", "options": {}}
            results |= compare_prefetch("nginx", served, args.rounds)
            if args.stalls:
                results |= compare_stalls(nginx.url, args.rounds)
            secured = {
                "url": "s3://bench",
                "options": {**plain["options"], "endpoint_url": nginx.tls_url},
            }
            trusted = {"AWS_CA_BUNDLE": str(nginx.certificate)}
            results |= compare("nginx TLS", secured, args, trusted)
    if args.seaweed:
        with SeaweedServer() as server:
            server.create_bucket("bench")
            place = {"url": "s3://bench", "options": server.storage_options}
            asyncio.run(fill(place["url"], place["options"]))
            results |= compare("SeaweedFS", place, args, {})
            server.create_bucket("photographs")
            place = {"url": "s3://photographs/set", "options": server.storage_options}
            write_data_set(place["url"], place["options"])
            results |= compare_prefetch("SeaweedFS", place, args.rounds)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--total-mib", type=int, default=1024)
    parser.add_argument("--range-mib", type=int, default=8)
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--readers", nargs="*", default=["native", "aiobotocore"])
    parser.add_argument("--no-seaweed", dest="seaweed", action="store_false")
    parser.add_argument("--stalls", action="store_true", help="and a network with bad answers")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(json.loads(args.worker))
        return
    results = run(args)
    if args.json:
        print(json.dumps(results, indent=2))
        return
    for name, figures in results.items():
        print(f"{name:40} " + "  ".join(f"{k} {v}" for k, v in figures.items()))


if __name__ == "__main__":
    main()

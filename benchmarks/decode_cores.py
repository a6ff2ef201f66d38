"""The native decoder in threads of one process against as many processes, and the whole loader.

    python benchmarks/decode_cores.py PICTURES [--workers 16] [--rounds 5] [--seconds 3] [--set URL]
        [--json]

What a machine can do is what independent processes reach; threads lose to it by the interpreter
lock, and the loader by everything around the decoder. Rounds are interleaved.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import platform
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

import numpy as np

from streamloader import RandomResizedCrop, StreamLoader
from streamloader.convert import convert
from streamloader.decode import Share, open_decoder

SHARE, SIZE = 16, 224
#: Batches that a loader may have made while nobody took them; they are not counted.
MADE_AHEAD = 8
TRANSFORM = RandomResizedCrop(SIZE, flip=0.5)


class Work:
    """Pictures in memory, decoded share by share into one batch, as a worker of a pool does."""

    def __init__(self, pictures: list[bytes]) -> None:
        self.lengths = np.array([len(data) for data in pictures], np.int64)
        self.offsets = np.concatenate([[0], np.cumsum(self.lengths)[:-1]])
        self.data = np.frombuffer(b"".join(pictures), np.uint8)
        self.decoder = open_decoder(TRANSFORM)

    def run(self, seconds: float, first: int) -> int:
        """Decodes for so long; returns how many pictures."""
        out = np.empty((SHARE, SIZE, SIZE, 3), np.uint8)
        rows = np.arange(SHARE, dtype=np.int64)
        done, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            numbers = (first + done + rows) % len(self.lengths)
            share = Share(
                data=self.data,
                offsets=self.offsets[numbers],
                lengths=self.lengths[numbers],
                samples=numbers,
                rows=rows,
                out=out,
                seed=0,
                epoch=done,
            )
            assert not self.decoder.decode(share)
            done += SHARE
        return done


def in_threads(work: Work, workers: int, seconds: float) -> float:
    """Pictures per second of ``workers`` threads."""
    counts = [0] * workers

    def run(number: int) -> None:
        counts[number] = work.run(seconds, number * 37)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(workers)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - started)


def _process(
    pictures: list[bytes], seconds: float, first: int, gate: threading.Barrier, total: Synchronized
) -> None:
    work = Work(pictures)
    work.run(0.1, first)
    gate.wait()
    count = work.run(seconds, first)
    with total.get_lock():
        total.value += count


def in_processes(pictures: list[bytes], workers: int, seconds: float) -> float:
    """Pictures per second of ``workers`` independent processes, after each has warmed up."""
    context = multiprocessing.get_context("spawn")
    gate, total = context.Barrier(workers + 1), context.Value("q", 0)
    processes = [
        context.Process(target=_process, args=(pictures, seconds, n * 37, gate, total))
        for n in range(workers)
    ]
    for process in processes:
        process.start()
    gate.wait()
    started = time.perf_counter()
    for process in processes:
        process.join()
    return total.value / (time.perf_counter() - started)


def in_loader(url: str, workers: int) -> Callable[[float], float]:
    """Pictures per second of a loader in batches of 256, epoch after epoch."""
    loader = StreamLoader(
        url, batch_size=256, transform=TRANSFORM, shuffle=True, device="cpu", num_workers=workers
    )
    batches = (batch for _ in itertools.count() for batch in loader)

    def run(seconds: float) -> float:
        for _ in range(MADE_AHEAD):
            next(batches)
        started, samples = time.perf_counter(), 0
        while time.perf_counter() < started + seconds:
            samples += int(next(batches)["valid"].sum())
        return samples / (time.perf_counter() - started)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pictures", type=Path)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--set", help="a data set of such pictures; made of PICTURES if left out")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    paths = sorted(arguments.pictures.rglob("*.jpg"))[:400]
    pictures = [path.read_bytes() for path in paths]
    work, workers = Work(pictures), arguments.workers
    rates: dict[str, list[float]] = {"one thread": [], "threads": [], "processes": [], "loader": []}
    with tempfile.TemporaryDirectory() as folder:
        url = arguments.set or f"{folder}/set"
        if arguments.set is None:
            convert(str(arguments.pictures), url)
        loader = in_loader(url, workers)
        for _ in range(arguments.rounds):
            rates["one thread"].append(in_threads(work, 1, arguments.seconds))
            rates["threads"].append(in_threads(work, workers, arguments.seconds))
            rates["processes"].append(in_processes(pictures, workers, arguments.seconds))
            rates["loader"].append(loader(arguments.seconds))
    figures = {name: statistics.median(values) for name, values in rates.items()}
    figures["threads / processes"] = statistics.median(
        t / p for t, p in zip(rates["threads"], rates["processes"], strict=True)
    )
    figures["loader / threads"] = statistics.median(
        a / t for a, t in zip(rates["loader"], rates["threads"], strict=True)
    )
    if arguments.json:
        print(
            json.dumps(
                {"cpu": platform.processor(), "workers": workers, "decoder": work.decoder.name}
                | figures
            )
        )
        return
    for name, figure in figures.items():
        print(f"{name:24} {figure:10,.2f}")


if __name__ == "__main__":
    main()

"""Runs loaders for a long time, and fails if memory, threads, open files or connections grow.

    python benchmarks/soak.py [--minutes 30] [--report-s 60] [--json]

Four loaders stay open in this process: a real S3 server on loopback and a local folder, each with
both feeds. In turn they give a whole epoch, or a part that is left early and often gone on with
from its state; every tenth turn makes one more loader, uses it a little and drops it. After each
turn the size of this process and of its feed processes, its threads, open files and sockets are
noted. The first fifth of the time is warm-up. A slope is a least-squares line over the rest, in MB
per 1,000 batches.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from streamloader import RandomResizedCrop, StreamLoader
from streamloader.cli.demo.pictures import make_pictures
from streamloader.cli.s3_server import SeaweedServer
from streamloader.convert import convert

NUM_PICTURES = 600
BATCH_SIZE = 8
TURNS_PER_DROPPED_LOADER = 10
WARM_UP = 0.2
LEAST_NOTES = 20

MAX_SLOPE_MB = 1.0
#: What threads and open files may differ by, and connections, which come and go while idle.
MAX_MORE = 2
MAX_MORE_CONNECTIONS = 8


@dataclass(frozen=True, slots=True)
class Note:
    """What was seen after one turn; sizes are resident memory."""

    elapsed_s: float
    batches: int
    feed_batches: int
    own_mb: float
    feeds_mb: float
    threads: int
    files: int
    connections: int


@dataclass(frozen=True, slots=True)
class Growth:
    """From the end of the warm-up to the end of the run."""

    batches: int
    own_mb_per_1k: float
    feeds_mb_per_1k: float
    own_mb: float
    feeds_mb: float
    more_threads: float
    more_files: float
    more_connections: float

    def complaints(self) -> list[str]:
        """What is not as it should be."""
        slopes = {"this process": self.own_mb_per_1k, "feed processes": self.feeds_mb_per_1k}
        found = [
            f"{name} grew by {slope:.2f} MB per 1,000 batches"
            for name, slope in slopes.items()
            if slope >= MAX_SLOPE_MB
        ]
        counts = {
            "threads": (self.more_threads, MAX_MORE),
            "open files": (self.more_files, MAX_MORE),
            "connections": (self.more_connections, MAX_MORE_CONNECTIONS),
        }
        return found + [
            f"there are {more:g} more {name} than in the beginning"
            for name, (more, most) in counts.items()
            if more > most
        ]


def growth(notes: list[Note]) -> Growth:
    """How the notes go, without the warm-up."""
    end = notes[-1].elapsed_s
    kept = [note for note in notes if note.elapsed_s >= WARM_UP * end]
    third = max(1, len(kept) // 3)

    def more(name: str) -> float:
        counts = [getattr(note, name) for note in kept]
        return statistics.median(counts[-third:]) - statistics.median(counts[:third])

    def slope(sizes: str, batches: str) -> float:
        x = np.array([getattr(note, batches) for note in kept], dtype=np.float64)
        y = np.array([getattr(note, sizes) for note in kept])
        return 1e3 * float(np.polyfit(x - x.mean(), y, 1)[0])

    return Growth(
        batches=kept[-1].batches - kept[0].batches,
        own_mb_per_1k=slope("own_mb", "batches"),
        feeds_mb_per_1k=slope("feeds_mb", "feed_batches"),
        own_mb=kept[-1].own_mb,
        feeds_mb=kept[-1].feeds_mb,
        more_threads=more("threads"),
        more_files=more("files"),
        more_connections=more("connections"),
    )


class Soak:
    """The loaders, and what was seen of them."""

    def __init__(self, places: dict[str, dict[str, Any]]) -> None:
        self._random = random.Random(0)
        self._places = places
        self._loaders = [self._open(url, feed) for url in places for feed in ("thread", "process")]
        self._batches = {"thread": 0, "process": 0}
        self._started = time.monotonic()
        self.notes: list[Note] = []

    def _open(self, url: str, feed: str) -> tuple[StreamLoader, str]:
        loader = StreamLoader(
            url,
            batch_size=BATCH_SIZE,
            transform=RandomResizedCrop(64, flip=0.5),
            shuffle=True,
            device="cpu",
            num_workers=2,
            feed=feed,
            **self._places[url],
        )
        return loader, feed

    def turns(self) -> Iterator[Note]:
        """Takes turns for ever."""
        for turn, (loader, feed) in enumerate(itertools.cycle(self._loaders)):
            self._take(loader, feed, self._random.choice([None, self._random.randrange(1, 30)]))
            if turn % TURNS_PER_DROPPED_LOADER == 0:
                self._use_and_drop()
            self.notes.append(self._note())
            yield self.notes[-1]

    def _take(self, loader: StreamLoader, feed: str, most: int | None) -> None:
        """An epoch, or its first batches; half of those epochs go on from their state next time."""
        for step, batch in enumerate(loader, 1):
            assert int(batch["image"].sum()) > 0, "a batch came without pixels"
            self._batches[feed] += 1
            if step == most:
                if self._random.random() < 0.5:
                    loader.load_state_dict(batch.state)
                return

    def _use_and_drop(self) -> None:
        """A loader whose iterator is half used, and that nobody closes."""
        url = self._random.choice(list(self._places))
        loader, feed = self._open(url, self._random.choice(["thread", "process"]))
        self._take(loader, feed, 3)

    def _note(self) -> Note:
        gc.collect()
        files, connections = _descriptors()
        return Note(
            elapsed_s=time.monotonic() - self._started,
            batches=sum(self._batches.values()),
            feed_batches=self._batches["process"],
            own_mb=_resident_mb("self"),
            feeds_mb=sum(_resident_mb(pid) for pid in _feed_processes()),
            threads=threading.active_count(),
            files=files,
            connections=connections,
        )

    def close(self) -> None:
        for loader, _ in self._loaders:
            loader.close()


def _resident_mb(process: str) -> float:
    for line in Path("/proc", process, "status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0  # it has ended and waits to be reaped


def _descriptors() -> tuple[int, int]:
    """How many open files there are, pipes and the like among them, and how many sockets."""
    files = sockets = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:
            continue  # it was that of the listing, or has been closed since
        if target.startswith("socket:"):
            sockets += 1
        else:
            files += 1
    return files, sockets


def _feed_processes() -> list[str]:
    children: list[str] = []
    for thread in Path("/proc/self/task").iterdir():
        children += (thread / "children").read_text().split()
    return [
        pid
        for pid in children
        if b"streamloader._feed_child" in Path("/proc", pid, "cmdline").read_bytes()
    ]


def run(minutes: float, report_s: float, quiet: bool) -> list[Note]:
    """Soaks for that long; returns the notes."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-")))
        make_pictures(folder / "pictures", NUM_PICTURES)
        convert(str(folder / "pictures"), str(folder / "set"), shard_bytes="2mib")
        server = stack.enter_context(SeaweedServer())
        server.create_bucket("soak")
        bucket = {"storage_options": server.storage_options}
        convert(str(folder / "pictures"), "s3://soak/set", shard_bytes="2mib", **bucket)
        soak = Soak({str(folder / "set"): {}, "s3://soak/set": bucket})
        stack.callback(soak.close)
        next_report = 0.0
        for note in soak.turns():
            ended = note.elapsed_s >= 60 * minutes and len(soak.notes) >= LEAST_NOTES
            if not quiet and (ended or note.elapsed_s >= next_report):
                next_report = note.elapsed_s + report_s
                print(
                    f"{note.elapsed_s:6.0f} s {note.batches:8d} batches, {note.own_mb:6.1f} MB"
                    f" + {note.feeds_mb:6.1f} MB of feed processes, {note.threads} threads,"
                    f" {note.files} open files, {note.connections} connections",
                    flush=True,
                )
            if ended:
                return soak.notes
    raise AssertionError("turns never end")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--report-s", type=float, default=60.0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    grown = growth(run(arguments.minutes, arguments.report_s, arguments.json))
    if arguments.json:
        print(json.dumps(asdict(grown)))
    else:
        print(
            f"{grown.batches} batches after the warm-up: {grown.own_mb_per_1k:+.3f} MB per 1,000,"
            f" feed processes {grown.feeds_mb_per_1k:+.3f}; threads {grown.more_threads:+g},"
            f" open files {grown.more_files:+g}, connections {grown.more_connections:+g}"
        )
    complaints = grown.complaints()
    if complaints:
        sys.exit(f"soak: {'; '.join(complaints)}")


if __name__ == "__main__":
    main()

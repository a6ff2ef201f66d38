"""How much longer than a step it takes from the last batch of an epoch to the first of the next.

    python benchmarks/epoch_gap.py [--epochs 8] [--feed thread] [--json]

A small convolutional network takes a step on each batch, in one thread on the CPU. An interval is
the time from one batch to the next, so it holds one step and the wait for the batch. Data are
painted pictures, from a local folder and from a real S3 server on loopback; each loader gives all
its epochs before the other begins, and the first change of epochs is not counted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from streamloader import RandomResizedCrop, StreamLoader
from streamloader.cli.demo.pictures import make_pictures
from streamloader.cli.s3_server import SeaweedServer
from streamloader.convert import convert

NUM_PICTURES, BATCH_SIZE, SIZE = 640, 32, 96
MAX_RATIO = 2.0


class Trainer:
    """A network whose step on the CPU takes about as long as decoding its batch."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(
            nn.Conv2d(3, 32, 3, stride=2),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(64, 8),
        )
        self.optimiser = torch.optim.SGD(self.net.parameters(), lr=0.01)

    def step(self, batch: Any) -> None:
        pixels = batch["image"].float() / 255
        losses = nn.functional.cross_entropy(self.net(pixels), batch["label"])
        self.optimiser.zero_grad()
        losses.backward()
        self.optimiser.step()


def intervals(loader: StreamLoader, epochs: int) -> tuple[list[float], list[float]]:
    """Seconds from batch to batch: within epochs, and from one to the next."""
    trainer, within, across = Trainer(), [], []
    before = time.perf_counter()
    for epoch in range(epochs + 1):
        for step, batch in enumerate(loader):
            now = time.perf_counter()
            if epoch:
                (within if step else across).append(now - before)
            before = now
            trainer.step(batch)
    return within, across[1:]


@contextmanager
def places() -> Iterator[dict[str, tuple[str, dict[str, Any]]]]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="epoch-gap-")))
        pictures = str(folder / "pictures")
        make_pictures(Path(pictures), NUM_PICTURES)
        server = stack.enter_context(SeaweedServer())
        server.create_bucket("gap")
        options = {"storage_options": server.storage_options}
        convert(pictures, str(folder / "set"), shard_bytes="2mib")
        convert(pictures, "s3://gap/set", shard_bytes="2mib", **options)
        yield {"local": (str(folder / "set"), {}), "S3 on loopback": ("s3://gap/set", options)}


def measure(epochs: int, feed: str) -> dict[str, dict[str, float]]:
    results = {}
    with places() as found:
        for name, (url, options) in found.items():
            with StreamLoader(
                url,
                batch_size=BATCH_SIZE,
                transform=RandomResizedCrop(SIZE, flip=0.5),
                shuffle=True,
                device="cpu",
                feed=feed,
                **options,
            ) as loader:
                within, across = intervals(loader, epochs)
            step = statistics.median(within)
            results[name] = {
                "step_ms": 1e3 * step,
                "gap_in_steps": statistics.median(across) / step,
                "longest_gap_in_steps": max(across) / step,
                "longest_step_in_steps": max(within) / step,
            }
    return results


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--feed", choices=["thread", "process"], default="thread")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = measure(arguments.epochs, arguments.feed)
    if arguments.json:
        print(json.dumps(results))
    else:
        for name, figures in results.items():
            print(
                f"{name:16} median step {figures['step_ms']:.1f} ms; from the last batch of an"
                f" epoch to the first of the next {figures['gap_in_steps']:.2f} steps, at most"
                f" {figures['longest_gap_in_steps']:.2f} (in mid-epoch at most"
                f" {figures['longest_step_in_steps']:.2f})"
            )
    slow = [name for name, figures in results.items() if figures["gap_in_steps"] >= MAX_RATIO]
    if slow:
        sys.exit(f"epoch_gap: the gap is {MAX_RATIO:g} median steps or more: {', '.join(slow)}")


if __name__ == "__main__":
    main()

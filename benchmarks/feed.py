"""What the loader takes from a Python-heavy training loop, in threads and in a process of its own.

    python benchmarks/feed.py DATASET [--rounds 5] [--seconds 4] [--workers 1] [--json]

The loop trains a small network op by op on the CPU in one thread, so it needs the interpreter lock
nearly all the time, as eager training on a GPU does. It takes a batch of pictures a step; choose
--batch-size so that decoding does not need all the cores. Rounds are interleaved; each figure is
the median of step times, and the ratio is to the same loop on one batch over and over.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack

import torch

from streamloader import RandomResizedCrop, StreamLoader

SIZE = 224
#: Batches that a loader may have made while another side ran.
MADE_AHEAD = 8


class Trainer:
    """Many small layers, each a few Python calls, and an optimiser that loops over parameters."""

    def __init__(self, depth: int) -> None:
        torch.manual_seed(0)
        self.layers = [torch.nn.Linear(64, 64) for _ in range(depth)]
        parameters = [p for layer in self.layers for p in layer.parameters()]
        self.optimiser = torch.optim.SGD(parameters, lr=1e-4, foreach=False)

    def step(self, pictures: torch.Tensor) -> None:
        hidden = pictures[:, 0, :8, :8].reshape(len(pictures), 64).float() / 255
        for layer in self.layers:
            hidden = torch.relu(layer(hidden))
        loss = hidden.square().mean()
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()


def step_s(trainer: Trainer, batches: Iterator[torch.Tensor], seconds: float) -> float:
    """Median time of a step, with the wait for its batch."""
    for _ in range(MADE_AHEAD):
        trainer.step(next(batches))
    times, end = [], time.perf_counter() + seconds
    while (started := time.perf_counter()) < end:
        trainer.step(next(batches))
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def pictures_of(loader: StreamLoader) -> Iterator[torch.Tensor]:
    return (batch["image"] for _ in itertools.count() for batch in loader)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--depth", type=int, default=120)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    trainer = Trainer(arguments.depth)
    with ExitStack() as stack:
        sides: dict[str, Iterator[torch.Tensor]] = {}
        for feed in ("thread", "process"):
            loader = StreamLoader(
                arguments.dataset,
                batch_size=arguments.batch_size,
                transform=RandomResizedCrop(SIZE, flip=0.5),
                shuffle=True,
                device="cpu",
                num_workers=arguments.workers,
                feed=feed,
            )
            sides[feed] = pictures_of(stack.enter_context(loader))
        one = next(sides["thread"]).clone()
        sides = {"same batch": itertools.repeat(one), **sides}
        times: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(arguments.rounds):
            for name, batches in sides.items():
                times[name].append(step_s(trainer, batches, arguments.seconds))
    ratios = {
        name: statistics.median(b / t for b, t in zip(times["same batch"], values, strict=True))
        for name, values in times.items()
    }
    result = {
        "step_ms": {name: 1e3 * statistics.median(values) for name, values in times.items()},
        "of same batch": ratios,
    }
    print(json.dumps(result, indent=None if arguments.json else 1))


if __name__ == "__main__":
    main()

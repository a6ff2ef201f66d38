"""Batches on several GPUs of one machine: by one process, by one process a GPU, and on one GPU.

    python benchmarks/gpu_devices.py PICTURES [--gpus 2] [--json FILE]

PICTURES as of ``benchmarks/gpu_training.py``. Nobody trains: batches are taken as fast as they
come. Every GPU has ``--workers`` decode threads in each setting. The processes of ``torchrun``
begin together, and their rates are added.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from gpu_training import BATCH_SIZE, MEAN, SIZE, STD, write_sets

from streamloader import RandomResizedCrop, StreamLoader

WARM_UP_STEPS = 20
COMPARED_STEPS = 40
SIDES = "cpu/thread,cpu/process,cuda/thread,cuda/process"


def open_loader(url: str, side: str, workers: int, **devices: Any) -> StreamLoader:
    decode_device, feed = side.split("/")
    return StreamLoader(
        url,
        batch_size=BATCH_SIZE,
        transform=RandomResizedCrop(SIZE, flip=0.5),
        shuffle=True,
        output="bfloat16",
        mean=MEAN,
        std=STD,
        num_workers=workers,
        memory_limit="4gib",
        last_batch="drop",
        decode_device=decode_device,
        feed=feed,
        **devices,
    )


def steps_of(loader: StreamLoader) -> Iterator[tuple[Any, ...]]:
    """A tuple of batches a step, epoch after epoch."""
    while True:
        for step in loader:
            yield step if isinstance(step, tuple) else (step,)


def rate(loader: StreamLoader, steps: int) -> float:
    """Pictures per second; each batch is looked at on its GPU."""
    fed = steps_of(loader)
    seen: dict[torch.device, torch.Tensor] = {}
    for number, step in zip(range(WARM_UP_STEPS + steps), fed, strict=False):
        if number == WARM_UP_STEPS:
            _synchronize(seen)
            together()
            begun = time.perf_counter()
        for batch in step:
            image = batch["image"]
            total = seen.setdefault(image.device, torch.zeros((), device=image.device))
            total += image[0, 0, 0, 0]
    _synchronize(seen)
    return steps * len(step) * BATCH_SIZE / (time.perf_counter() - begun)


def _synchronize(devices: Any) -> None:
    for device in devices:
        torch.cuda.synchronize(device)


def together() -> None:
    """Waits for the other processes of torchrun."""
    if torch.distributed.is_initialized():
        torch.distributed.barrier()


def order(url: str, workers: int, **devices: Any) -> list[list[list[int]]]:
    """Sample numbers by step and device, of the first steps of an epoch."""
    with open_loader(url, "cpu/thread", workers, **devices) as loader:
        count = min(COMPARED_STEPS, len(loader))
        steps = itertools.islice(steps_of(loader), count)
        return [[batch["index"].tolist() for batch in step] for step in steps]


def as_rank(url: str, sides: list[str], workers: int, steps: int, out: Path) -> None:
    """One process of torchrun: its rates and its order go into a file."""
    torch.distributed.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    results: dict[str, Any] = {}
    for side in sides:
        with open_loader(url, side, workers) as loader:
            results[side] = rate(loader, steps)
        together()
    results["order"] = order(url, workers)
    (out / f"rank{rank}.json").write_text(json.dumps(results))
    torch.distributed.destroy_process_group()


def by_torchrun(url: str, arguments: argparse.Namespace, out: Path) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(arguments.gpus), __file__, str(arguments.pictures)]
    command += ["--as-rank", url, "--folder", str(out), "--gpus", str(arguments.gpus)]
    command += ["--workers", str(arguments.workers), "--steps", str(arguments.steps)]
    command += ["--sides", arguments.sides]
    subprocess.run(command, check=True)
    return [json.loads((out / f"rank{r}.json").read_text()) for r in range(arguments.gpus)]


def compare(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    url, _ = write_sets(arguments.pictures, arguments.samples, folder)
    gpus, workers = arguments.gpus, arguments.workers
    names = [f"cuda:{number}" for number in range(gpus)]
    results: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "cpus": os.cpu_count()}
    ranks = by_torchrun(url, arguments, folder)
    for side in arguments.sides.split(","):
        with open_loader(url, side, workers, device="cuda:0") as loader:
            one = rate(loader, arguments.steps)
        with open_loader(url, side, workers * gpus, devices=names) as loader:
            group = rate(loader, arguments.steps)
        apart = sum(rank[side] for rank in ranks)
        results[side] = {
            "one_gpu": one,
            "one_process": group / one,
            "torchrun": apart / one,
        }
        print(side, {key: round(value, 3) for key, value in results[side].items()}, flush=True)
    steps = order(url, workers * gpus, devices=names)
    apart_steps = [
        [step[0] for step in of_ranks]
        for of_ranks in zip(*(rank["order"] for rank in ranks), strict=True)
    ]
    numbers = [number for step in steps for batch in step for number in batch]
    results["same_order"] = steps == apart_steps
    results["disjoint"] = len(set(numbers)) == len(numbers)
    print({key: results[key] for key in ("same_order", "disjoint")}, flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pictures", type=Path)
    parser.add_argument("--gpus", type=int, default=torch.cuda.device_count())
    parser.add_argument("--samples", type=int, default=40_000)
    parser.add_argument("--workers", type=int, default=15, help="a GPU")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--sides", default=SIDES, help="what decodes, and the feed")
    parser.add_argument("--folder", type=Path, help="for the data set; by default a temporary one")
    parser.add_argument("--as-rank", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.as_rank:
        total = arguments.workers * arguments.gpus
        sides = arguments.sides.split(",")
        as_rank(arguments.as_rank, sides, total, arguments.steps, arguments.folder)
        return
    with tempfile.TemporaryDirectory() as temporary:
        results = compare(arguments, arguments.folder or Path(temporary))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()

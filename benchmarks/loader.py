"""The whole loader on the CPU against torch's DataLoader, on the same pictures.

    python benchmarks/loader.py PICTURES [--workers 2] [--rounds 5] [--seconds 3] [--s3] [--json]

PICTURES is a folder of class folders (``benchmarks/cut_photographs.py`` makes one). Both sides
decode, crop at random to 224, flip, and give uint8 batches of 64. Rounds are interleaved, so the
ratio holds on a machine whose speed drifts; the first round of each side is not counted, nor are
the batches of any round that may have been made before it began.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import platform
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from streamloader import RandomResizedCrop, StreamLoader
from streamloader.convert import convert

BATCH_SIZE, SIZE = 64, 224
#: Batches that a loader may have made while the other side ran.
MADE_AHEAD = 8
Batches = Iterator[int]


class Folder(torch.utils.data.Dataset):
    """Class folders of pictures, decoded with Pillow as torchvision's ImageFolder does."""

    def __init__(self, root: Path) -> None:
        classes = sorted(path.name for path in root.iterdir() if path.is_dir())
        self.samples = [
            (path, label)
            for label, name in enumerate(classes)
            for path in sorted((root / name).iterdir())
        ]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        path, label = self.samples[number]
        with Image.open(path) as image:
            picture = image.convert("RGB")
        picture = picture.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=_crop(picture))
        if random.random() < 0.5:
            picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return torch.from_numpy(np.asarray(picture).copy()).permute(2, 0, 1), label


def _crop(picture: Image.Image) -> tuple[float, float, float, float]:
    area = picture.width * picture.height
    for _ in range(10):
        part = area * random.uniform(0.08, 1.0)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        width, height = round(math.sqrt(part * ratio)), round(math.sqrt(part / ratio))
        if 0 < width <= picture.width and 0 < height <= picture.height:
            left = random.randint(0, picture.width - width)
            top = random.randint(0, picture.height - height)
            return left, top, left + width, top + height
    return 0, 0, picture.width, picture.height


@contextmanager
def dataloader_batches(root: Path, workers: int) -> Iterator[Batches]:
    loader = torch.utils.data.DataLoader(
        Folder(root), BATCH_SIZE, shuffle=True, num_workers=workers, persistent_workers=True
    )
    yield (len(labels) for _ in itertools.count() for _, labels in loader)


@contextmanager
def streamloader_batches(url: str, workers: int, **options: Any) -> Iterator[Batches]:
    transform = RandomResizedCrop(SIZE, flip=0.5)
    with StreamLoader(
        url,
        batch_size=BATCH_SIZE,
        transform=transform,
        shuffle=True,
        device="cpu",
        num_workers=workers,
        **options,
    ) as loader:
        yield (int(batch["valid"].sum()) for _ in itertools.count() for batch in loader)


def measure(sides: dict[str, Batches], rounds: int, seconds: float) -> dict[str, dict[str, float]]:
    """Pictures per second and CPU seconds per 1,000 pictures of each side, medians."""
    rates: dict[str, list[float]] = {name: [] for name in sides}
    cpus: dict[str, list[float]] = {name: [] for name in sides}
    for round_number in range(rounds + 1):
        for name, batches in sides.items():
            for _ in range(MADE_AHEAD):
                next(batches)
            started, cpu, samples = time.perf_counter(), _cpu_s(), 0
            while time.perf_counter() < started + seconds:
                samples += next(batches)
            elapsed, cpu = time.perf_counter() - started, _cpu_s() - cpu
            if round_number:
                rates[name].append(samples / elapsed)
                cpus[name].append(1e3 * cpu / samples)
    return {
        name: {
            "samples_per_s": statistics.median(rates[name]),
            "lowest": min(rates[name]),
            "highest": max(rates[name]),
            "cpu_s_per_1k": statistics.median(cpus[name]),
        }
        for name in sides
    }


def _cpu_s() -> float:
    """CPU seconds of this process and of child processes that have ended."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    return own.ru_utime + own.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pictures", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of a round of one side")
    parser.add_argument("--s3", action="store_true", help="also from a real S3 server on loopback")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        convert(str(arguments.pictures), str(folder / "set"))
        sides = {
            "torch DataLoader, worker processes": stack.enter_context(
                dataloader_batches(arguments.pictures, arguments.workers)
            ),
            "streamloader, local shards": stack.enter_context(
                streamloader_batches(str(folder / "set"), arguments.workers)
            ),
        }
        if arguments.s3:
            from streamloader.cli.s3_server import SeaweedServer

            server = stack.enter_context(SeaweedServer())
            server.create_bucket("benchmark")
            options = {"storage_options": server.storage_options}
            url = "s3://benchmark/set"
            convert(str(arguments.pictures), url, **options)
            sides["streamloader, S3 on loopback"] = stack.enter_context(
                streamloader_batches(url, arguments.workers, **options)
            )
        results = measure(sides, arguments.rounds, arguments.seconds)
    base = next(iter(results.values()))["samples_per_s"]
    if arguments.json:
        machine = {"cpu": platform.processor() or platform.machine(), "torch": torch.__version__}
        print(json.dumps({"machine": machine, "workers": arguments.workers, "results": results}))
        return
    for name, figures in results.items():
        print(
            f"{name:36} {figures['samples_per_s']:7.0f} pictures/s"
            f" ({figures['lowest']:.0f}-{figures['highest']:.0f}),"
            f" {figures['samples_per_s'] / base:.2f}x, of this process:"
            f" {figures['cpu_s_per_1k']:.2f} CPU s per 1,000"
        )


if __name__ == "__main__":
    main()

"""A training step fed from shards, beside the same step on tensors that lie on the GPU.

    python benchmarks/gpu_training.py PICTURES [--parts engine,loader,compiled] [--json FILE]

PICTURES is a folder of class folders with JPEGs (``benchmarks/cut_photographs.py`` makes one),
which are repeated into a data set of ``--samples``. Parts: ``engine`` is the rate of the GPU's JPEG
engines alone; ``loader`` batches on the GPU with nobody training; ``compiled`` and ``eager``
ResNet-50 in bfloat16, in rounds that take turns with synthetic ones.

A side is ``engines`` or ``cpu``, for what decodes, and further words: ``process`` or ``thread`` for
the feed, a number for ``gpu_decode_share``, ``s3`` to read from SeaweedFS on this machine, with no
cache; or ``dataloader``, torch's, which reads the same pictures with torchvision's transforms.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torchvision

from storage_backends import open_store
from streamloader import DatasetWriter, RandomResizedCrop, StreamLoader
from streamloader.cli.s3_server import SeaweedServer
from streamloader.decode.gpu import SLAB_BYTES, Nvjpeg
from streamloader.decode.gpu.nvjpeg import IMAGE_DTYPE
from streamloader.decode.gpu.route import slab_room
from streamloader.dts.pictures import read_picture_header

BATCH_SIZE, SIZE = 256, 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]


class Clock:
    """Wall time and CPU seconds of this process, its DataLoader workers left out."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), _cpu_s()

    def stop(self, samples: int) -> dict[str, float]:
        wall, cpu = time.perf_counter() - self._wall, _cpu_s() - self._cpu
        return {"samples_per_s": samples / wall, "cpu_s_per_1k": 1e3 * cpu / samples}


def _cpu_s() -> float:
    own = resource.getrusage(resource.RUSAGE_SELF)
    return own.ru_utime + own.ru_stime


def write_sets(pictures: Path, samples: int, folder: Path) -> tuple[str, Path]:
    """The pictures repeated: shards, and a tree of links for ImageFolder."""
    stored = sorted(pictures.glob("*/*.jpg"))
    contents = [path.read_bytes() for path in stored]
    classes = sorted({path.parent.name for path in stored})
    tree = folder / "tree"
    for name in classes:
        (tree / name).mkdir(parents=True)
    fields = {"image": "picture", "label": "int64"}
    with DatasetWriter(folder / "set", fields, classes=classes) as writer:
        for number in range(samples):
            path = stored[number % len(stored)]
            label = classes.index(path.parent.name)
            data = contents[number % len(stored)]
            writer.write({"image": data, "label": label}, key=str(number))
            (tree / path.parent.name / f"{number}.jpg").symlink_to(path.resolve())
    return str(folder / "set"), tree


class Place(NamedTuple):
    """Where a data set is, and the storage's options."""

    url: str
    options: dict[str, Any]


def bucket(stack: ExitStack, dataset: Path) -> Place:
    """A copy of the data set in a bucket of a SeaweedFS server that ``stack`` ends."""
    server = stack.enter_context(SeaweedServer())
    server.create_bucket("bench")

    files = sorted(dataset.iterdir())

    async def copy() -> None:
        async with open_store("s3://bench/set", **server.storage_options) as store:
            for path in files:
                await store.put(path.name, await asyncio.to_thread(path.read_bytes))

    asyncio.run(copy())
    return Place("s3://bench/set", server.storage_options)


def side_options(name: str, places: dict[str, Place]) -> tuple[Place, dict[str, Any]]:
    """Where a side reads, and its options of the loader."""
    decoder, *words = name.split("/")
    options: dict[str, Any] = {"decode_device": {"cpu": "cpu", "engines": "cuda"}[decoder]}
    place = places["local"]
    for word in words:
        if word in ("process", "thread"):
            options["feed"] = word
        elif word == "s3":
            place = places[word]
        else:
            options["gpu_decode_share"] = float(word)
    return place, options


def forever(loader: StreamLoader) -> Batches:
    while True:
        for batch in loader:
            yield batch["image"], batch["label"]


def dataloader(tree: Path, workers: int) -> Batches:
    """torch's DataLoader as its documentation shows it, normalised on the GPU."""
    transforms = torchvision.transforms
    steps = [
        transforms.RandomResizedCrop(SIZE),
        transforms.RandomHorizontalFlip(),
        transforms.PILToTensor(),
    ]
    loader = torch.utils.data.DataLoader(
        torchvision.datasets.ImageFolder(str(tree), transforms.Compose(steps)),
        BATCH_SIZE,
        shuffle=True,
        num_workers=workers,
        pin_memory=True,
        drop_last=True,
        persistent_workers=True,
    )
    mean = torch.tensor(MEAN, device="cuda").view(1, 3, 1, 1) * 255
    scale = 1 / (torch.tensor(STD, device="cuda").view(1, 3, 1, 1) * 255)
    while True:
        for images, labels in loader:
            there = images.cuda(non_blocking=True).to(memory_format=torch.channels_last)
            normal = ((there.float() - mean) * scale).bfloat16()
            yield normal, labels.cuda(non_blocking=True)


def engine_rate(pictures: Path, seconds: float, *, pipelined: bool) -> dict[str, float]:
    """The engines alone: batches in one call each, pinned bytes, outputs used again."""
    data = [path.read_bytes() for path in sorted(pictures.glob("*/*.jpg"))]
    data = list(itertools.islice(itertools.cycle(data), BATCH_SIZE))
    headers = [read_picture_header(one) for one in data]
    lengths = np.array([len(one) for one in data], np.uint64)
    pinned = torch.empty(int(lengths.sum()), dtype=torch.uint8, pin_memory=True)
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.uint64)
    for start, one in zip(starts.tolist(), data, strict=True):
        pinned.numpy()[start : start + len(one)] = np.frombuffer(one, np.uint8)
    widths = np.array([header.width for header in headers])
    heights = np.array([header.height for header in headers])
    room = slab_room(widths, heights)
    slab = torch.empty(max(SLAB_BYTES * 2, int(room.sum())), dtype=torch.uint8, device="cuda")
    images = np.zeros(len(data), IMAGE_DTYPE)
    images["channel"][:, 0] = slab.data_ptr() + np.cumsum(room) - room
    images["pitch"][:, 0] = widths * 3
    engine, stream = Nvjpeg(pipelined=pipelined), torch.cuda.Stream()
    addresses = starts + np.uint64(pinned.data_ptr())
    rates = {}
    for count in (64, 128, 250, BATCH_SIZE):
        for _ in range(3):
            engine.decode(addresses[:count], lengths[:count], images[:count], stream.cuda_stream)
            stream.synchronize()
        clock, calls, end = Clock(), 0, time.perf_counter() + seconds / 4
        while time.perf_counter() < end:
            engine.decode(addresses[:count], lengths[:count], images[:count], stream.cuda_stream)
            stream.synchronize()
            calls += 1
        rates[f"calls of {count}"] = clock.stop(calls * count)["samples_per_s"]
    clock, sizes = Clock(), (250, 251) * 20
    for count in sizes:
        engine.decode(addresses[:count], lengths[:count], images[:count], stream.cuda_stream)
        stream.synchronize()
    rates["calls whose size changes"] = clock.stop(sum(sizes))["samples_per_s"]
    rates["engines"] = engine.engines
    engine.close()
    return rates


def take(batches: Batches, count: int) -> dict[str, float]:
    """Batches as fast as they come, each looked at on the GPU so that its bytes must be there."""
    seen = torch.zeros((), device="cuda")
    clock = Clock()
    for images, _ in itertools.islice(batches, count):
        seen += images[0, 0, 0, 0]
    torch.cuda.synchronize()
    return clock.stop(count * BATCH_SIZE)


class Trainer:
    """ResNet-50 with SGD in bfloat16, compiled or eager."""

    def __init__(self, *, compiled: bool) -> None:
        model = torchvision.models.resnet50().cuda().to(memory_format=torch.channels_last)
        self._optimiser = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
        self._model = torch.compile(model) if compiled else model
        self._loss = torch.nn.CrossEntropyLoss()

    def round(self, batches: Batches, steps: int) -> dict[str, float]:
        torch.cuda.synchronize()
        clock = Clock()
        for images, labels in itertools.islice(batches, steps):
            self._optimiser.zero_grad(set_to_none=True)
            with torch.autocast("cuda", torch.bfloat16):
                loss = self._loss(self._model(images), labels)
            loss.backward()
            self._optimiser.step()
        torch.cuda.synchronize()
        return clock.stop(steps * BATCH_SIZE)


def synthetic() -> Batches:
    images = torch.randn(BATCH_SIZE, 3, SIZE, SIZE, device="cuda", dtype=torch.bfloat16)
    images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (BATCH_SIZE,), device="cuda")
    return itertools.repeat((images, labels))


def training(
    feeds: dict[str, Batches], *, compiled: bool, rounds: int, steps: int
) -> dict[str, dict[str, float]]:
    """Rates of each feed, and the median of its quotients to the synthetic round beside it."""
    trainer = Trainer(compiled=compiled)
    base = synthetic()
    trainer.round(base, 10)
    rates: dict[str, list[dict[str, float]]] = {name: [] for name in feeds}
    quotients: dict[str, list[float]] = {name: [] for name in feeds}
    bases = []
    for batches in feeds.values():
        trainer.round(batches, 4)
    for _ in range(rounds):
        before = trainer.round(base, steps)["samples_per_s"]
        for name, batches in feeds.items():
            # A few steps first: while others trained, this feed filled all it may hold.
            trainer.round(batches, 8)
            rates[name].append(trainer.round(batches, steps))
            after = trainer.round(base, steps)["samples_per_s"]
            quotients[name].append(rates[name][-1]["samples_per_s"] / ((before + after) / 2))
            bases += [before, after]
            before = after
    results = {"synthetic": {"samples_per_s": statistics.median(bases)}}
    for name in feeds:
        results[name] = {
            "samples_per_s": statistics.median(rate["samples_per_s"] for rate in rates[name]),
            "cpu_s_per_1k": statistics.median(rate["cpu_s_per_1k"] for rate in rates[name]),
            "of_synthetic": statistics.median(quotients[name]),
            "lowest": min(quotients[name]),
            "highest": max(quotients[name]),
        }
    return results


def show(part: str, results: Any) -> None:
    print(f"[{part}]")
    for name, value in results.items():
        figures = value if isinstance(value, dict) else {"": value}
        words = ", ".join(f"{key} {number:.4g}".strip() for key, number in figures.items())
        print(f"  {name}: {words}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pictures", type=Path)
    parser.add_argument("--samples", type=int, default=40_000)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument(
        "--sides", default="engines,engines/process,engines/0.5/process,cpu,cpu/process"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batches", type=int, default=100, help="of the loader alone")
    parser.add_argument("--parts", default="engine,loader,compiled,eager")
    parser.add_argument("--folder", type=Path, help="for the data sets; by default a temporary one")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    parts = arguments.parts.split(",")
    with ExitStack() as stack:
        folder = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        results: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "cpus": os.cpu_count()}
        run_parts(stack, arguments, parts, folder, results)
        if arguments.json is not None:
            arguments.json.write_text(json.dumps(results, indent=1))


def open_side(stack: ExitStack, name: str, places: dict[str, Place]) -> StreamLoader:
    """The loader of a side, which ``stack`` closes."""
    place, options = side_options(name, places)
    return stack.enter_context(
        StreamLoader(
            place.url,
            storage_options=place.options,
            batch_size=BATCH_SIZE,
            transform=RandomResizedCrop(SIZE, flip=0.5),
            shuffle=True,
            device="cuda",
            output="bfloat16",
            mean=MEAN,
            std=STD,
            memory_limit="4gib",
            last_batch="drop",
            **options,
        )
    )


def loaders_alone(feeds: dict[str, Batches], batches: int) -> dict[str, dict[str, float]]:
    """Rates of each feed with nobody training."""
    rates = {}
    for name, feed in feeds.items():
        few = name == "dataloader"
        # The first ones find everything empty, and the engines choose their way in them.
        take(feed, 10 if few else 200)
        rates[name] = take(feed, batches // (4 if few else 1))
        show("loader", {name: rates[name]})
    return rates


def run_parts(
    stack: ExitStack,
    arguments: argparse.Namespace,
    parts: list[str],
    folder: Path,
    results: dict[str, Any],
) -> None:
    if "engine" in parts:
        results["engine"] = {
            name: engine_rate(arguments.pictures, 2.0, pipelined=name == "pipelined")
            for name in ("as the loader calls it", "pipelined")
        }
        show("engine", results["engine"])
    url, tree = write_sets(arguments.pictures, arguments.samples, folder)
    sides = arguments.sides.split(",")
    places = {"local": Place(url, {})}
    if any("s3" in side.split("/") for side in sides):
        places["s3"] = bucket(stack, Path(url))
    loaders = {name: open_side(stack, name, places) for name in sides if name != "dataloader"}
    feeds = {
        name: forever(loaders[name]) if name in loaders else dataloader(tree, arguments.workers)
        for name in sides
    }
    if "loader" in parts:
        results["loader"] = loaders_alone(feeds, arguments.batches)
    for part in ("compiled", "eager"):
        if part in parts:
            results[part] = training(
                feeds,
                compiled=part == "compiled",
                rounds=arguments.rounds,
                steps=arguments.steps,
            )
            show(part, results[part])
    results["stats"] = {name: loader.stats() for name, loader in loaders.items()}


if __name__ == "__main__":
    main()

"""How fast the converter is beside its peers, how much memory it takes, and whether it survives.

    python benchmarks/convert.py rate PICTURES [--repeat 3] [--processes 2]
    python benchmarks/convert.py memory [--samples 200000]
    python benchmarks/convert.py kills PICTURES [--kills 20]

``rate`` needs litdata and mosaicml-streaming, ``kills`` the S3 server of the demo extra. Every
contender writes the same files as bytes with a label, with the same number of processes (threads
for streamloader), once without decoding and once with every picture decoded before it is written;
the rounds of the contenders alternate, since machines are shared. Undecoded, each is also timed the
other way round: streamloader leaving to the system what reaches the disk, as the peers do, and the
peers with every file that they made forced to it at the end, as streamloader does.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

Item = tuple[str, int]
SHARD_BYTES = 64 << 20


def listed(root: Path) -> list[Item]:
    """Files of class folders with their labels, in an order that is not that of the disk."""
    classes = sorted(path.name for path in root.iterdir() if path.is_dir())
    items = [
        (str(path), label)
        for label, name in enumerate(classes)
        for path in sorted((root / name).iterdir())
    ]
    random.Random(0).shuffle(items)
    return items


def read_one(item: Item, decode: bool) -> dict[str, Any]:
    """The record of a file, as every peer is given it."""
    path, label = item
    data = Path(path).read_bytes()
    if decode:
        Image.open(io.BytesIO(data)).convert("RGB")
    return {"image": data, "label": label}


def run_streamloader(root: Path, dest: Path, processes: int, decode: bool, forced: bool) -> None:
    from streamloader.convert import convert

    convert(
        root,
        dest,
        jobs=processes,
        decode_check=decode,
        shard_bytes=SHARD_BYTES,
        storage_options={"sync": forced},
    )


def force(folder: Path, threads: int) -> None:
    """Force all files below a folder, and their names, to the disk."""
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(_force_one, [folder, *folder.rglob("*")]))


def _force_one(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def _write_mds(dest: str, items: Sequence[Item], decode: bool) -> None:
    from streaming import MDSWriter

    columns = {"image": "bytes", "label": "int"}
    with MDSWriter(out=dest, columns=columns, size_limit=SHARD_BYTES) as writer:
        for item in items:
            writer.write(read_one(item, decode))


def run_mds(root: Path, dest: Path, processes: int, decode: bool, forced: bool) -> None:
    from streaming.base.util import merge_index

    items = listed(root)
    parts = [(str(dest / f"{n:02d}"), items[n::processes], decode) for n in range(processes)]
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        pool.starmap(_write_mds, parts)
    merge_index(str(dest), keep_local=True)
    if forced:
        force(dest, processes)


class LitDataRecord:
    """The function that LitData calls, picklable."""

    def __init__(self, decode: bool) -> None:
        self.decode = decode

    def __call__(self, item: Item) -> dict[str, Any]:
        return read_one(item, self.decode)


def run_litdata(root: Path, dest: Path, processes: int, decode: bool, forced: bool) -> None:
    from litdata import optimize

    optimize(
        fn=LitDataRecord(decode),
        inputs=listed(root),
        output_dir=str(dest),
        num_workers=processes,
        chunk_bytes=SHARD_BYTES,
        verbose=False,
    )
    if forced:
        force(dest, processes)


CONTENDERS: dict[str, Callable[[Path, Path, int, bool, bool], None]] = {
    "streamloader": run_streamloader,
    "MDSWriter": run_mds,
    "LitData": run_litdata,
}
PEERS = CONTENDERS.keys() - {"streamloader"}


class Run(NamedTuple):
    """One run: wall and CPU seconds, and the largest process in MB."""

    wall_s: float
    cpu_s: float
    peak_mb: float


def run_contender(name: str, root: Path, into: Path, how: tuple[int, bool, bool]) -> Run:
    """One run in a process of its own, imports left out; ``how`` are the last three arguments."""
    dest = Path(tempfile.mkdtemp(dir=into)) / "out"
    program = (
        "import resource, sys, time\n"
        "from pathlib import Path\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import convert as benchmark\n"
        "if __name__ == '__main__':\n"
        f"    {IMPORTS[name]}\n"
        "    both = lambda: list(map(resource.getrusage,"
        " (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))\n"
        "    usage = lambda: sum(u.ru_utime + u.ru_stime for u in both())\n"
        "    start, cpu = time.perf_counter(), usage()\n"
        f"    benchmark.CONTENDERS[{name!r}](Path({str(root)!r}), Path({str(dest)!r}),"
        f" *{how!r})\n"
        "    times = time.perf_counter() - start, usage() - cpu\n"
        "    print('TIMES', *times, max(u.ru_maxrss for u in both()) / 1000)\n"
    )
    script = dest.parent / "run.py"
    script.write_text(program)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr[-2000:]}")
    line = next(line for line in done.stdout.splitlines() if line.startswith("TIMES"))
    shutil.rmtree(dest.parent)
    return Run(*map(float, line.split()[1:]))


IMPORTS = {
    "streamloader": "import streamloader.convert",
    "MDSWriter": "import streaming",
    "LitData": "import litdata",
}


def linked(root: Path, repeat: int) -> Path:
    """The pictures, each several times, in a folder of links."""
    target = Path(tempfile.mkdtemp(dir=root.parent)) / "pictures"
    for path in root.rglob("*"):
        if path.is_file():
            folder = target / path.parent.name
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(repeat):
                os.link(path, folder / f"{number}-{path.name}")
    return target


def rate(args: argparse.Namespace) -> dict[str, Any]:
    root = linked(args.pictures, args.repeat)
    into = args.dest or root.parent
    count = len(listed(root))
    result: dict[str, Any] = {"pictures": count, "processes": args.processes}
    try:
        for decode in (False, True)[: 1 if args.undecoded else 2]:
            runs: dict[tuple[str, bool], list[Run]] = {}
            for _ in range(args.rounds):
                for name in args.contenders or CONTENDERS:
                    # Decoding takes so long that it makes no difference what the disk is asked.
                    own = name == "streamloader"
                    for forced in (own,) if decode else (True, False):
                        time.sleep(args.pause_s)
                        how = (args.processes, decode, forced)
                        run = run_contender(name, root, into, how)
                        runs.setdefault((name, forced), []).append(run)
            result["decoded" if decode else "as they are"] = compared(runs, count)
    finally:
        shutil.rmtree(root.parent)
    return result


def compared(runs: dict[tuple[str, bool], list[Run]], count: int) -> dict[str, Any]:
    """Medians of the rounds, and how many times the best peer ours is."""
    result: dict[str, Any] = {}
    for (name, forced), own in runs.items():
        wall_s = statistics.median(run.wall_s for run in own)
        result[f"{name}, {'forced to the disk' if forced else 'left to the system'}"] = {
            "wall_s": [round(run.wall_s, 2) for run in own],
            "median_wall_s": round(wall_s, 2),
            "per_s": round(count / wall_s),
            "cpu_s_per_1k": round(1000 * statistics.median(r.cpu_s for r in own) / count, 3),
            "peak_mb": round(max(run.peak_mb for run in own)),
        }
    for ours, peers in ((True, False), (True, True), (False, False)):
        best = _least([own for key, own in runs.items() if key in {(p, peers) for p in PEERS}])
        own_s = _least([own for key, own in runs.items() if key == ("streamloader", ours)])
        if best is not None and own_s is not None:
            what = f"ours {'forced' if ours else 'left'}, peers {'forced' if peers else 'left'}"
            result[f"times the best peer by wall, by CPU: {what}"] = [
                round(peer / own, 2) for peer, own in zip(best, own_s, strict=True)
            ]
    return result


def _least(contenders: Sequence[Sequence[Run]]) -> tuple[float, float] | None:
    """The least median wall and CPU seconds among some contenders."""
    if not contenders:
        return None
    return (
        min(statistics.median(run.wall_s for run in own) for own in contenders),
        min(statistics.median(run.cpu_s for run in own) for own in contenders),
    )


def small_pictures(folder: Path, count: int) -> None:
    """Many small JPEGs: links to a few, as many as a file may have."""
    rng = np.random.default_rng(0)
    base: list[Path] = []
    for number in range(max(8, count // 30_000 + 1)):
        pixels = rng.integers(0, 256, (24, 32, 3), dtype=np.uint8)
        path = folder / f"base-{number}.jpg"
        Image.fromarray(pixels).save(path, quality=50)
        base.append(path)
    for number in range(count):
        target = folder / "pictures" / f"class{number % 100:02d}"
        if number < 100:
            target.mkdir(parents=True)
        os.link(base[number % len(base)], target / f"{number:06d}.jpg")


def memory(args: argparse.Namespace) -> dict[str, Any]:
    peaks = {}
    for count in (2_000, args.samples):
        folder = Path(tempfile.mkdtemp())
        small_pictures(folder, count)
        program = (
            "import resource\n"
            "from streamloader.convert import convert\n"
            f"convert({str(folder / 'pictures')!r}, {str(folder / 'out')!r})\n"
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
        )
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
        peaks[count] = {
            "peak_mb": round(int(done.stdout) / 1000),
            "seconds": round(time.perf_counter() - start, 1),
        }
        shutil.rmtree(folder)
    return peaks


def kills(args: argparse.Namespace) -> dict[str, Any]:
    from streamloader.cli.s3_server import SeaweedServer
    from streamloader.convert import convert, describe, verify

    rng = random.Random(args.seed)
    with SeaweedServer() as server:
        server.create_bucket("kills")
        options = server.storage_options
        start = time.perf_counter()
        whole = convert(
            args.pictures, "s3://kills/whole", shard_bytes="4mib", storage_options=options
        )
        undisturbed_s = time.perf_counter() - start
        arguments = {"shard_bytes": "4mib", "storage_options": options, "resume": True}
        program = (
            "from streamloader.convert import convert\n"
            f"convert({str(args.pictures)!r}, 's3://kills/out', **{arguments!r})\n"
        )
        done = survived = finished = 0
        while done < args.kills:
            process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL)
            try:
                process.wait(timeout=1.5 + rng.random() * args.mean_s)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
                done += 1
            else:
                # Begin anew, so that there are as many kills in the middle as were asked for.
                finished += 1
                survived += _same("s3://kills/out", whole.fingerprint, options)
                _remove("s3://kills/out", options)
        report = convert(args.pictures, "s3://kills/out", **arguments)
        found = describe("s3://kills/out", storage_options=options)
        checked = verify("s3://kills/out", sha256=True, storage_options=options)
        return {
            "kills": done,
            "runs_to_the_end_between": finished,
            "of_them_identical": survived,
            "identical": found.manifest.fingerprint == whole.fingerprint,
            "sound": checked.ok,
            "shards": whole.shards,
            "resumed_shards_in_the_last_run": report.resumed_shards,
            "undisturbed_s": round(undisturbed_s, 1),
        }


def _same(url: str, fingerprint: str, options: dict[str, Any]) -> bool:
    from streamloader.convert import describe

    return describe(url, storage_options=options).manifest.fingerprint == fingerprint


def _remove(url: str, options: dict[str, Any]) -> None:
    from storage_backends import open_store
    from streamloader.fetch import LoopThread

    async def remove() -> None:
        async with open_store(url, **options) as store:
            for key in [info.key async for info in store.list()]:
                await store.delete(key)

    with LoopThread("remove-loop") as loop:
        loop.run(remove())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(required=True)
    verb = verbs.add_parser("rate")
    verb.add_argument("pictures", type=Path)
    verb.add_argument("--repeat", type=int, default=3)
    verb.add_argument("--processes", type=int, default=2)
    verb.add_argument("--rounds", type=int, default=1)
    verb.add_argument("--dest", type=Path, help="folder that is written to; beside PICTURES")
    verb.add_argument("--undecoded", action="store_true", help="leave the decoded runs out")
    verb.add_argument("--contenders", nargs="+", choices=CONTENDERS)
    verb.add_argument("--pause-s", type=float, default=0, help="before each run, for the disk")
    verb.set_defaults(run=rate)
    verb = verbs.add_parser("memory")
    verb.add_argument("--samples", type=int, default=200_000)
    verb.set_defaults(run=memory)
    verb = verbs.add_parser("kills")
    verb.add_argument("pictures", type=Path)
    verb.add_argument("--kills", type=int, default=20)
    verb.add_argument("--mean-s", type=float, default=4.0)
    verb.add_argument("--seed", type=int, default=0)
    verb.set_defaults(run=kills)
    args = parser.parse_args()
    print(json.dumps(args.run(args), indent=2))


if __name__ == "__main__":
    main()

"""Opens the manifest of a very large data set and plans its first batch.

    python benchmarks/scale.py [--shards 100000] [--samples 10000] [--block-samples 256] [--json]

The manifest and the sidecar are written as a conversion would; the shards themselves are never
touched. Run it in a process of its own: it prints the memory the whole process came to need.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from storage_backends import open_store
from streamloader.dts import (
    Manifest,
    Pointer,
    Schema,
    ShardEntry,
    Sidecar,
    SidecarEntry,
    manifest_name,
    sidecar_name,
)
from streamloader.fetch import Catalog, LoopThread
from streamloader.order import EpochOrder, OrderSpec, RankPlan

RECORD_BYTES = 1024


def write(folder: Path, shards: int, samples: int, block_samples: int) -> None:
    """Pointer, manifest and sidecar of ``shards`` x ``samples`` records of 1 KiB."""
    schema = Schema.of({"tokens": ("int32", (RECORD_BYTES // 4,))})
    payload, tail = samples * RECORD_BYTES, samples * 16
    entries = [
        ShardEntry(
            name=f"{number:06d}.dts",
            bytes=64 + payload + tail,
            samples=samples,
            tail_bytes=tail,
            uuid=hashlib.md5(str(number).encode()).digest(),
            schema_id=0,
            tail_crc32=number,
            sha256=hashlib.sha256(str(number).encode()).hexdigest(),
        )
        for number in range(shards)
    ]
    starts = np.arange(0, shards * samples, block_samples, dtype=np.int64)
    sidecar = Sidecar.build((64 + starts % samples * RECORD_BYTES).astype(np.uint64))
    manifest = Manifest(
        dataset_uuid=bytes(16),
        rev=1,
        schemas=(schema,),
        shards=entries,
        block_samples=block_samples,
        max_block_bytes=block_samples * RECORD_BYTES,
        max_record_bytes=RECORD_BYTES,
        sidecar=SidecarEntry(sidecar_name(1), sidecar.sha256),
    )
    (folder / sidecar_name(1)).write_bytes(sidecar.to_bytes())
    data = manifest.to_bytes()
    (folder / manifest_name(1)).write_bytes(data)
    pointer = Pointer(rev=1, manifest=manifest_name(1), sha256=hashlib.sha256(data).hexdigest())
    (folder / "latest.json").write_bytes(pointer.to_bytes())


def open_and_plan(folder: str) -> dict[str, float]:
    """Seconds and peak megabytes to open the data set and plan the first batch of rank 0 of 8."""

    async def open_catalog() -> tuple[int, int]:
        async with open_store(folder) as store:
            catalog = await Catalog.open(store)
            return catalog.num_samples, catalog.blocks.block_samples

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    with LoopThread("scale") as loop_thread:
        samples, block_samples = loop_thread.run(open_catalog())
    opened = time.perf_counter()
    spec = OrderSpec.choose(samples, block_samples, seed=0, shuffle=True)
    RankPlan(EpochOrder(spec, 0), batch_size=256, rank=0, world_size=8).batch(0)
    planned = time.perf_counter()
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "samples": samples,
        "open_s": opened - started,
        "plan_s": planned - opened,
        "total_s": planned - started,
        "imports_mb": before / 1024,
        "peak_mb": after / 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=100_000)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--block-samples", type=int, default=256)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--opened", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.opened:
        print(json.dumps(open_and_plan(arguments.opened)))
        return
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), arguments.shards, arguments.samples, arguments.block_samples)
        command = [sys.executable, __file__, "--opened", folder]
        ran = subprocess.run(command, capture_output=True, text=True, check=True)
    print(ran.stdout.strip() if arguments.json else json.dumps(json.loads(ran.stdout), indent=1))


if __name__ == "__main__":
    main()

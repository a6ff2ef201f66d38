"""Measures of the order: planning time, memory that an epoch holds, bytes per rank, mixing.

    python benchmarks/order.py [--json] [--quick]

Everything is computed from the rules; nothing is read. Times are of one core, the rest is exact.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from streamloader.order import (
    Bijection,
    EpochOrder,
    MixedOrder,
    Mixture,
    Order,
    OrderSpec,
    Proportions,
    RankPlan,
    derive_key,
    footprint_of,
)
from streamloader.order.windows import WindowShuffle

RECORD_BYTES = 115_000
NUM_CLASSES = 1000
BATCH_SIZE = 256
LOOKAHEAD_BATCHES = 3
IMAGENET = OrderSpec(1_280_000, 9, 0, "window", 256, 2)
MIXED_WEIGHTS = ([0.7, 0.3], [0.4, 0.3, 0.2, 0.1])
MIXED_WORLD_SIZES = (1, 2, 3, 8, 12, 96)
WORLD_SIZES = (1, 2, 3, 5, 7, 8, 12, 96, 100, 1000)


def planning(block_samples: int, batches: int, data_sets: int = 1) -> dict[str, Any]:
    """Times to open 1e9 samples, to have the first batch, and per batch after that."""
    first_s = []
    for epoch in range(5):
        started_s = time.perf_counter()
        order: Order = EpochOrder(OrderSpec.choose(10**9, block_samples), epoch)
        if data_sets > 1:
            order = mixed([1] * data_sets, 10**9, block_samples, epoch)
        plan = RankPlan(order, batch_size=BATCH_SIZE, rank=0, world_size=1)
        plan.batch(0)
        first_s.append(time.perf_counter() - started_s)
    rounds_ms = []
    for start in range(1, batches, 64):
        started_s = time.perf_counter()
        for number in range(start, start + 64):
            plan.batch(number)
        rounds_ms.append((time.perf_counter() - started_s) / 64 * 1e3)
    return {
        "block_samples": block_samples,
        "data_sets": data_sets,
        "open_and_first_batch_ms": statistics.median(first_s) * 1e3,
        "batch_ms": statistics.median(rounds_ms),
        "batch_ms_min": min(rounds_ms),
        "batch_ms_max": max(rounds_ms),
    }


def mixed(weights: list[float], size: int, block_samples: int, epoch: int) -> MixedOrder:
    """Epochs of ``size`` samples from data sets that each have a pass in one."""
    sizes = [(round(size * weight / sum(weights)), block_samples) for weight in weights]
    mixture = Mixture.choose(sizes, Proportions.of(weights), seed=0, shuffle=True)
    return MixedOrder(mixture, epoch, size)


def stagger(spec: OrderSpec, name: str, *, short_first: bool, turned: bool) -> dict[str, Any]:
    """Memory of one rank over an epoch, with each half of the stagger on or off.

    A piece is held from the moment when its first use is within the lookahead to its last use.
    """
    windows = WindowShuffle(spec, 0)
    # The rules have no switch for this; the experiment turns parts of them off.
    if not turned:
        windows._turn = np.zeros_like(windows._turn)  # noqa: SLF001 - see above
        windows._places = windows._lanes.pieces  # noqa: SLF001 - see above
    if not short_first:
        windows._first_window = np.full_like(windows._first_window, spec.window)  # noqa: SLF001 - see above
    n = spec.num_samples
    parts = [windows.locate(np.arange(low, min(low + 65_536, n))) for low in range(0, n, 65_536)]
    piece = np.concatenate([part.piece for part in parts])
    _, first, place = np.unique(piece, return_index=True, return_inverse=True)
    last = np.zeros(first.size, dtype=np.int64)
    np.maximum.at(last, place, np.arange(n))
    piece_bytes = np.bincount(place) * RECORD_BYTES

    batches = -(-n // BATCH_SIZE)
    demand = np.maximum(first // BATCH_SIZE - LOOKAHEAD_BATCHES, 0)
    new = np.bincount(demand, weights=piece_bytes, minlength=batches)
    gone = np.bincount(last // BATCH_SIZE + 1, weights=piece_bytes, minlength=batches + 1)
    held = np.cumsum(new) - np.cumsum(gone[:batches])
    return {
        "rule": name,
        "held_max_mb": held.max() / 1e6,
        "held_mean_mb": held.mean() / 1e6,
        "new_per_batch_max_mb": new[1:].max() / 1e6,
        "new_per_batch_p99_mb": float(np.percentile(new[1:], 99)) / 1e6,
        "new_at_start_mb": new[0] / 1e6,
    }


def classes_per_batch(spec: OrderSpec, *, sorted_by_class: bool) -> dict[str, Any]:
    """Different classes in the batches of one rank; a full permutation has 226 of 1,000 in 256."""
    n = spec.num_samples
    label: npt.NDArray[np.int64] = np.arange(n) * NUM_CLASSES // n
    if not sorted_by_class:
        label = label[Bijection(n, derive_key(1))(np.arange(n))]
    plan = RankPlan(EpochOrder(spec, 0), batch_size=BATCH_SIZE, rank=0, world_size=1)
    counts = [
        np.unique(label[plan.batch(number).samples]).size
        for number in range(0, plan.num_batches - 1, 16)
    ]
    return {
        "shuffle": spec.shuffle,
        "sorted_by_class": sorted_by_class,
        "classes_mean": statistics.fmean(counts),
        "classes_min": min(counts),
        "classes_max": max(counts),
    }


def reads(order: Order, world_size: int, batch_size: int) -> dict[str, Any]:
    """Samples that ranks read for each that they deliver, over up to 16 ranks."""
    ratios = []
    for rank in sorted({int(r) for r in np.linspace(0, world_size - 1, 16)}):
        plan = RankPlan(order, batch_size=batch_size, rank=rank, world_size=world_size)
        footprint = footprint_of(plan)
        ratios.append(footprint.samples_read / footprint.rows)
    return {
        "world_size": world_size,
        "batch_size": batch_size,
        "read_per_row_mean": statistics.fmean(ratios),
        "read_per_row_max": max(ratios),
    }


def measure(quick: bool) -> dict[str, list[dict[str, Any]]]:
    spec = replace(IMAGENET, num_samples=256_000) if quick else IMAGENET
    sharing = [(r, 256) for r in WORLD_SIZES] + [(3, 64), (3, 250), (12, 8), (24, 64), (96, 64)]
    plain = replace(spec, shuffle="global", lanes=1)
    return {
        "planning 1e9 samples, batch 256": [
            planning(block_samples, 640 if quick else 6400, data_sets)
            for block_samples, data_sets in ((16, 1), (256, 1), (16, 2), (16, 16))
        ],
        "memory of one rank": [
            stagger(spec, "in step", short_first=False, turned=False),
            stagger(spec, "short first window", short_first=True, turned=False),
            stagger(spec, "turned first piece", short_first=False, turned=True),
            stagger(spec, "both (the rule)", short_first=True, turned=True),
        ],
        "classes in a batch": [
            classes_per_batch(spec, sorted_by_class=False),
            classes_per_batch(spec, sorted_by_class=True),
            classes_per_batch(plain, sorted_by_class=False),
        ],
        "samples read for each delivered": [
            reads(EpochOrder(spec, 0), world_size, batch_size) for world_size, batch_size in sharing
        ],
        **{
            f"the same of a mixture by {weights}": [
                reads(mixed(weights, spec.num_samples, spec.block_samples, 0), world_size, 256)
                for world_size in MIXED_WORLD_SIZES
            ]
            for weights in MIXED_WEIGHTS
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument(
        "--quick", action="store_true", help="a fifth of the data set, fewer rounds"
    )
    arguments = parser.parse_args()
    results = measure(arguments.quick)
    if arguments.json:
        print(json.dumps(results))
        return
    for title, rows in results.items():
        print(title)
        for row in rows:
            cells = (f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items())
            print("  " + ", ".join(cells))


if __name__ == "__main__":
    main()

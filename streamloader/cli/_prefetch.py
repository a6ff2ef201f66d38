"""``streamloader prefetch``: the offline prefetch-only test."""

from __future__ import annotations

from typing import Any

import click

from streamloader.cli._options import SIZE, output_options, reading_options, storage_options
from streamloader.cli._output import ExitCode, Output


@click.command()
@click.argument("dataset")
@click.option("--world-size", default=1, show_default=True, type=click.IntRange(1))
@click.option("--rank", default=0, show_default=True, type=click.IntRange(0))
@click.option("--no-verify", is_flag=True, help="Do not check the samples' hashes.")
@click.option("--cache-dir", type=click.Path(), help="Folder of this machine to keep blocks in.")
@click.option("--cache-limit", type=SIZE, help="Bound of that folder, e.g. 200gb.")
@reading_options
@storage_options
@output_options
def command(
    dataset: str,
    memory_limit: int,
    cache_dir: str | None,
    cache_limit: int | None,
    no_verify: bool,
    storage_options: dict[str, Any],
    output: Output,
    **options: Any,
) -> int:
    """Read DATASET in training order, with no decode and no GPU, and say what storage gives."""
    from streamloader.fetch import CacheOptions
    from streamloader.fetch.offline import PrefetchOptions, prefetch_offline

    cache = CacheOptions.of(cache_dir, cache_limit)
    wanted = PrefetchOptions(
        memory_limit_bytes=memory_limit, verify=not no_verify, cache=cache, **options
    )
    with output.progress("prefetching") as bar:
        report = prefetch_offline(
            dataset, wanted, storage_options=storage_options, progress=bar.update
        )
    values = report.to_dict()
    latency = values["latency_ms"]
    lines = [
        f"{report.samples:,} samples, {report.bytes / 1e6:,.1f} MB in {report.seconds:.2f} s:"
        f" {values['mb_per_s']:,.0f} MB/s, {values['samples_per_s']:,.0f} samples/s",
        f"first block after {report.first_block_s:.3f} s, batch {report.first_batch_s:.3f} s;"
        f" {report.requests:,} requests, {report.retries:,} retries",
        f"read latency p50 {latency['p50']:.1f}, p95 {latency['p95']:.1f},"
        f" p99 {latency['p99']:.1f}, max {latency['max']:.1f} ms",
    ]
    lines += [f"bad: sample {e.sample} ({e.key}) in {e.shard}: {e.reason}" for e in report.errors]
    output.result(values, lines)
    return ExitCode.FOUND_WRONG if report.errors else ExitCode.DONE

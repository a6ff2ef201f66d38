"""``streamloader bench``: the whole pipeline to batches on a device."""

from __future__ import annotations

from typing import Any

import click

from streamloader.cli._options import output_options, reading_options, storage_options
from streamloader.cli._output import Output
from streamloader.errors import ConfigError


@click.command()
@click.argument("dataset")
@click.option("--size", default=224, show_default=True, type=click.IntRange(1), help="Pixels.")
@click.option(
    "--transform",
    "transform_name",
    type=click.Choice(["random-resized-crop", "center-crop", "none"]),
    default="random-resized-crop",
    show_default=True,
    help="center-crop scales the short side to size * 256 / 224 first.",
)
@click.option("--device", help="cpu, cuda or cuda:N.")
@click.option("--num-workers", type=click.IntRange(1), help="Decode threads.")
@click.option("--prefetch-batches", default=3, show_default=True, type=click.IntRange(1))
@reading_options
@storage_options
@output_options
def command(
    dataset: str,
    size: int,
    transform_name: str,
    storage_options: dict[str, Any],
    output: Output,
    **options: Any,
) -> None:
    """Bring DATASET to batches on a device as training would, and time it."""
    from streamloader.bench import bench

    seconds = options["seconds"]
    if seconds is not None and not seconds > 0:
        raise ConfigError(f"--seconds must be positive, got {seconds}")
    with output.progress("loading") as bar:
        report = bench(
            dataset,
            transform=_transform(transform_name, size),
            storage_options=storage_options,
            progress=bar.update,
            **options,
        )
    values = report.to_dict()
    lines = [
        f"{report.samples:,} samples in {report.seconds:.2f} s:"
        f" {values['samples_per_s']:,.0f} samples/s,"
        f" {values['cpu_s_per_1k']:.2f} CPU seconds per 1,000",
        f"first batch after {report.first_batch_s:.3f} s",
    ]
    for name, times in values["stages"].items():
        lines.append(
            f"{name:>8}: p50 {times['p50']:.1f}, p95 {times['p95']:.1f},"
            f" p99 {times['p99']:.1f}, max {times['max']:.1f} ms"
        )
    output.result(values, lines)


def _transform(name: str, size: int) -> Any:
    from streamloader.decode import CenterCrop, Compose, RandomResizedCrop, Resize

    if name == "random-resized-crop":
        return RandomResizedCrop(size, flip=0.5)
    if name == "center-crop":
        return Compose([Resize(round(size * 256 / 224)), CenterCrop(size)])
    return None

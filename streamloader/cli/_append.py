"""``streamloader append``: more samples for a data set that is published."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from streamloader.cli._convert import codec_choice, rejected_lines, show
from streamloader.cli._convert_options import picture_options, source_options
from streamloader.cli._options import SIZE, output_options, storage_options
from streamloader.cli._output import FoundWrong, Output, printable
from streamloader.sizes import format_size

if TYPE_CHECKING:
    from streamloader.convert import ConvertReport, PictureOptions


@click.command()
@click.argument("src", metavar="SRC...", nargs=-1, required=True)
@click.argument("dest", metavar="DEST")
@source_options
@click.option("--into", metavar="SPLIT", help="Split for samples of a SRC without splits.")
@click.option(
    "--shard-bytes",
    "--shard-size",
    type=SIZE,
    default="128mib",
    show_default=True,
    help="Largest shard.",
)
@click.option(
    "--seed",
    "--shuffle-seed",
    type=int,
    default=0,
    show_default=True,
    help="Seed of the stored order.",
)
@click.option("--no-shuffle", is_flag=True, help="Keep the order of SRC.")
@click.option("--jobs", "-j", type=int, help="Threads; as many as usable CPUs if not given.")
@click.option(
    "--decode-check/--no-decode-check",
    default=True,
    show_default=True,
    help="Decode every picture before it is stored.",
)
@click.option(
    "--codec",
    "codecs",
    multiple=True,
    metavar="none|zstd|FIELD=zstd",
    help="Compress every field but pictures, or the field named. May be repeated.",
)
@click.option(
    "--zstd-level", type=int, metavar="N", help="1 to 22, with codec zstd; 3 if not given."
)
@click.option("--max-rejects", type=int, metavar="N", help="Stop after more bad samples than N.")
@picture_options
@click.option("--resume", is_flag=True, help="Add nothing if this very addition is there already.")
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Work on this machine, or on a Ray cluster.",
)
@storage_options
@output_options
def command(
    src: tuple[str, ...],
    dest: str,
    seed: int,
    no_shuffle: bool,
    codecs: tuple[str, ...],
    source: dict[str, Any],
    pictures: PictureOptions,
    output: Output,
    **options: Any,
) -> None:
    """Add SRC to the data set at DEST, as a new revision of it.

    SRC is what `streamloader convert` takes, with the fields of the data set. Classes go by name.
    The shards that are there stay as they are, and readers that are at work do not notice.
    """
    from streamloader.convert import RejectedError, append

    with output.progress("appending") as bar:
        try:
            report = append(
                src,
                dest,
                shuffle_seed=None if no_shuffle else seed,
                codec=codec_choice(codecs) if codecs else None,
                pictures=pictures,
                progress=lambda done: show(bar, done),
                **source,
                **options,
            )
        except RejectedError as error:
            raise FoundWrong(str(error), error.to_json()) from error
    for warning in report.warnings:
        output.warn(printable(warning))
    output.result(report.to_json(), _lines(report))


def _lines(report: ConvertReport) -> Iterator[str]:
    yield (
        f"{report.url}: revision {report.revision}, {report.samples:,} samples added in"
        f" {report.shards:,} shards, {format_size(report.bytes_out)}, {report.seconds:.1f} s;"
        f" {report.total_samples:,} samples in all"
    )
    yield f"fingerprint: {report.fingerprint}"
    yield from rejected_lines(report)

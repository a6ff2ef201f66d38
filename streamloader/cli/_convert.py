"""``streamloader convert``: pictures, or data sets of other libraries, to a data set."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from streamloader.cli._convert_options import picture_options, source_options, storing_options
from streamloader.cli._options import output_options, storage_options
from streamloader.cli._output import FoundWrong, Output, ProgressBar, printable
from streamloader.sizes import format_size

if TYPE_CHECKING:
    from streamloader.convert import ConvertReport, PictureOptions, Progress

_REJECTS_SHOWN = 10
#: As ``streamloader.dts.HASH_NAMES``, which would take the help half a second to import.
HASHES = ("xxh3-64", "crc32")


@click.command()
@click.argument("src", metavar="SRC...", nargs=-1, required=True)
@click.argument("dest", metavar="DEST")
@source_options
@storing_options
@click.option(
    "--block-samples",
    default="auto",
    show_default=True,
    metavar="N|auto",
    help="Samples that are fetched together; auto is about 1 MiB.",
)
@click.option(
    "--hash",
    type=click.Choice(HASHES),
    default=HASHES[0],
    show_default=True,
    help="What guards every sample; crc32 is for readers with zlib alone.",
)
@picture_options
@click.option("--resume", is_flag=True, help="Also end well where this is converted already.")
@click.option("--overwrite", is_flag=True, help="Remove what is at DEST, once SRC was read.")
@storage_options
@output_options
def command(
    src: tuple[str, ...],
    dest: str,
    source: dict[str, Any],
    storing: dict[str, Any],
    pictures: PictureOptions,
    output: Output,
    **options: Any,
) -> None:
    """Turn SRC into a data set at DEST.

    SRC has class folders (SRC/cat/1.jpg), or just pictures (SRC/1.jpg), or SRC/train and SRC/val
    with either in them, at a path or in a bucket; or it is a WebDataset (tars), MDS, Parquet or
    Arrow files, original DTS files, or another data set. Several SRC of one kind are joined. DEST
    is a path or s3://bucket/prefix that holds no data set; the bucket must exist. Samples that
    are not sound are left out and listed in DEST/rejects.jsonl.

    A run that was killed goes on where it was when it is called again in the same way.
    """
    from streamloader.convert import RejectedError, convert

    with output.progress("converting") as bar:
        try:
            report = convert(
                src,
                dest,
                pictures=pictures,
                progress=lambda done: show(bar, done),
                **source,
                **storing,
                **options,
            )
        except RejectedError as error:
            raise FoundWrong(str(error), error.to_json()) from error
    for warning in report.warnings:
        output.warn(printable(warning))
    output.result(report.to_json(), _lines(report))


def show(bar: ProgressBar, done: Progress) -> None:
    """Show how far a conversion is."""
    bar.update(done.samples, done.total_samples)


def _lines(report: ConvertReport) -> Iterator[str]:
    yield (
        f"{report.url}: {report.samples:,} samples in {report.shards:,} shards,"
        f" {format_size(report.bytes_out)}, {report.seconds:.1f} s"
    )
    for split, samples in report.splits.items():
        yield f"split {split}: {samples:,} samples"
    if report.resumed_shards:
        yield f"shards of an earlier run: {report.resumed_shards:,}"
    if report.classes:
        yield f"classes: {len(report.classes):,}"
    yield f"fingerprint: {report.fingerprint}"
    yield from rejected_lines(report)


def rejected_lines(report: ConvertReport) -> Iterator[str]:
    """Say what was left out, the first few of it."""
    if report.rejected:
        rejects = (
            "rejects.jsonl" if report.revision == 1 else f"rejects-{report.revision:06d}.jsonl"
        )
        yield f"left out: {len(report.rejected):,} (all of them in {rejects})"
        for reject in report.rejected[:_REJECTS_SHOWN]:
            yield f"  {printable(reject.path)}: {printable(reject.reason)}"

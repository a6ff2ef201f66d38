"""``streamloader append``: more samples for a data set that is published."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from streamloader.cli._convert import rejected_lines, show
from streamloader.cli._convert_options import picture_options, source_options, storing_options
from streamloader.cli._options import output_options, storage_options
from streamloader.cli._output import FoundWrong, Output, printable
from streamloader.sizes import format_size

if TYPE_CHECKING:
    from streamloader.convert import ConvertReport, PictureOptions


@click.command()
@click.argument("src", metavar="SRC...", nargs=-1, required=True)
@click.argument("dest", metavar="DEST")
@source_options
@click.option("--into", metavar="SPLIT", help="Split for samples of a SRC without splits.")
@storing_options
@picture_options
@click.option("--resume", is_flag=True, help="Add nothing if this very addition is there already.")
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


def _lines(report: ConvertReport) -> Iterator[str]:
    yield (
        f"{report.url}: revision {report.revision}, {report.samples:,} samples added in"
        f" {report.shards:,} shards, {format_size(report.bytes_out)}, {report.seconds:.1f} s;"
        f" {report.total_samples:,} samples in all"
    )
    yield f"fingerprint: {report.fingerprint}"
    yield from rejected_lines(report)

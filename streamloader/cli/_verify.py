"""``streamloader verify``: every byte of a data set against its checksums."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from streamloader.cli._options import output_options, storage_options
from streamloader.cli._output import ExitCode, Output, printable
from streamloader.sizes import format_size

if TYPE_CHECKING:
    from streamloader.convert import VerifyReport

_FAULTS_SHOWN = 20


@click.command()
@click.argument("dataset", metavar="DATASET")
@click.option("--decode", is_flag=True, help="Decode every picture too.")
@click.option("--sha256", is_flag=True, help="Compare the SHA-256 of every shard too.")
@click.option(
    "--jobs",
    "-j",
    type=click.IntRange(1, 1024),
    help="Threads; as many as usable CPUs if not given.",
)
@storage_options
@output_options
def command(
    dataset: str,
    decode: bool,
    sha256: bool,
    jobs: int | None,
    storage_options: dict[str, Any],
    output: Output,
) -> ExitCode:
    """Check DATASET: every bound, every checksum, every padding byte of every shard.

    Ends with 1 when something is wrong, and lists what.
    """
    from streamloader.convert import verify

    with output.progress("verifying") as bar:
        report = verify(
            dataset,
            decode=decode,
            sha256=sha256,
            jobs=jobs,
            storage_options=storage_options,
            progress=bar.update,
        )
    output.result(report.to_json(), _lines(report))
    return ExitCode.DONE if report.ok else ExitCode.FOUND_WRONG


def _lines(report: VerifyReport) -> Iterator[str]:
    verdict = "sound" if report.ok else f"{len(report.faults):,} faults"
    yield (
        f"{report.url}: {verdict}; {report.samples:,} samples in {report.shards:,} shards,"
        f" {format_size(report.bytes)} read, {report.seconds:.1f} s"
    )
    for fault in report.faults[:_FAULTS_SHOWN]:
        place = fault.shard if fault.offset is None else f"{fault.shard} at byte {fault.offset}"
        sample = "" if fault.sample is None else f", sample {fault.sample}"
        yield printable(f"  {place}{sample}: {fault.reason}")
    if len(report.faults) > _FAULTS_SHOWN:
        yield f"  and {len(report.faults) - _FAULTS_SHOWN:,} more; --json lists up to 1,000"

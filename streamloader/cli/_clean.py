"""``streamloader clean``: what broken conversions left is removed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from streamloader.cli._options import output_options, storage_options
from streamloader.cli._output import Output, printable
from streamloader.sizes import format_size

if TYPE_CHECKING:
    from streamloader.convert import CleanReport

_RESTS_SHOWN = 20


@click.command()
@click.argument("dest", metavar="DEST")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@storage_options
@output_options
def command(dest: str, dry_run: bool, storage_options: dict[str, Any], output: Output) -> None:
    """Remove from DEST what broken conversions left there.

    These are journals, shards that no revision needs, and unfinished uploads. A published data
    set stays as it is, and so do files of anybody else. Not for a place where a conversion is
    at work: it would fail.
    """
    from streamloader.convert import clean

    report = clean(dest, dry_run=dry_run, storage_options=storage_options)
    output.result(report.to_json(), _lines(report))


def _lines(report: CleanReport) -> Iterator[str]:
    verb = "removed" if report.removed else "would remove"
    yield f"{report.url}: {verb} {len(report.rests):,} things, {format_size(report.bytes)}"
    for rest in report.rests[:_RESTS_SHOWN]:
        kind = "unfinished " if rest.write is not None else ""
        yield printable(f"  {kind}{rest.name}")
    if len(report.rests) > _RESTS_SHOWN:
        yield f"  and {len(report.rests) - _RESTS_SHOWN:,} more"

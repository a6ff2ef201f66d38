"""``streamloader demo``: the whole way on one machine, from pictures to a trained model."""

from __future__ import annotations

import importlib.util
import io
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from streamloader.cli._options import output_options
from streamloader.cli._output import ExitCode, Output
from streamloader.errors import ConfigError


@click.command()
@click.option(
    "--pictures",
    type=click.IntRange(min=64, max=100_000),
    default=2000,
    show_default=True,
    help="Pictures to make.",
)
@click.option(
    "--epochs",
    type=click.IntRange(min=1, max=1000),
    default=2,
    show_default=True,
    help="How often the model sees them.",
)
@click.option("--seed", type=click.IntRange(min=0, max=2**32 - 1), default=0, show_default=True)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("demo-out"),
    show_default=True,
    help="Folder of the report.",
)
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Keep pictures, objects and checkpoint in this new folder.",
)
@output_options
def command(
    pictures: int, epochs: int, seed: int, out: Path, keep: Path | None, output: Output
) -> int:
    """Start an S3 server, convert pictures into it and train from it.

    The server listens on loopback and ends with the demo. Pictures of eight classes are painted,
    converted into a bucket, read once by the fetch path alone, and then used to train a small
    model that is stopped in mid-epoch and goes on from its checkpoint.

    Ends with 1 if the loss did not halve, or if the restart lost or repeated a sample.
    """
    _require_torch()
    from streamloader.cli.demo.run import DemoOptions, run_demo

    options = DemoOptions(pictures=pictures, epochs=epochs, seed=seed, out=out, keep=keep)
    report = run_demo(options, output)
    output.result(report.to_json(), _table(report.facts()))
    for failure in report.failures():
        output.note(f"failed: {failure}")
    return ExitCode.FOUND_WRONG if report.failures() else ExitCode.DONE


def _require_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise ConfigError(
            "the demo trains a model and needs torch, which is not installed: "
            "pip install 'streamloader[torch,demo]'"
        )


def _table(facts: Mapping[str, str]) -> list[str]:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name, Text(value))
    on_terminal = sys.stdout.isatty()
    console = Console(
        file=io.StringIO(), force_terminal=on_terminal, width=None if on_terminal else 200
    )
    with console.capture() as captured:
        console.print(table)
    return captured.get().rstrip("\n").split("\n")

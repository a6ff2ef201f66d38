"""The ``streamloader`` command: ``streamloader VERB …``.

A verb lives in ``streamloader/cli/_<verb>.py`` as a click command named ``command``. Its module
is imported when the verb is used, so that the help and the start of one verb never pay for the
libraries of another.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import click

from streamloader.cli._output import run_verb

__all__ = ["VERBS", "Verb", "main", "root"]


class Verb(NamedTuple):
    """Where a verb's click command is (``module:attribute``), and its line in the help."""

    target: str
    summary: str


VERBS: dict[str, Verb] = {
    "convert": Verb(
        "streamloader.cli._convert:command",
        "Turn pictures, tars, MDS or tables into a data set, at a path or in a bucket.",
    ),
    "append": Verb(
        "streamloader.cli._append:command",
        "Add samples to a data set, as a new revision of it.",
    ),
    "inspect": Verb(
        "streamloader.cli._inspect:command",
        "Show what a data set holds: fields, counts, sizes, classes.",
    ),
    "verify": Verb(
        "streamloader.cli._verify:command",
        "Check every byte of a data set against its checksums.",
    ),
    "diff": Verb(
        "streamloader.cli._diff:command",
        "Say what differs between two data sets.",
    ),
    "clean": Verb(
        "streamloader.cli._clean:command",
        "Remove what broken conversions left.",
    ),
    "prefetch": Verb(
        "streamloader.cli._prefetch:command",
        "Run the fetch path alone and say what the storage gives.",
    ),
    "bench": Verb(
        "streamloader.cli._bench:command",
        "Run the whole pipeline to batches on a device and time it.",
    ),
    "cache": Verb(
        "streamloader.cli._cache:command",
        "Show or empty a folder of cached blocks: ls, prune, clear.",
    ),
    "topology": Verb(
        "streamloader.cli._topology:command",
        "Show the CPUs, NUMA nodes and GPUs of this process, and where workers would run.",
    ),
    "demo": Verb(
        "streamloader.cli._demo:command",
        "Start an S3 server, convert pictures into it and train from it.",
    ),
}


class LazyGroup(click.Group):
    """A click group whose commands are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        return list(VERBS)

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002  click's signature
        cmd_name: str,
    ) -> click.Command | None:
        verb = VERBS.get(cmd_name)
        if verb is None:
            return None
        module_name, attribute = verb.target.split(":")
        found = getattr(importlib.import_module(module_name), attribute)
        assert isinstance(found, click.Command), f"{verb.target} is not a click command"
        found.name = cmd_name
        return found

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002  click's signature
        formatter: click.HelpFormatter,
    ) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([(name, verb.summary) for name, verb in VERBS.items()])

    def main(  # type: ignore[override]  # narrower: no Windows expansion, always standalone
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        **extra: Any,
    ) -> None:
        run_verb(super().main, args, prog_name=prog_name or "streamloader", **extra)


def _show_version(ctx: click.Context, _param: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"streamloader {version('streamloader')}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_show_version,
    help="Show the version and end.",
)
def root() -> None:
    """Train straight from object storage: convert, check and measure sharded data sets.

    Every verb ends with 0 when done, 1 when it ran and found something wrong, 2 when it could
    not run, 130 when interrupted.
    """


def main() -> None:
    """Run the command line of this process; never returns."""
    root.main()

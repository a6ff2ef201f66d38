"""Options that several verbs share.

``@output_options`` gives a command the parameter ``output`` (an :class:`Output`), and
``@storage_options`` the parameter ``storage_options`` (a dict for ``open_store``)::

    @click.command()
    @click.argument("dataset")
    @click.option("--cache-limit", type=SIZE)
    @storage_options
    @output_options
    def command(dataset, cache_limit, storage_options, output) -> int: ...

The command's return value is the exit code (None is 0).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from streamloader.cli._output import Output
from streamloader.errors import ConfigError
from streamloader.sizes import parse_size

Command = Callable[..., Any]


class SizeType(click.ParamType[int]):
    """Bytes, as ``128mib`` or ``200gb``."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return parse_size(value, param.opts[0] if param and param.opts else "size")
        except ConfigError as error:
            self.fail(str(error), param, ctx)


SIZE = SizeType()


def output_options(command: Command) -> Command:
    """Add ``--json`` and ``--debug``; the command receives ``output``."""

    @click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
    @click.option("--debug", is_flag=True, help="Show the traceback of an error.")
    @functools.wraps(command)
    def wrapped(*args: Any, as_json: bool, debug: bool, **options: Any) -> Any:
        del debug  # read by run_verb, which must know it when parsing fails too
        return command(*args, output=Output(as_json=as_json), **options)

    return wrapped


def reading_options(command: Command) -> Command:
    """Add what a run over a data set takes: batch size, epochs, order, memory."""
    options = [
        click.option("--batch-size", default=256, show_default=True, type=click.IntRange(1)),
        click.option("--epochs", default=1, show_default=True, type=click.IntRange(1)),
        click.option("--seconds", type=float, help="Stop after so many seconds."),
        click.option(
            "--shuffle",
            type=click.Choice(["window", "global", "none"]),
            default="window",
            show_default=True,
        ),
        click.option("--seed", default=0, show_default=True, type=click.IntRange(0)),
        click.option("--split", help="Split of a data set that has several."),
        click.option("--memory-limit", default="1gib", show_default=True, type=SIZE),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def storage_options(command: Command) -> Command:
    """Add the options of the storage; the command receives ``storage_options``, a dict."""

    @click.option("--endpoint-url", metavar="URL", help="Address of an S3-compatible server.")
    @click.option("--region", help="Region of the bucket.")
    @click.option("--profile", help="Profile of the AWS configuration that has the keys.")
    @click.option("--anonymous", is_flag=True, help="Read a public bucket without keys.")
    @click.option(
        "--path-style/--virtual-hosted",
        default=None,
        help="Name the bucket in the path, or in the host name.",
    )
    @click.option(
        "--storage-option",
        "pairs",
        multiple=True,
        metavar="NAME=VALUE",
        help="Any other option of the storage, e.g. max_connections=32. May be repeated.",
    )
    @functools.wraps(command)
    def wrapped(
        *args: Any,
        endpoint_url: str | None,
        region: str | None,
        profile: str | None,
        anonymous: bool,
        path_style: bool | None,
        pairs: tuple[str, ...],
        **options: Any,
    ) -> Any:
        storage: dict[str, Any] = dict(_parse_pair(pair) for pair in pairs)
        named = {
            "endpoint_url": endpoint_url,
            "region": region,
            "profile": profile,
            "path_style": path_style,
        }
        storage.update({name: value for name, value in named.items() if value is not None})
        if anonymous:
            storage["anonymous"] = True
        return command(*args, storage_options=storage, **options)

    return wrapped


def _parse_pair(pair: str) -> tuple[str, str | int | float | bool]:
    name, equals, value = pair.partition("=")
    if not equals or not name:
        raise click.BadParameter(
            f"must look like NAME=VALUE, got {pair!r}", param_hint="--storage-option"
        )
    name = name.strip().replace("-", "_")
    return name, value if _is_text_option(name) else _parse_value(value)


def _is_text_option(name: str) -> bool:
    """Tell whether a value stays text even if it looks like a number, as keys may."""
    return name.startswith("aws_") or name in {"endpoint_url", "region", "profile"}


def _parse_value(text: str) -> str | int | float | bool:
    """Return a number or a truth value where the text is one: options are checked by type."""
    if text.lower() in {"true", "false"}:
        return text.lower() == "true"
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text

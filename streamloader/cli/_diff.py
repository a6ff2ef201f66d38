"""``streamloader diff``: what differs between two data sets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from streamloader.cli._options import output_options, storage_options
from streamloader.cli._output import ExitCode, Output, printable

if TYPE_CHECKING:
    from streamloader.convert import Difference

_KEYS_SHOWN = 10


@click.command()
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@storage_options
@output_options
def command(a: str, b: str, storage_options: dict[str, Any], output: Output) -> ExitCode:
    """Say what differs between the data sets A and B, by the keys and hashes of their samples.

    Ends with 1 where they differ in samples, fields or classes; another order alone is none.
    """
    from streamloader.convert import compare

    found = compare(a, b, storage_options=storage_options)
    output.result(found.to_json(), _lines(found))
    return ExitCode.DONE if found.same else ExitCode.FOUND_WRONG


def _lines(found: Difference) -> Iterator[str]:
    verdict = "the same samples" if found.same else "different"
    yield f"{verdict}: A has {found.samples_a:,}, B {found.samples_b:,}"
    yield from (printable(sentence) for sentence in (*found.schema, *found.classes))
    for name, keys in (
        ("added", found.added),
        ("removed", found.removed),
        ("changed", found.changed),
    ):
        if keys:
            yield f"{name}: {len(keys):,}"
            yield from (printable(f"  {key}") for key in keys[:_KEYS_SHOWN])
    if found.moved:
        yield f"at another place: {found.moved:,}"

"""What a verb prints, and how it ends.

Standard output carries the result alone: the text for people, or with ``--json`` exactly one
JSON object. Notes, warnings, progress and errors go to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import click

from streamloader.errors import SampleError, ShardError, StreamLoaderError

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PROGRESS_AFTER_S = 2.0


class ExitCode(IntEnum):
    """How a verb ended."""

    DONE = 0
    FOUND_WRONG = 1
    COULD_NOT_RUN = 2
    INTERRUPTED = 130


class FoundWrong(click.ClickException):
    """A verb ran, found something wrong, and has no result; it ends with 1.

    Args:
        message: one sentence.
        values: what ``--json`` says besides the error.
    """

    exit_code = ExitCode.FOUND_WRONG

    def __init__(self, message: str, values: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.values = values


def printable(text: str) -> str:
    """Return text that any terminal can show: control and undecodable characters escaped."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii")
        for c in text
    )


class Output:
    """The two output streams of one verb.

    Args:
        as_json: the result is one JSON object instead of text.
    """

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json

    def note(self, text: str) -> None:
        """Print a line for people on standard error."""
        click.echo(text, err=True)

    def warn(self, text: str) -> None:
        """Print a warning on standard error."""
        click.echo(f"warning: {text}", err=True)

    def result(self, values: Mapping[str, Any], lines: Iterable[str]) -> None:
        """Print the verb's one result: ``values`` with ``--json``, else ``lines``."""
        if self.as_json:
            _write_stdout(json.dumps(values, allow_nan=False))
        else:
            _write_stdout("\n".join(lines))

    @contextmanager
    def progress(self, description: str, unit: str = "samples") -> Iterator[ProgressBar]:
        """Show how far a long job is: on a terminal, from the third second on."""
        bar = ProgressBar(description, unit, enabled=sys.stderr.isatty())
        try:
            yield bar
        finally:
            bar.close()


class ProgressBar:
    """A bar on standard error; ``update`` may be called from any one thread, often."""

    def __init__(self, description: str, unit: str, *, enabled: bool) -> None:
        self._description = description
        self._unit = unit
        self._enabled = enabled
        self._show_at_s = time.monotonic() + PROGRESS_AFTER_S
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def update(self, done: int, total: int | None = None) -> None:
        """Say that ``done`` of ``total`` are done."""
        if not self._enabled or time.monotonic() < self._show_at_s:
            return
        if self._progress is None or self._task is None:
            self._progress = self._start()
            self._task = self._progress.add_task(self._description, total=total)
        self._progress.update(self._task, completed=done, total=total)

    def _start(self) -> Progress:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeRemainingColumn as Remaining

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(self._unit),
            Remaining(),
        )
        progress = Progress(*columns, console=Console(stderr=True), transient=True)
        progress.start()
        return progress

    def close(self) -> None:
        """Take the bar away."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def run_verb(click_main: Callable[..., Any], args: Sequence[str] | None, **extra: Any) -> None:
    """Run a click command and end the process with the exit code that its outcome asks for."""
    argv = list(sys.argv[1:] if args is None else args)
    flags = set(argv[: argv.index("--")] if "--" in argv else argv)
    extra["standalone_mode"] = False
    try:
        returned = click_main(argv, **extra)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(ExitCode.INTERRUPTED)
    except Exception as error:  # noqa: BLE001  it becomes the sentence and the exit code
        sys.exit(_report(error, as_json="--json" in flags, debug="--debug" in flags))
    sys.exit(returned if isinstance(returned, int) else ExitCode.DONE)


def _report(error: Exception, *, as_json: bool, debug: bool) -> ExitCode:
    """Print an error as one sentence and return the exit code for it."""
    if debug:
        traceback.print_exception(error, file=sys.stderr)
    if isinstance(error, click.ClickException):
        message = printable(error.format_message()).rstrip(".")
        if isinstance(error, click.UsageError) and error.ctx is not None:
            message += f" (see: {error.ctx.command_path} --help)"
    else:
        message = printable(_sentence(error))
    click.echo(f"error: {message}", err=True)
    if as_json:
        where = getattr(error, "url", None) or getattr(error, "shard", None)
        kind = type(error.__cause__ if isinstance(error, FoundWrong) else error).__name__
        described = {"kind": kind, "message": message, "where": where}
        values = error.values if isinstance(error, FoundWrong) else {}
        _write_stdout(json.dumps({"error": described, **values}))
    return _exit_code(error)


def _sentence(error: Exception) -> str:
    if isinstance(error, StreamLoaderError) or _is_storage_error(error):
        return str(error)
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename is not None else ""
        return f"{place}{error.strerror or error}"
    return f"unexpected {type(error).__name__}: {error}; run again with --debug and report it"


def _exit_code(error: Exception) -> ExitCode:
    """Return 1 where the data is at fault, 2 where the command could not run."""
    if isinstance(error, (ShardError, SampleError, FoundWrong)):
        return ExitCode.FOUND_WRONG
    if _is_storage_error(error):
        from storage_backends import Changed, NotFound, Truncated

        if isinstance(error, (Truncated, Changed)):
            return ExitCode.FOUND_WRONG
        if isinstance(error, NotFound) and str(getattr(error, "url", "")).endswith(".dts"):
            return ExitCode.FOUND_WRONG
    return ExitCode.COULD_NOT_RUN


def _is_storage_error(error: Exception) -> bool:
    """Tell whether the storage raised it, without importing the storage for other errors."""
    storage = sys.modules.get("storage_backends")
    return storage is not None and isinstance(error, storage.StorageError)


def _write_stdout(text: str) -> None:
    """Write a line; a reader that went away early (``… | head``) is not an error."""
    stream = sys.stdout
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="backslashreplace")
    try:
        stream.write(text + "\n")
        stream.flush()
    except BrokenPipeError:
        # The interpreter flushes standard output once more at exit, which would fail again.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)

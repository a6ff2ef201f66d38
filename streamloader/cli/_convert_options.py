"""Options that ``convert`` and ``append`` share: what is read, and what is done to pictures."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import click

from streamloader.cli._options import Command

#: As ``streamloader.convert.SOURCE_KINDS``, which would take the help half a second to import.
SOURCE_KINDS = ("auto", "folder", "webdataset", "mds", "parquet", "arrow", "dts", "dts-v3")


def source_options(command: Command) -> Command:
    """Add what says what SRC is; the command receives ``source``, arguments of ``convert``."""

    @click.option(
        "--from",
        "source_kind",
        type=click.Choice(SOURCE_KINDS),
        default="auto",
        show_default=True,
        help="What SRC is; auto goes by what is there.",
    )
    @click.option(
        "--labels",
        metavar="FILE",
        help="CSV, JSONL or Parquet with a row of labels or captions for each picture.",
    )
    @click.option(
        "--keep-class", "keep_classes", multiple=True, metavar="NAME", help="May be repeated."
    )
    @click.option(
        "--keep-keys",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Keep the samples whose keys FILE has, one a line.",
    )
    @click.option("--split", help="Keep this split of SRC only.")
    @functools.wraps(command)
    def wrapped(
        *args: Any,
        source_kind: str,
        labels: str | None,
        keep_classes: tuple[str, ...],
        keep_keys: Path | None,
        split: str | None,
        **options: Any,
    ) -> Any:
        source = {
            "source_kind": source_kind,
            "labels": labels,
            "keep_classes": keep_classes or None,
            "keep_keys": None if keep_keys is None else _read_keys(keep_keys),
            "split": split,
        }
        return command(*args, source=source, **options)

    return wrapped


def picture_options(command: Command) -> Command:
    """Add what is done to pictures; the command receives ``pictures``, a ``PictureOptions``."""

    @click.option(
        "--resize-short",
        type=int,
        metavar="N",
        help="Shrink pictures whose short side is above N pixels, antialiased.",
    )
    @click.option(
        "--quality", type=int, metavar="Q", help="Of JPEGs encoded anew; 90 if not given."
    )
    @click.option("--orient", is_flag=True, help="Turn pictures as their EXIF says.")
    @click.option(
        "--lossless-baseline",
        is_flag=True,
        help="Rewrite progressive JPEGs as baseline ones, the pixels the same.",
    )
    @click.option("--to-jpeg", is_flag=True, help="Encode PNG, WebP and others as JPEG.")
    @functools.wraps(command)
    def wrapped(
        *args: Any,
        resize_short: int | None,
        quality: int | None,
        orient: bool,
        lossless_baseline: bool,
        to_jpeg: bool,
        **options: Any,
    ) -> Any:
        from streamloader.convert import PictureOptions

        pictures = PictureOptions(resize_short, quality, orient, lossless_baseline, to_jpeg)
        return command(*args, pictures=pictures, **options)

    return wrapped


def _read_keys(path: Path) -> list[str]:
    text = path.read_bytes().decode("utf-8", "surrogateescape")
    return [line for line in text.split("\n") if line]

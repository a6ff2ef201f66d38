"""Options that ``convert`` and ``append`` share: what is read, how it is stored, and pictures."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import click

from streamloader.cli._options import SIZE, Command

#: As ``streamloader.convert.SOURCE_KINDS``, which would take the help half a second to import.
SOURCE_KINDS = ("auto", "folder", "webdataset", "mds", "parquet", "arrow", "dts", "dts-v3")
#: As ``streamloader.convert.engines.ENGINES``.
ENGINES = ("local", "ray")


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
        help="CSV, JSONL or Parquet, a path or URL, with a row of labels or captions per picture.",
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


_STORING_OPTIONS = [
    click.option(
        "--shard-bytes",
        "--shard-size",
        type=SIZE,
        default="128mib",
        show_default=True,
        help="Largest shard.",
    ),
    click.option(
        "--seed",
        "--shuffle-seed",
        type=int,
        default=0,
        show_default=True,
        help="Seed of the stored order.",
    ),
    click.option("--no-shuffle", is_flag=True, help="Keep the order of SRC."),
    click.option("--jobs", "-j", type=int, help="Threads; as many as usable CPUs if not given."),
    click.option(
        "--decode-check/--no-decode-check",
        default=True,
        show_default=True,
        help="Decode every picture before it is stored.",
    ),
    click.option(
        "--codec",
        "codecs",
        multiple=True,
        metavar="none|zstd|FIELD=zstd",
        help="Compress every field but pictures, or the field named. May be repeated.",
    ),
    click.option(
        "--zstd-level", type=int, metavar="N", help="1 to 22, with codec zstd; 3 if not given."
    ),
    click.option(
        "--max-rejects", type=int, metavar="N", help="Stop after more bad samples than N."
    ),
    click.option(
        "--engine",
        type=click.Choice(ENGINES),
        default=ENGINES[0],
        show_default=True,
        help="Work on this machine, or on a Ray cluster.",
    ),
]


def storing_options(command: Command) -> Command:
    """Add how samples are stored; the command receives ``storing``, arguments of ``convert``."""

    @functools.wraps(command)
    def wrapped(
        *args: Any,
        shard_bytes: int,
        seed: int,
        no_shuffle: bool,
        jobs: int | None,
        decode_check: bool,
        codecs: tuple[str, ...],
        zstd_level: int | None,
        max_rejects: int | None,
        engine: str,
        **others: Any,
    ) -> Any:
        storing = {
            "shard_bytes": shard_bytes,
            "shuffle_seed": None if no_shuffle else seed,
            "jobs": jobs,
            "decode_check": decode_check,
            "codec": _codec_choice(codecs),
            "zstd_level": zstd_level,
            "max_rejects": max_rejects,
            "engine": engine,
        }
        return command(*args, storing=storing, **others)

    for option in reversed(_STORING_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


def _codec_choice(codecs: tuple[str, ...]) -> dict[str, str] | None:
    """Return the codec by field, ``*`` for the fields that are not named; None for no option."""
    choice: dict[str, str] = {}
    for text in codecs:
        name, _, codec = text.rpartition("=")
        field = name.strip() or "*"
        if choice.setdefault(field, codec.strip()) != codec.strip():
            raise click.BadParameter(f"two codecs for one field: {text!r}", param_hint="--codec")
    return choice or None


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

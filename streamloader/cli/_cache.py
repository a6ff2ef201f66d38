"""``streamloader cache``: what a block cache holds, and how to make it smaller."""

from __future__ import annotations

import os
from collections import defaultdict
from datetime import UTC, datetime
from typing import Any

import click

from streamloader.cli._options import SIZE, output_options
from streamloader.cli._output import ExitCode, Output
from streamloader.errors import ConfigError
from streamloader.fetch.cache_files import (
    CachedBlock,
    cached_blocks,
    remove_blocks,
    remove_stale,
    require_folder,
)


@click.group()
def command() -> None:
    """Show and empty the folder given as cache_dir; only its blocks are ever removed.

    Each of the commands takes --json.
    """


@command.command()
@click.argument("cache_dir", type=click.Path())
@output_options
def ls(cache_dir: str, output: Output) -> int:
    """Show the data sets in CACHE_DIR."""
    return _show(output, _blocks(cache_dir))


@command.command()
@click.argument("cache_dir", type=click.Path())
@click.option("--cache-limit", required=True, type=SIZE, help="What may stay, e.g. 200gb.")
@output_options
def prune(cache_dir: str, cache_limit: int, output: Output) -> int:
    """Remove the blocks of CACHE_DIR that were not used for longest, until it has this size."""
    blocks = sorted(_blocks(cache_dir), key=lambda block: block.used_s)
    surplus = sum(block.nbytes for block in blocks) - cache_limit
    return _remove(cache_dir, blocks, max(0, surplus), output)


@command.command()
@click.argument("cache_dir", type=click.Path())
@click.option("--dataset", "fingerprint", help="Fingerprint of the one data set to remove.")
@output_options
def clear(cache_dir: str, fingerprint: str | None, output: Output) -> int:
    """Remove every block of CACHE_DIR."""
    blocks = _blocks(cache_dir)
    if fingerprint is not None:
        blocks = [block for block in blocks if block.fingerprint == fingerprint]
        if not blocks:
            raise ConfigError(f"no data set {fingerprint!r} in {cache_dir}; see `cache ls`")
    return _remove(cache_dir, blocks, None, output)


def _blocks(cache_dir: str) -> list[CachedBlock]:
    require_folder(cache_dir)
    try:
        return list(cached_blocks(os.path.abspath(cache_dir)))
    except OSError as error:
        raise ConfigError(f"cannot read {cache_dir}: {error.strerror}") from error


def _remove(cache_dir: str, blocks: list[CachedBlock], nbytes: int | None, output: Output) -> int:
    try:
        remove_stale(os.path.abspath(cache_dir))
        removed = remove_blocks(blocks, nbytes)
    except OSError as error:
        raise ConfigError(f"cannot remove blocks of {cache_dir}: {error.strerror}") from error
    return _show(output, _blocks(cache_dir), removed)


def _show(output: Output, blocks: list[CachedBlock], removed: int | None = None) -> int:
    data_sets: dict[str, list[CachedBlock]] = defaultdict(list)
    for block in blocks:
        data_sets[block.fingerprint].append(block)
    rows: list[dict[str, Any]] = []
    for fingerprint, held in sorted(data_sets.items()):
        used = datetime.fromtimestamp(max(block.used_s for block in held), UTC)
        rows.append(
            {
                "fingerprint": fingerprint,
                "bytes": sum(block.nbytes for block in held),
                "blocks": len(held),
                "last_used": used.isoformat(timespec="seconds"),
            }
        )
    values: dict[str, Any] = {
        "bytes": sum(block.nbytes for block in blocks),
        "blocks": len(blocks),
        "datasets": rows,
    }
    lines = [
        f"{row['fingerprint'][:16]}  {row['bytes'] / 1e6:,.1f} MB in {row['blocks']:,} blocks,"
        f" last used {row['last_used']}"
        for row in rows
    ]
    lines.append(f"{values['bytes'] / 1e6:,.1f} MB in {values['blocks']:,} blocks")
    if removed is not None:
        values["removed_bytes"] = removed
        lines.append(f"removed {removed / 1e6:,.1f} MB")
    output.result(values, lines)
    return ExitCode.DONE

"""Checks where a conversion reads from and writes to."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from streamloader.convert.report import utf8_name
from streamloader.errors import ConfigError

Sources = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def source_paths(src: Sources) -> tuple[str, ...]:
    """Return the paths or URLs of the sources.

    Raises:
        ConfigError: there is none.
    """
    paths = (src,) if isinstance(src, str | os.PathLike) else tuple(src)
    if not paths:
        raise ConfigError("no source was given; give at least one")
    return tuple(os.fspath(path) for path in paths)


def refuse_nesting(src: str, url: str) -> None:
    """Refuse a destination inside the source: the next run would find its shards there.

    Raises:
        ConfigError: it is.
    """
    if "://" in url:
        if src == url or url.startswith(src.rstrip("/") + "/"):
            raise _inside(src, url)
        return
    source, dest = Path(os.path.realpath(src)), Path(os.path.realpath(url))
    if dest.is_relative_to(source):
        raise _inside(src, url)


def _inside(src: str, url: str) -> ConfigError:
    return ConfigError(
        f"the destination {url} is inside the source {utf8_name(src)}; choose a place outside of it"
    )

"""Which split a file of a source belongs to, by its name."""

from __future__ import annotations

import re
from collections.abc import Iterable

from streamloader.convert.report import utf8_name
from streamloader.convert.sources.folder_scan import SPLIT_NAMES
from streamloader.convert.sources.places import Place, SourceFile
from streamloader.errors import ConfigError

_NAMED = re.compile(rf"({'|'.join(sorted(SPLIT_NAMES))})(?=[-_.])")


def files_by_split(
    place: Place, files: Iterable[SourceFile], suffix: str
) -> dict[str | None, list[SourceFile]]:
    """Return the files with a suffix by split, both in code-point order of the names.

    A file in a top folder named train, val, validation or test, or whose name begins with one of
    these and ``-``, ``_`` or ``.``, belongs to that split.

    Raises:
        ConfigError: no such file, or only some of them belong to a split.
    """
    found: dict[str | None, list[SourceFile]] = {}
    for file in files:
        if file.path.lower().endswith(suffix):
            found.setdefault(_split_of(file.path), []).append(file)
    if not found:
        raise ConfigError(f"no file that ends in {suffix} in {utf8_name(place.url)}")
    if None in found and len(found) > 1:
        raise ConfigError(
            f"{utf8_name(place.url)} has files of a split and others, such as"
            f" {utf8_name(found[None][0].path)}; put all of them into train, val or test"
        )
    return dict(sorted(found.items(), key=lambda item: item[0] or ""))


def _split_of(path: str) -> str | None:
    top, slash, _ = path.partition("/")
    if slash and top in SPLIT_NAMES:
        return top
    named = _NAMED.match(path.rpartition("/")[2])
    return named[1] if named else None

"""Finds out what kind of source a path or URL is."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from storage_backends import NotFound, open_store
from streamloader.convert.report import utf8_name
from streamloader.convert.sources.folder_scan import SPLIT_NAMES
from streamloader.convert.sources.places import Bucket, Folder, Place, is_in_bucket, open_place
from streamloader.dts import POINTER_NAME
from streamloader.errors import ConfigError
from streamloader.fetch import LoopThread

_SUFFIXES = {
    ".tar": "webdataset",
    ".mds": "mds",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".dts": "dts-v3",
}
_PACKED_TARS = (".tar.gz", ".tgz", ".tar.zst", ".tar.bz2", ".tar.xz", ".tar.lz4")
_NAMES_LOOKED_AT = 10_000


@dataclass(frozen=True, slots=True)
class Detected:
    """A source of a known kind.

    Args:
        kind: one of ``SOURCE_KINDS`` but ``"auto"``.
        place: where it is.
    """

    kind: str
    place: Place


def detect(path: str, kind: str, options: Mapping[str, Any]) -> Detected:
    """Return the kind of a source, and the place of its files.

    A single file is known by its ending. A folder or prefix with ``latest.json`` is a data set
    of ours, one with ``index.json`` MDS; else, if all files that lie in it, or in the folders
    train, val, validation and test of it, are tar, Parquet, Arrow or original DTS files, it is
    of that kind; every other is a folder of pictures.

    Args:
        path: a path or URL.
        kind: what the user says; ``"auto"`` to find out.
        options: of ``open_store``, for buckets.

    Raises:
        ConfigError: a file of an unknown kind.
        StorageError: the bucket cannot be read.
    """
    is_object = is_in_bucket(path) and _suffix_kind(path) is not None
    place = open_place(path, options, is_object=is_object)
    if kind != "auto":
        return Detected(kind, place)
    if isinstance(place, Bucket):
        known = _suffix_kind(path) if is_object else _kind_of_names(_bucket_names(place))
        return Detected(known or "folder", place)
    assert isinstance(place, Folder)
    if place.only is not None:
        return Detected(_kind_of_file(path), place)
    return Detected(_kind_of_names(_folder_names(place.url)), place)


def _kind_of_file(path: str) -> str:
    kind = _suffix_kind(path)
    if kind is None:
        raise ConfigError(
            f"the source {utf8_name(path)} is a file that is no known kind of data; give a folder,"
            " or a file that ends in .tar, .parquet, .arrow or .dts"
        )
    return kind


def _suffix_kind(path: str) -> str | None:
    lower = path.lower()
    if lower.endswith(_PACKED_TARS):
        raise ConfigError(
            f"the source {utf8_name(path)} is a compressed tar, whose members cannot be read"
            " alone; unpack it to a plain .tar first"
        )
    return _SUFFIXES.get(os.path.splitext(lower)[1])


def _kind_of_names(names: Iterable[str]) -> str:
    """Return the kind that the names of files, relative to the source, stand for."""
    kinds: set[str | None] = set()
    for name in names:
        folder, _, base = name.rpartition("/")
        if folder and folder.split("/")[0] not in SPLIT_NAMES:
            continue
        if name == POINTER_NAME:
            return "dts"
        if base == "index.json":
            return "mds"
        if base.endswith((".json", ".md", ".txt", ".yaml", ".csv", ".lock")) or base[:1] in "._":
            continue
        kinds.add(_suffix_kind(base))
    found = kinds.pop() if len(kinds) == 1 else None
    return found or "folder"


def _folder_names(root: str) -> list[str]:
    """Return names in a folder and in those of its folders that are splits; few of each."""
    if not os.path.isdir(root):
        return []
    names = []
    for entry in os.scandir(root):
        if entry.is_dir() and entry.name in SPLIT_NAMES:
            names += [f"{entry.name}/{name}" for name in os.listdir(entry.path)[:_NAMES_LOOKED_AT]]
        elif entry.is_file():
            names.append(entry.name)
    return names


def _bucket_names(bucket: Bucket) -> list[str]:
    async def first_names() -> list[str]:
        names: list[str] = []
        async with open_store(bucket.url, **bucket.options) as store:
            await store.check()
            for special in (POINTER_NAME, "index.json"):
                try:
                    await store.info(special)
                except NotFound:
                    continue
                return [special]
            async for info in store.list():
                names.append(info.key)
                if len(names) == _NAMES_LOOKED_AT:
                    break
        return names

    with LoopThread("detect-loop") as loop:
        return loop.run(first_names())

"""Opens a source: which kind it is, and what of it is kept."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streamloader.convert.sources.detection import detect
from streamloader.convert.sources.folder import FolderSource
from streamloader.convert.sources.joined import join_sources
from streamloader.convert.sources.places import Place
from streamloader.convert.sources.selected import select_samples
from streamloader.convert.sources.source import Source
from streamloader.errors import ConfigError

SOURCE_KINDS = ("auto", "folder", "webdataset", "mds", "parquet", "arrow", "dts", "dts-v3")


@dataclass(frozen=True, slots=True)
class SourceChoice:
    """What of a source is converted.

    Args:
        kind: one of ``SOURCE_KINDS``; ``"auto"`` goes by what is there.
        labels: a table with a row for each picture of a folder.
        keep_classes: names of the classes whose samples are kept; None keeps all.
        keep_keys: keys of the samples that are kept; None keeps all.
        split: the only split to keep.
    """

    kind: str = "auto"
    labels: str | os.PathLike[str] | None = None
    keep_classes: tuple[str, ...] | None = None
    keep_keys: frozenset[str] | None = None
    split: str | None = None

    @staticmethod
    def of(
        kind: str,
        labels: str | os.PathLike[str] | None,
        keep_classes: Iterable[str] | None,
        keep_keys: Iterable[str] | None,
        split: str | None,
    ) -> SourceChoice:
        """The choice, with classes and keys in any collection."""
        classes = None if keep_classes is None else tuple(keep_classes)
        keys = None if keep_keys is None else frozenset(keep_keys)
        return SourceChoice(kind, labels, classes, keys, split)

    def __post_init__(self) -> None:
        if self.kind not in SOURCE_KINDS:
            raise ConfigError(
                f"the kind of a source is one of {', '.join(SOURCE_KINDS)}, got {self.kind!r}"
            )
        if self.labels is not None and self.kind not in ("auto", "folder"):
            raise ConfigError(f"a table of labels goes with a folder of pictures, not {self.kind}")


def open_source(paths: Sequence[str], choice: SourceChoice, options: Mapping[str, Any]) -> Source:
    """List what is to be converted.

    Args:
        paths: one source, or several to be joined.
        choice: what of it is kept.
        options: of ``open_store``, for sources in buckets.

    Raises:
        ConfigError: a source that is not there or cannot be understood.
        ShardError: a data set or shard that is damaged.
        StorageError: a bucket cannot be read.
    """
    sources = [_open_one(path, choice, options) for path in paths]
    joined = sources[0] if len(sources) == 1 else join_sources(sources, paths)
    return select_samples(
        joined, classes=choice.keep_classes, keys=choice.keep_keys, split=choice.split
    )


def _open_one(path: str, choice: SourceChoice, options: Mapping[str, Any]) -> Source:
    if choice.labels is not None:
        from streamloader.convert.sources.labelled import LabelledFolder

        return LabelledFolder.scan(detect(path, "folder", options).place, choice.labels, options)
    found = detect(path, choice.kind, options)
    return _OPENERS[found.kind](found.place, options)


def _open_folder(place: Place, _options: Mapping[str, Any]) -> Source:
    return FolderSource.scan(place)


# Imported on use: a folder of pictures needs none of the libraries of the others.
def _open_webdataset(place: Place, _options: Mapping[str, Any]) -> Source:
    from streamloader.convert.sources.webdataset import WebDatasetSource

    return WebDatasetSource.scan(place)


def _open_mds(place: Place, _options: Mapping[str, Any]) -> Source:
    from streamloader.convert.sources.mds import MdsSource

    return MdsSource.scan(place)


def _open_parquet(place: Place, _options: Mapping[str, Any]) -> Source:
    from streamloader.convert.sources.tables import TableSource

    return TableSource.scan(place, "parquet")


def _open_arrow(place: Place, _options: Mapping[str, Any]) -> Source:
    from streamloader.convert.sources.tables import TableSource

    return TableSource.scan(place, "arrow")


def _open_dts(place: Place, options: Mapping[str, Any]) -> Source:
    from streamloader.convert.sources.dataset import DatasetSource

    return DatasetSource.scan(place.url, options)


def _open_dts_v3(place: Place, _options: Mapping[str, Any]) -> Source:
    from streamloader.convert.sources.dts_v3 import DtsV3Source

    return DtsV3Source.scan(place)


_OPENERS: dict[str, Callable[[Place, Mapping[str, Any]], Source]] = {
    "folder": _open_folder,
    "webdataset": _open_webdataset,
    "mds": _open_mds,
    "parquet": _open_parquet,
    "arrow": _open_arrow,
    "dts": _open_dts,
    "dts-v3": _open_dts_v3,
}

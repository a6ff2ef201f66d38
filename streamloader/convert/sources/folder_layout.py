"""Says what a scanned folder is: which splits it has, and which label each picture has."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from streamloader.convert.report import Rejected, utf8_name
from streamloader.convert.sources.folder_scan import LAYOUT_WANTED, SPLIT_NAMES, Tree, scan
from streamloader.convert.sources.places import Folder, Place, SourceFile
from streamloader.errors import ConfigError

_NAMES_IN_WARNING = 5


@dataclass(frozen=True, slots=True)
class FolderSplit:
    """The pictures of one split, in code-point order of their paths.

    Args:
        name: ``train``, ``val``, …; None for a source without splits.
        pictures: the files.
        labels: int64 ``[len(pictures)]``, index into the classes; None for flat sources.
    """

    name: str | None
    pictures: tuple[SourceFile, ...]
    labels: npt.NDArray[np.int64] | None


@dataclass(frozen=True, slots=True)
class FolderLayout:
    """A folder as the converter understands it.

    Args:
        splits: at least one; the only one has no name where the source has no splits.
        classes: names of the class folders in code-point order, the same list for all splits;
            empty for flat sources.
        rejects: what the scan left out.
        warnings: sentences for the user.
    """

    splits: tuple[FolderSplit, ...]
    classes: tuple[str, ...]
    rejects: tuple[Rejected, ...]
    warnings: tuple[str, ...]


def read_layout(place: Place, *, mixed: bool = False) -> FolderLayout:
    """Scan a folder and decide what it is.

    The top-level folders are splits if all of them are named train, val, validation or test;
    else they are classes. Pictures that lie in no class folder make a flat source without
    labels; a mixture of both is refused.

    Args:
        place: the folder or bucket.
        mixed: allow a mixture, where labels come from elsewhere; there are no classes then.

    Raises:
        ConfigError: no folder, no pictures in it, a mixture of layouts, or not readable.
        StorageError: the bucket cannot be read.
    """
    if isinstance(place, Folder):
        require_folder(os.path.join(place.url, place.only) if place.only else place.url)
    root = utf8_name(place.url)
    tree = scan(place)
    if not tree.pictures:
        raise ConfigError(f"no pictures in {root}; {LAYOUT_WANTED}")
    prefixes = _split_prefixes(tree)
    class_lists = [_class_folders(tree, prefix) for prefix in prefixes]
    groups = [_group(tree, prefix) for prefix in prefixes]
    flat = mixed or _is_flat(root, groups, prefixes)
    classes = () if flat else tuple(sorted(set().union(*class_lists)))
    splits = tuple(
        FolderSplit(prefix.rstrip("/") or None, pictures, _labels(pictures, prefix, classes))
        for prefix, pictures in zip(prefixes, groups, strict=True)
        if pictures
    )
    _check_class_names(classes)
    warnings = (*_warn_empty(prefixes, groups, splits, classes), *_warn_repeated(tree))
    return FolderLayout(splits, classes, tuple(tree.rejects), warnings)


def require_folder(root: str | os.PathLike[str]) -> Path:
    """Return the source as a path.

    Raises:
        ConfigError: it is not a folder.
    """
    root = Path(root)
    if not root.is_dir():
        what = "is not a folder" if os.path.lexists(root) else "does not exist"
        raise ConfigError(f"the source {utf8_name(str(root))} {what}; {LAYOUT_WANTED}")
    return root


def _split_prefixes(tree: Tree) -> list[str]:
    """Return the path prefixes of the splits; one empty prefix for a source without splits."""
    top = sorted(folder for folder in tree.folders if "/" not in folder)
    loose = any("/" not in picture.path for picture in tree.pictures)
    if top and not loose and SPLIT_NAMES.issuperset(top):
        return [f"{folder}/" for folder in top]
    return [""]


def _class_folders(tree: Tree, prefix: str) -> set[str]:
    below = (folder[len(prefix) :] for folder in tree.folders if folder.startswith(prefix))
    return {folder for folder in below if folder and "/" not in folder}


def _group(tree: Tree, prefix: str) -> tuple[SourceFile, ...]:
    return tuple(picture for picture in tree.pictures if picture.path.startswith(prefix))


def _is_flat(root: str, groups: Iterable[tuple[SourceFile, ...]], prefixes: list[str]) -> bool:
    """Tell whether no picture is in a class folder; refuse a mixture."""
    loose: str | None = None
    filed: str | None = None
    for pictures, prefix in zip(groups, prefixes, strict=True):
        for picture in pictures:
            if "/" in picture.path[len(prefix) :]:
                filed = filed or picture.path
            else:
                loose = loose or picture.path
    if loose is not None and filed is not None:
        raise ConfigError(
            f"{root} has pictures inside class folders ({utf8_name(filed)}) and"
            f" outside of any ({utf8_name(loose)}), so labels would be a guess; move them into"
            " class folders or convert the two apart"
        )
    return filed is None


def _labels(
    pictures: tuple[SourceFile, ...], prefix: str, classes: tuple[str, ...]
) -> npt.NDArray[np.int64] | None:
    if not classes:
        return None
    index = {name: label for label, name in enumerate(classes)}
    start = len(prefix)
    names = (picture.path[start : picture.path.index("/", start)] for picture in pictures)
    return np.fromiter((index[name] for name in names), dtype=np.int64, count=len(pictures))


def _check_class_names(classes: tuple[str, ...]) -> None:
    """Refuse two class folders that the manifest, which is UTF-8, could not tell apart."""
    seen: dict[str, str] = {}
    for name in classes:
        other = seen.setdefault(utf8_name(name), name)
        if other != name:
            raise ConfigError(
                f"two class folders are both written {utf8_name(name)!r}, one of them is not"
                " UTF-8; rename one"
            )


def _warn_empty(
    prefixes: list[str],
    groups: list[tuple[SourceFile, ...]],
    splits: tuple[FolderSplit, ...],
    classes: tuple[str, ...],
) -> list[str]:
    warnings = [
        f"the split {prefix.rstrip('/')} has no pictures and is left out"
        for prefix, pictures in zip(prefixes, groups, strict=True)
        if not pictures
    ]
    for split in splits:
        if split.labels is None:
            continue
        counts = np.bincount(split.labels, minlength=len(classes))
        empty = [utf8_name(classes[label]) for label in np.flatnonzero(counts == 0)]
        if empty:
            place = f" in {split.name}" if split.name else ""
            plural = len(empty) > 1
            warnings.append(
                f"{'classes' if plural else 'class'} without pictures{place}: {_some(empty)};"
                f" {'they keep their labels' if plural else 'it keeps its label'}"
            )
    return warnings


def _warn_repeated(tree: Tree) -> list[str]:
    if not tree.repeated:
        return []
    names = [utf8_name(path) for path in sorted(tree.repeated)]
    return [f"links to folders that are read already are not followed: {_some(names)}"]


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:_NAMES_IN_WARNING])
    more = len(names) - _NAMES_IN_WARNING
    return f"{shown} and {more} more" if more > 0 else shown

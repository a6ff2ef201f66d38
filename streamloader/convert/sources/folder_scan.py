"""Scans a folder or bucket of pictures: class folders, a flat folder, or splits of either.

What counts as what is decided here from names, file types and, for names that do not claim to
be pictures, the first bytes; whether a picture is sound is found out when it is read.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from streamloader.convert.report import Rejected, RejectKind, utf8_name
from streamloader.convert.sources.places import (
    Bucket,
    FileRange,
    Folder,
    Place,
    SourceFile,
    is_hidden,
    open_nonblocking,
)
from streamloader.errors import ConfigError

PICTURE_EXTENSIONS = frozenset(
    ".jpg .jpeg .jpe .jfif .png .webp .gif .bmp .tif .tiff .avif .heic .heif .mpo .ppm".split()  # noqa: SIM905  a table of one line
)
SPLIT_NAMES = frozenset({"train", "val", "validation", "test"})

LAYOUT_WANTED = (
    "wanted are class folders (SRC/cat/1.jpg), a flat folder (SRC/1.jpg), or either in"
    " SRC/train and SRC/val"
)

_SNIFF_BYTES = 16
_PICTURE_MARKS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a")


@dataclass(slots=True)
class Tree:
    """Everything below one folder, in code-point order of the paths.

    Args:
        pictures: files taken for pictures.
        rejects: what was left out.
        folders: relative paths of all folders that are not hidden, the root itself left out.
        repeated: links to folders that are read elsewhere; they are not followed again.
    """

    pictures: list[SourceFile] = field(default_factory=list)
    rejects: list[Rejected] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)


def scan(place: Place) -> Tree:
    """List a folder or bucket.

    Raises:
        ConfigError: it, or a folder below it, cannot be read.
        StorageError: the bucket cannot be read.
    """
    if isinstance(place, Bucket):
        return scan_bucket(place)
    assert isinstance(place, Folder)
    return scan_tree(Path(place.url))


def scan_tree(root: Path) -> Tree:
    """List a folder and all folders below it, each once however many links lead to it.

    Folders are entered directly before any link to a folder is followed, so that pictures keep
    the path of the folder they are really in.

    Raises:
        ConfigError: the root, or a folder below it, cannot be read.
    """
    walk = _Walk(root)
    walk.run()
    return _sorted(walk.tree)


def scan_bucket(bucket: Bucket) -> Tree:
    """List what a bucket has below a prefix; its folders are what lies before the slashes.

    Empty objects whose key ends in a slash are the folders of consoles and no samples.
    """
    tree = Tree()
    folders: set[str] = set()
    unnamed: list[SourceFile] = []
    hidden: dict[str, str] = {}
    for file in bucket.list_all():
        parts = file.path.split("/")
        unseen = next((n for n, part in enumerate(parts) if is_hidden(part)), None)
        if unseen is not None:
            is_folder = unseen < len(parts) - 1
            hidden["/".join(parts[: unseen + 1])] = "folder" if is_folder else "file"
            continue
        folders.update("/".join(parts[:n]) for n in range(1, len(parts)))
        if parts[-1] == "" and file.size == 0:
            continue
        if _has_picture_name(parts[-1] or parts[-2]):
            tree.pictures.append(file)
        else:
            unnamed.append(file)
    tree.folders = [folder for folder in folders if folder]
    tree.rejects += [
        Rejected(path, f"hidden {what}", RejectKind.HIDDEN) for path, what in hidden.items()
    ]
    _take_unnamed(bucket, unnamed, tree)
    return _sorted(tree)


def _take_unnamed(bucket: Bucket, files: list[SourceFile], tree: Tree) -> None:
    with bucket.reading() as read:
        starts = read([FileRange(file, 0, min(_SNIFF_BYTES, file.size)) for file in files])
        for file, first in zip(files, starts, strict=True):
            if isinstance(first, bytes) and _starts_a_picture(first):
                tree.pictures.append(file)
            else:
                reason = "not a picture, by its name and first bytes"
                tree.rejects.append(Rejected(file.path, reason, RejectKind.OTHER))


def _sorted(tree: Tree) -> Tree:
    tree.pictures.sort(key=lambda picture: picture.path)
    tree.rejects.sort(key=lambda reject: reject.path)
    tree.folders.sort()
    return tree


class _Walk:
    """One pass over a tree."""

    def __init__(self, root: Path) -> None:
        self._root = os.fspath(root)
        self._visited: set[tuple[int, int]] = set()
        self.tree = Tree()

    def run(self) -> None:
        links = [""]
        while links:
            links.sort()
            found: list[str] = []
            for link in links:
                self._enter_link(link, found)
            links = found

    def _enter_link(self, link: str, found: list[str]) -> None:
        pending = [link]
        while pending:
            folder = pending.pop()
            if not self._first_visit(folder):
                self.tree.repeated.append(folder)
                continue
            if folder:
                self.tree.folders.append(folder)
            prefix = f"{folder}/" if folder else ""
            for entry in self._entries(folder):
                self._take(entry, prefix + entry.name, pending, found)

    def _first_visit(self, folder: str) -> bool:
        with _readable(self._root, folder):
            status = os.stat(os.path.join(self._root, folder))
        identity = (status.st_dev, status.st_ino)
        if identity in self._visited:
            return False
        self._visited.add(identity)
        return True

    def _entries(self, folder: str) -> Iterator[os.DirEntry[str]]:
        with _readable(self._root, folder), os.scandir(os.path.join(self._root, folder)) as entries:
            return iter(list(entries))

    def _take(
        self, entry: os.DirEntry[str], path: str, folders: list[str], links: list[str]
    ) -> None:
        name = entry.name
        if is_hidden(name):
            what = "folder" if entry.is_dir(follow_symlinks=False) else "file"
            self._reject(path, f"hidden {what}", RejectKind.HIDDEN)
            return
        is_picture = _has_picture_name(name)
        try:
            status = entry.stat()
        except OSError as error:
            self._reject(path, _why_no_stat(entry, error), _kind(is_picture))
            return
        mode = status.st_mode
        if stat.S_ISREG(mode):
            if is_picture:
                self.tree.pictures.append(SourceFile(path, status.st_size))
            else:
                self._take_by_first_bytes(path, status.st_size)
        elif stat.S_ISDIR(mode) and not is_picture:
            (links if entry.is_symlink() else folders).append(path)
        else:
            self._reject(path, f"{_special_kind(mode)}, not a regular file", _kind(is_picture))

    def _take_by_first_bytes(self, path: str, size: int) -> None:
        try:
            with open(os.path.join(self._root, path), "rb", opener=open_nonblocking) as file:
                first = file.read(_SNIFF_BYTES)
        except OSError as error:
            reason = f"not a picture by its name, and cannot be read: {error.strerror}"
            self._reject(path, reason, RejectKind.OTHER)
            return
        if _starts_a_picture(first):
            self.tree.pictures.append(SourceFile(path, size))
        else:
            self._reject(path, "not a picture, by its name and first bytes", RejectKind.OTHER)

    def _reject(self, path: str, reason: str, kind: RejectKind = RejectKind.BAD) -> None:
        self.tree.rejects.append(Rejected(path, reason, kind))


@contextmanager
def _readable(root: str, folder: str) -> Iterator[None]:
    """Turn a folder that cannot be read into one sentence: half a tree is not a data set."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"cannot read the folder {utf8_name(os.path.join(root, folder))}: {error.strerror};"
            " make it readable or move it out of the source"
        ) from error


def _has_picture_name(name: str) -> bool:
    # Not splitext, which takes several times as long: names that begin with a dot never come here.
    return name[name.rfind(".") :].lower() in PICTURE_EXTENSIONS


def _kind(is_picture: bool) -> RejectKind:
    return RejectKind.BAD if is_picture else RejectKind.OTHER


def _why_no_stat(entry: os.DirEntry[str], error: OSError) -> str:
    if entry.is_symlink() and isinstance(error, FileNotFoundError):
        return f"broken link to {utf8_name(os.readlink(entry.path))}"
    return f"cannot be read: {error.strerror}"


_SPECIAL_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
)


def _special_kind(mode: int) -> str:
    return next((kind for is_kind, kind in _SPECIAL_KINDS if is_kind(mode)), "a special file")


def _starts_a_picture(first: bytes) -> bool:
    """Tell whether the first bytes are those of a format whose mark no other format shares."""
    is_webp = first[:4] == b"RIFF" and first[8:12] == b"WEBP"
    return is_webp or first.startswith(_PICTURE_MARKS)

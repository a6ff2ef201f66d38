"""Listing a folder tree in the order of keys."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass, field

from storage_backends.local_files import file_etag
from storage_backends.local_new_file import is_unfinished
from storage_backends.store import ObjectInfo

_Identity = tuple[int, int]

_LEADS_NOWHERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder yet to be listed.

    Attributes:
        path: where it is.
        key: its key with a slash at the end, or nothing for the root.
        ancestors: identities of the folders that lead to it, itself included.
    """

    path: str
    key: str
    ancestors: frozenset[_Identity] = field(default_factory=frozenset)


def scan(folder: Folder, prefix: str) -> list[Folder | ObjectInfo]:
    """The regular files and folders directly in ``folder`` that can matter to ``prefix``, sorted.

    A link to a file counts as a file, a link to a folder as a folder unless it leads back to a
    folder above it. Links that lead nowhere, FIFOs, sockets and devices are passed over, and so
    are files whose writing has not ended.

    Sorting folders with their slash makes a depth-first walk give all keys in the order of their
    bytes: ``a-b`` before ``a/c`` before ``a0``.
    """
    found: list[Folder | ObjectInfo] = []
    try:
        entries = list(os.scandir(folder.path))
    except FileNotFoundError:
        if not folder.key:
            raise
        # Removed while the walk was on its way.
        return found
    for entry in entries:
        key = folder.key + entry.name
        if not _may_match(key, prefix) or is_unfinished(entry.name):
            continue
        try:
            status = entry.stat()
        except OSError as error:
            if error.errno in _LEADS_NOWHERE:
                continue
            raise
        if stat.S_ISREG(status.st_mode) and key.startswith(prefix):
            found.append(ObjectInfo(key, status.st_size, file_etag(status)))
        elif stat.S_ISDIR(status.st_mode):
            identity = (status.st_dev, status.st_ino)
            if identity not in folder.ancestors:
                found.append(Folder(entry.path, key + "/", folder.ancestors | {identity}))
    found.sort(key=lambda item: os.fsencode(item.key))
    return found


def root_folder(path: str) -> Folder:
    """The start of a walk. Raises OSError if there is no such folder."""
    status = os.stat(path)
    return Folder(path, "", frozenset({(status.st_dev, status.st_ino)}))


def _may_match(key: str, prefix: str) -> bool:
    """A file of this key, or something below a folder of it, may start with ``prefix``."""
    return key.startswith(prefix) or prefix.startswith(key + "/")

"""The files of a block cache: how they are named, found, and removed.

    cache_dir/<fingerprint>/<shard>-<offset>-<bytes>.block

The fingerprint is that of the data set's manifest, so a data set that is published again gets a
folder of its own. Only files of this form are ever opened or removed: whatever else lies in the
folder belongs to somebody else. A block is written under a name of its own and renamed, so several
processes and users share a folder without locks.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from streamloader.errors import ConfigError
from streamloader.fetch.cache_index import Extent

_FINGERPRINT = re.compile(r"[0-9a-f]{64}")
_BLOCK = re.compile(r"([0-9]{1,10})-([0-9]{1,19})-([0-9]{1,19})\.block")
_UNFINISHED = re.compile(r"\.[0-9a-f]{32}\.unfinished")
#: Nobody takes so long to write a block: its writer was killed.
_STALE_S = 3600.0


@dataclass(frozen=True, slots=True)
class CachedBlock:
    """One file, with a block or a part of one.

    Attributes:
        path: of the file.
        fingerprint: of its data set.
        shard: its number in the manifest.
        extent: offset and bytes in the shard, as the name says.
        nbytes: length of the file.
        used_s: when it was last used, in seconds since 1970.
    """

    path: str
    fingerprint: str
    shard: int
    extent: Extent
    nbytes: int
    used_s: float


def block_name(shard: int, extent: Extent) -> str:
    """Name of a block, or of a part of one, within the folder of its data set."""
    return f"{shard}-{extent[0]}-{extent[1]}.block"


def write_block(folder: str, name: str, view: memoryview) -> None:
    """Writes a block under a name that no other writer has, and renames it. Raises OSError.

    So no reader sees half a block. It is not forced to disk: after a power failure a block may be
    short or wrong, which its length and its hashes tell.
    """
    os.makedirs(folder, exist_ok=True)
    unfinished = os.path.join(folder, f".{os.urandom(16).hex()}.unfinished")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        try:
            done = 0
            while done < len(view):
                done += os.write(descriptor, view[done:])
        finally:
            os.close(descriptor)
        os.rename(unfinished, os.path.join(folder, name))
    except BaseException:
        os.unlink(unfinished)
        raise


def cached_blocks(folder: str) -> Iterator[CachedBlock]:
    """Every block below a cache folder; none if there is no such folder.

    Raises:
        OSError: the folder cannot be read.
    """
    for entry, fingerprint in _entries(folder):
        name = _BLOCK.fullmatch(entry.name)
        if name is not None:
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            shard, offset, nbytes = map(int, name.groups())
            yield CachedBlock(
                entry.path,
                fingerprint,
                shard,
                (offset, nbytes),
                status.st_size,
                status.st_mtime,
            )


def remove_stale(folder: str) -> int:
    """Removes what writers that were killed have left behind; returns how many files."""
    removed = 0
    before = time.time() - _STALE_S
    for entry, _ in _entries(folder):
        if _UNFINISHED.fullmatch(entry.name):
            try:
                if entry.stat(follow_symlinks=False).st_mtime < before:
                    os.unlink(entry.path)
                    removed += 1
            except (FileNotFoundError, PermissionError):
                # Removed by another process, or of another user, who will remove it.
                continue
    return removed


def remove_blocks(blocks: Iterable[CachedBlock], least_bytes: int | None = None) -> int:
    """Removes blocks in the given order until ``least_bytes`` are gone, all if None.

    Blocks of other users that may not be removed are passed over; folders that are empty then
    are removed too. Returns the bytes that were removed.
    """
    removed = 0
    folders: set[str] = set()
    for block in blocks:
        if least_bytes is not None and removed >= least_bytes:
            break
        try:
            os.unlink(block.path)
        except (FileNotFoundError, PermissionError):
            continue
        removed += block.nbytes
        folders.add(os.path.dirname(block.path))
    for folder in folders:
        try:
            os.rmdir(folder)
        except OSError:
            # Not empty, which is the rule.
            continue
    return removed


def require_folder(folder: str) -> None:
    """ConfigError if ``folder`` is there and is no folder."""
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise ConfigError(f"cache_dir {folder!r} is not a folder; give another path")


def _entries(folder: str) -> Iterator[tuple[os.DirEntry[str], str]]:
    """Regular files in the folders of data sets, with the fingerprint of theirs."""
    try:
        with os.scandir(folder) as found:
            data_sets = [
                entry
                for entry in found
                if _FINGERPRINT.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
            ]
    except FileNotFoundError:
        return
    for data_set in data_sets:
        try:
            with os.scandir(data_set.path) as found:
                files = [entry for entry in found if entry.is_file(follow_symlinks=False)]
        except FileNotFoundError:
            continue
        for file in files:
            yield file, data_set.name

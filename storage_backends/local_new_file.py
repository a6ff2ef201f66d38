"""Files that appear complete or not at all.

Content goes to a file of an own name beside the target, is forced to disk, and takes the target's
name in one step; then the folder is forced to disk too, since the name lives there.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
from collections.abc import Sequence

_UNFINISHED = re.compile(r"\.unfinished-[0-9a-f]{16}")
_NO_HARD_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
#: What every system takes in one call.
_PIECES_PER_CALL = 1024
_WRITEBACK_BYTES = 8 << 20
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def is_unfinished(name: str) -> bool:
    """``name`` is that of a file whose writing has not ended, or never will."""
    return _UNFINISHED.fullmatch(name) is not None


class NewFile:
    """A file being written beside ``path``. Every method blocks and may raise OSError."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._folder = os.path.dirname(path)
        self._temporary = os.path.join(self._folder, f".unfinished-{secrets.token_hex(8)}")
        self._fd = -1
        self._written = self._on_its_way = 0

    @property
    def temporary(self) -> str:
        """Path of the file while it is being written."""
        return self._temporary

    def create(self) -> None:
        """Makes the folder and the temporary file."""
        make_folders(self._folder)
        self._fd = os.open(self._temporary, _FLAGS, 0o666)

    def write(self, data: memoryview) -> None:
        """Appends all of ``data``."""
        while len(data):
            count = os.write(self._fd, data)
            self._written += count
            data = data[count:]
        self._begin_writeback()

    def write_all(self, pieces: Sequence[memoryview]) -> None:
        """Appends all of several pieces, many in one system call."""
        for first in range(0, len(pieces), _PIECES_PER_CALL):
            some = pieces[first : first + _PIECES_PER_CALL]
            written = os.writev(self._fd, some)
            self._written += written
            for piece in some:
                if written < len(piece):
                    self.write(piece[written:])
                written = max(0, written - len(piece))
        self._begin_writeback()

    def _begin_writeback(self) -> None:
        """Lets the disk begin, so that forcing the whole file to it does not take all the time.

        Linux starts to write what it is told will not be needed, and drops only clean pages.
        """
        new = self._written - self._on_its_way
        if new >= _WRITEBACK_BYTES:
            with contextlib.suppress(OSError):  # a hint, which not every file system takes
                os.posix_fadvise(self._fd, self._on_its_way, new, os.POSIX_FADV_DONTNEED)
            self._on_its_way = self._written

    def commit(self) -> None:
        """Gives the file its name, in place of what has it now."""
        self._seal()
        os.replace(self._temporary, self._path)
        sync_folder(self._folder)

    def commit_if_absent(self) -> bool:
        """Gives the file its name unless it is taken; False if it is."""
        self._seal()
        try:
            os.link(self._temporary, self._path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            return self._commit_by_claim()
        os.unlink(self._temporary)
        sync_folder(self._folder)
        return True

    def _commit_by_claim(self) -> bool:
        """For file systems without hard links: whoever makes the empty file may replace it."""
        try:
            os.close(os.open(self._path, _FLAGS, 0o666))
        except FileExistsError:
            return False
        os.replace(self._temporary, self._path)
        sync_folder(self._folder)
        return True

    def discard(self) -> None:
        """Removes what was written, if it has not been committed."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        try:
            os.unlink(self._temporary)
        except FileNotFoundError:
            return

    def _seal(self) -> None:
        os.fsync(self._fd)
        fd, self._fd = self._fd, -1
        os.close(fd)


def make_folders(path: str) -> None:
    """Makes ``path`` and its missing parents, each known to the disk."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    make_folders(parent)
    try:
        os.mkdir(path)
    except FileExistsError:
        if os.path.isdir(path):
            return
        raise
    sync_folder(parent)


def sync_folder(path: str) -> None:
    """Forces the names in a folder to disk."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

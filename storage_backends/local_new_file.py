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
from collections.abc import Iterator, Sequence

_UNFINISHED = re.compile(r"\.unfinished-[0-9a-f]{16}")
_NO_HARD_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
#: What every system takes in one call.
_PIECES_PER_CALL = 1024
#: Linux looks for pages as large as the call for the cache; those of 2 MiB and more are costly to
#: get, and a write then takes up to five times the CPU.
_BYTES_PER_CALL = 1 << 20
_WRITEBACK_BYTES = 8 << 20
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def is_unfinished(name: str) -> bool:
    """``name`` is that of a file whose writing has not ended, or never will."""
    return _UNFINISHED.fullmatch(name) is not None


class NewFile:
    """A file being written beside ``path``. Every method blocks and may raise OSError.

    Args:
        path: of the file in the end.
        sync: force content and name to the disk; else the system does, when it sees fit.
    """

    def __init__(self, path: str, *, sync: bool) -> None:
        self.path = path
        self._sync = sync
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

    def write_all(self, pieces: Sequence[memoryview]) -> None:
        """Appends all of several pieces, many in one system call."""
        for call in _calls(pieces):
            written = os.writev(self._fd, call)
            self._written += written
            for piece in call:
                self._write(piece[written:])
                written = max(0, written - len(piece))
        self._begin_writeback()

    def _write(self, data: memoryview) -> None:
        while len(data):
            count = os.write(self._fd, data)
            self._written += count
            data = data[count:]

    def _begin_writeback(self) -> None:
        """Lets the disk begin, so that forcing the whole file to it does not take all the time.

        Linux starts to write what it is told will not be needed, and drops only clean pages.
        """
        new = self._written - self._on_its_way
        if self._sync and new >= _WRITEBACK_BYTES:
            with contextlib.suppress(OSError):  # a hint, which not every file system takes
                os.posix_fadvise(self._fd, self._on_its_way, new, os.POSIX_FADV_DONTNEED)
            self._on_its_way = self._written

    def commit(self) -> None:
        """Gives the file its name, in place of what has it now."""
        self._seal()
        os.replace(self._temporary, self.path)
        self._seal_name()

    def commit_if_absent(self) -> bool:
        """Gives the file its name unless it is taken; False if it is."""
        self._seal()
        try:
            os.link(self._temporary, self.path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            return self._commit_by_claim()
        os.unlink(self._temporary)
        self._seal_name()
        return True

    def _commit_by_claim(self) -> bool:
        """For file systems without hard links: whoever makes the empty file may replace it."""
        try:
            os.close(os.open(self.path, _FLAGS, 0o666))
        except FileExistsError:
            return False
        os.replace(self._temporary, self.path)
        self._seal_name()
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
        if self._sync:
            os.fsync(self._fd)
        fd, self._fd = self._fd, -1
        os.close(fd)

    def _seal_name(self) -> None:
        if self._sync:
            sync_folder(self._folder)


def _calls(pieces: Sequence[memoryview]) -> Iterator[list[memoryview]]:
    """Cuts pieces into what is written in one system call each."""
    call: list[memoryview] = []
    room = _BYTES_PER_CALL
    for piece in pieces:
        while len(piece):
            call.append(piece[:room])
            room -= len(call[-1])
            piece = piece[len(call[-1]) :]
            if not room or len(call) == _PIECES_PER_CALL:
                yield call
                call, room = [], _BYTES_PER_CALL
    if call:
        yield call


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

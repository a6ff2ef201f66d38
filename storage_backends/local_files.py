"""Reading regular files with positioned reads, through a bounded set of open descriptors."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from storage_backends.errors import Changed, Truncated
from storage_backends.local_errors import not_a_file, printable

_MAX_OPEN = 64
#: Bound of one system call, so that a cancelled read ends soon.
_STEP_BYTES = 8 * 2**20
#: Largest read that the caller's thread may do itself when the page cache has all of it.
_CACHED_MAX_BYTES = 4 * 2**20
#: How a file system says that it cannot tell whether a read would wait.
_NEVER_CACHED = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


class _OpenFile:
    __slots__ = ("fd", "identity", "readers", "retired")

    def __init__(self, fd: int, identity: tuple[int, int]) -> None:
        self.fd = fd
        self.identity = identity
        self.readers = 0
        self.retired = False


class FileReader:
    """Reads ranges of files; safe to use from several threads.

    At most 64 descriptors stay open, the least recently used is closed first. Each read looks at
    the path again, so that a file which was replaced is read anew.
    """

    def __init__(self) -> None:
        self._files: OrderedDict[str, _OpenFile] = OrderedDict()
        self._lock = threading.Lock()
        self._may_be_cached = hasattr(os, "RWF_NOWAIT")

    def read_into(
        self,
        path: str,
        offset: int,
        target: memoryview,
        etag: str | None,
        cancelled: threading.Event,
    ) -> None:
        """Fills ``target``; gives up early, without an error, once ``cancelled`` is set.

        Raises:
            OSError: of the system.
            NotFound: the path is not a regular file.
            Changed: the file has another etag.
            Truncated: the file ends first.
        """
        with self._open(path) as fd:
            _check_etag(fd, path, etag)
            done = 0
            while done < len(target) and not cancelled.is_set():
                count = os.preadv(fd, [target[done : done + _STEP_BYTES]], offset + done)
                if count == 0:
                    raise Truncated(
                        f"{printable(path)} has {os.fstat(fd).st_size} bytes, but bytes up to "
                        f"{offset + len(target)} were asked for; is it complete?",
                        url=path,
                        code="EndOfFile",
                    )
                done += count

    def read_cached(self, path: str, offset: int, target: memoryview, etag: str | None) -> int:
        """Fills the beginning of ``target`` with what the page cache has, without waiting.

        Returns:
            Bytes that were read; 0 for all that is not plain success, ``read_into`` names it.

        Raises:
            OSError: of the system, for the path.
            NotFound, Changed: as ``read_into``.
        """
        if not self._may_be_cached or len(target) > _CACHED_MAX_BYTES:
            return 0
        with self._open(path) as fd:
            _check_etag(fd, path, etag)
            try:
                return os.preadv(fd, [target], offset, os.RWF_NOWAIT)
            except BlockingIOError:
                return 0
            except OSError as error:
                if error.errno not in _NEVER_CACHED:
                    raise
                self._may_be_cached = False
                return 0

    def close(self) -> None:
        """Closes every descriptor; no read may be running."""
        with self._lock:
            while self._files:
                self._retire(next(iter(self._files)))

    @contextmanager
    def held(self, path: str) -> Iterator[int]:
        """A descriptor of the file as it was when it was opened here, perhaps long ago.

        Raises:
            OSError: of the system, for the path.
            NotFound: the path is not a regular file.
        """
        with self._in_use(self._acquire(path, None)) as fd:
            yield fd

    @contextmanager
    def _open(self, path: str) -> Iterator[int]:
        with self._in_use(self._acquire(path, require_regular(os.stat(path), path))) as fd:
            yield fd

    @contextmanager
    def _in_use(self, file: _OpenFile) -> Iterator[int]:
        try:
            yield file.fd
        finally:
            with self._lock:
                file.readers -= 1
                if file.retired and not file.readers:
                    os.close(file.fd)

    def _acquire(self, path: str, status: os.stat_result | None) -> _OpenFile:
        """The open file of a path, opened anew if it is not that of ``status``."""
        with self._lock:
            file = self._files.get(path)
            if file is not None and (
                status is None or file.identity == (status.st_dev, status.st_ino)
            ):
                self._files.move_to_end(path)
            else:
                if file is not None:
                    self._retire(path)
                fd = open_regular(path)
                status = os.fstat(fd)
                file = _OpenFile(fd, (status.st_dev, status.st_ino))
                self._files[path] = file
                if len(self._files) > _MAX_OPEN:
                    self._retire(next(iter(self._files)))
            file.readers += 1
            return file

    def _retire(self, path: str) -> None:
        """Takes a file out of the set; its last reader closes it."""
        file = self._files.pop(path)
        file.retired = True
        if not file.readers:
            os.close(file.fd)


def _check_etag(fd: int, path: str, etag: str | None) -> None:
    if etag is not None and file_etag(os.fstat(fd)) != etag:
        raise Changed(
            f"{printable(path)} was changed since it was first seen; open it again",
            url=path,
            code="PreconditionFailed",
        )


def open_regular(path: str, flags: int = os.O_RDONLY) -> int:
    """A descriptor of a regular file; NotFound if it is something else.

    Without O_NONBLOCK, opening a FIFO would wait for a writer for ever.
    """
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        require_regular(os.fstat(fd), path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def require_regular(status: os.stat_result, path: str) -> os.stat_result:
    """``status`` itself; NotFound if it is not that of a regular file."""
    if not stat.S_ISREG(status.st_mode):
        raise not_a_file(path)
    return status


def file_etag(status: os.stat_result) -> str:
    """Changes whenever the file is replaced, grows, shrinks or is written again."""
    return f"{status.st_mtime_ns:x}-{status.st_size:x}-{status.st_ino:x}"

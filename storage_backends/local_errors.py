"""What the operating system raises, said in this package's errors."""

from __future__ import annotations

import errno
import os

from storage_backends.errors import (
    AccessDenied,
    Misconfigured,
    NotFound,
    StorageError,
    Unavailable,
)

_KINDS: dict[int, tuple[type[StorageError], str]] = {
    errno.ENOENT: (NotFound, "there is no file or folder {path}; check the path"),
    errno.ENOTDIR: (NotFound, "{path} leads through something that is not a folder; check it"),
    errno.EISDIR: (NotFound, "{path} is a folder, not a file; check the path"),
    errno.ELOOP: (NotFound, "{path} is a symbolic link that leads nowhere; correct it"),
    errno.EACCES: (AccessDenied, "no permission for {path}; change its owner or mode"),
    errno.EPERM: (AccessDenied, "the system forbids this on {path}; check owner and attributes"),
    errno.EROFS: (AccessDenied, "{path} is on a read-only file system; choose another place"),
    errno.ENOSPC: (Unavailable, "no space left on the disk of {path}; free some"),
    errno.EDQUOT: (Unavailable, "the disk quota is used up at {path}; free some"),
    errno.EFBIG: (Unavailable, "{path} is too large for its file system; write smaller objects"),
    errno.EIO: (Unavailable, "the disk failed at {path}; check its health"),
    errno.ESTALE: (Unavailable, "the network file system lost {path}; mount it again"),
    errno.EMFILE: (Unavailable, "too many open files at {path}; raise the limit (ulimit -n)"),
    errno.ENFILE: (Unavailable, "too many open files on this machine, at {path}; close some"),
    errno.EEXIST: (Misconfigured, "{path} exists and is not a folder; choose another place"),
    errno.ENAMETOOLONG: (Misconfigured, "{path} is too long for its file system; shorten the key"),
}


def storage_error(error: OSError, path: str) -> StorageError:
    """The error to raise for ``error``, met at ``path``."""
    number = error.errno or 0
    shown = printable(path)
    code = errno.errorcode.get(number, type(error).__name__)
    if number in _KINDS:
        kind, text = _KINDS[number]
        return kind(text.format(path=shown), url=path, code=code)
    message = f"{shown}: {os.strerror(number)}; check the disk"
    return Unavailable(message, url=path, code=code)


def not_a_file(path: str) -> NotFound:
    """The error for something that exists and is no regular file."""
    message = f"{printable(path)} is not a regular file; check the path"
    return NotFound(message, url=path, code="ENOTREG")


def printable(path: str) -> str:
    """``path`` with the bytes that are not UTF-8 escaped, so that every terminal takes it."""
    return path.encode(errors="surrogateescape").decode(errors="backslashreplace")

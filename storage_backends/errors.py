"""Errors that storage raises.

    StorageError
    ├── NotFound        no such object, bucket or folder
    ├── AccessDenied    no, wrong or expired credentials, or no permission
    ├── Throttled       the server asked to slow down, and still did after every retry
    ├── Unavailable     no answer, a server fault, a full or failing disk
    ├── Truncated       fewer bytes than asked: the object is shorter, or its body kept breaking
    ├── Changed         the object is no longer the one whose etag was given
    └── Misconfigured   a URL, key or option that cannot work               (also a ValueError)

Every message is one sentence: what happened, where, and what to do. No message, representation
or log line of this package holds a secret key or a session token.
"""

from __future__ import annotations


class StorageError(Exception):
    """Base of every error of this package.

    Args:
        message: one sentence for the user.
        url: full URL of the object, bucket or folder.
        code: the server's own code such as ``NoSuchKey``, or an errno name such as ``ENOENT``.
        status: HTTP status, if there was one.
    """

    def __init__(
        self, message: str, *, url: str, code: str | None = None, status: int | None = None
    ) -> None:
        super().__init__(message)
        self.url = url
        self.code = code
        self.status = status

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), str(self), self.url, self.code, self.status))


class NotFound(StorageError):
    """There is no such object, bucket or folder."""


class AccessDenied(StorageError):
    """Missing, wrong or expired credentials, or no permission; ``code`` tells which."""


class Throttled(StorageError):
    """The server kept asking to slow down."""


class Unavailable(StorageError):
    """The storage gave no answer, or failed, for as long as it was tried."""


class Truncated(StorageError):
    """Fewer bytes than asked for."""


class Changed(StorageError):
    """The object was overwritten since its etag was taken."""


class Misconfigured(StorageError, ValueError):
    """A URL, key or option that cannot work."""


def _rebuild(
    kind: type[StorageError], message: str, url: str, code: str | None, status: int | None
) -> StorageError:
    return kind(message, url=url, code=code, status=status)

"""One range of an object across its attempts, and which answers are taken for it."""

from __future__ import annotations

import re

from storage_backends._retry import Fault
from storage_backends.http_head import ResponseHead
from storage_backends.refusals import Place, changed, too_short, wrong_answer
from storage_backends.store import too_large

_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)")


class Version:
    """The object that all parts of a read must come from: as asked for, or as met first."""

    __slots__ = ("etag", "size")

    def __init__(self, etag: str | None) -> None:
        self.etag = etag
        self.size: int | None = None

    def if_match(self) -> bytes:
        """Header line of a request; a weak etag never matches (RFC 9110, 13.1.1)."""
        if self.etag is None or self.etag.startswith("W/"):
            return b""
        return f'If-Match: "{self.etag}"\r\n'.encode()

    def admit(self, head: ResponseHead, size: int | None, place: Place) -> None:
        """Raises Fault if an answer is of another object."""
        etag = bare_etag(head.decisive.get("etag"))
        if self.etag is None:
            self.etag = etag
        elif etag is not None and etag != self.etag:
            # Not every server knows If-Match.
            raise changed(place, head.status)
        if self.size is None:
            self.size = size
        elif size is not None and size != self.size:
            raise changed(place, head.status)


class Part:
    """A range that is read into memory; a broken body is taken up where it broke.

    Args:
        place: the object, for messages.
        key: the object, for requests.
        target: memory to fill.
        offset: byte of the object that comes first in it.
        version: shared by the parts of a read.

    Attributes:
        done: bytes of the target that are filled.
        wanted: bytes that the whole part has.
    """

    __slots__ = ("done", "key", "offset", "place", "target", "version", "wanted")

    def __init__(
        self, place: Place, key: str, target: memoryview, offset: int, version: Version
    ) -> None:
        self.place = place
        self.key = key
        self.target = target
        self.offset = offset
        self.version = version
        self.done = 0
        self.wanted = len(target)

    @property
    def missing(self) -> int:
        """Bytes that are still to come."""
        return self.wanted - self.done

    def lines(self) -> bytes:
        """Header lines that ask for what is missing."""
        first, last = self.offset + self.done, self.offset + self.wanted - 1
        return b"Range: bytes=%d-%d\r\n%b" % (first, last, self.version.if_match())

    def accept(self, head: ResponseHead) -> memoryview | None:
        """The memory that an answer fills, None if it is a refusal. Raises Fault."""
        if head.status == 206:
            self._check_range(head)
        elif head.status == 200:
            self._check_whole(head)
        else:
            return None
        if head.length is not None and head.length != self.missing:
            raise wrong_answer(
                self.place,
                f"{head.length} bytes where {self.missing} were asked for",
                head.status,
            )
        return self.target[self.done :] if self.done else self.target

    def sharper(self, fault: Fault) -> Fault:
        """A fault that knows what was asked for."""
        status = fault.error.status
        if status == 416:
            better = too_short(self.place, self.offset + self.wanted, None, status)
        elif status == 412:
            better = changed(self.place, status)
        else:
            return fault
        better.__cause__ = fault.__cause__
        return better

    def _check_range(self, head: ResponseHead) -> None:
        text = head.decisive.get("content-range", "")
        match = _CONTENT_RANGE.fullmatch(text)
        first, end = self.offset + self.done, self.offset + self.wanted
        if match is None:
            raise self._wrong_range(text)
        its_first, its_last, its_size = match.groups()
        if int(its_first) != first:
            raise self._wrong_range(text)
        size = None if its_size == "*" else int(its_size)
        self.version.admit(head, size, self.place)
        if size is not None and size < end:
            raise too_short(self.place, end, size, 206)
        if int(its_last) != end - 1:
            raise self._wrong_range(text)

    def _check_whole(self, head: ResponseHead) -> None:
        if self.offset + self.done > 0:
            raise wrong_answer(self.place, "the whole object for a range of it", 200)
        self.version.admit(head, head.length, self.place)
        if head.length is not None and head.length < self.missing:
            raise too_short(self.place, self.missing, head.length, 200)

    def _wrong_range(self, text: str) -> Fault:
        first, last = self.offset + self.done, self.offset + self.wanted - 1
        return wrong_answer(self.place, f"range {text[:80]!r} instead of bytes {first}-{last}", 206)


class WholeObject(Part):
    """A small object of which the length is known from its first answer only.

    Args:
        max_bytes: a larger object is refused before its content is read.
    """

    __slots__ = ("max_bytes",)

    def __init__(self, place: Place, key: str, max_bytes: int) -> None:
        super().__init__(place, key, memoryview(bytearray()), 0, Version(None))
        self.max_bytes = max_bytes

    def lines(self) -> bytes:
        return super().lines() if self.done else b""

    def accept(self, head: ResponseHead) -> memoryview | None:
        if head.status == 200 and not self.done:
            if head.length is None:
                raise wrong_answer(self.place, "no Content-Length", 200)
            if head.length > self.max_bytes:
                error = too_large(self.place.url, head.length, self.max_bytes)
                raise Fault(error, transient=False)
            self.target = memoryview(bytearray(head.length))
            self.wanted = head.length
        elif head.status == 206 and not self.done:
            raise wrong_answer(self.place, "a range where the whole object was asked for", 206)
        return super().accept(head)


def bare_etag(etag: str | None) -> str | None:
    """An etag without the quotes of the HTTP header; a weak one keeps its mark."""
    if etag is None or etag.startswith("W/"):
        return etag
    return etag.strip('"')

"""Heads of HTTP/1.1 answers and the bodies of refusals, parsed strictly (RFC 9112).

What is ambiguous is refused: a head that two readers could frame differently would let the bytes
of one answer pass for those of another.
"""

from __future__ import annotations

import re
from typing import NamedTuple

#: A whole head: status line, then lines of a name and a value, none of them folded.
_HEAD = re.compile(
    rb"HTTP/1\.([01]) ([1-5]\d\d)(?: [^\r\n\0]*+)?+"
    rb"((?:\r\n[!#$%&'*+.^_`|~0-9A-Za-z-]++:[^\r\n\0]*+)*+)"
)
#: Headers that decide what the body is and what follows it; all others matter to refusals only.
_DECISIVE = re.compile(
    r"\r\n((?i:content-length|content-range|transfer-encoding|etag|location|connection))"
    r":[ \t]*+([^\r\n]*+)"
)
_CHUNK_SIZE = re.compile(rb"[0-9A-Fa-f]{1,8}")


class BadHead(ValueError):
    """A head that is no HTTP/1.1, or that can be read in two ways."""


class ResponseHead(NamedTuple):
    """What comes before the body.

    Attributes:
        status: three digits.
        decisive: the headers that say what the body is, by lower-case name.
        keeps_alive: the connection may be used again after the body.
        length: bytes of the body; None if the head does not say.
        chunked: the body comes in chunks.
        lines: all header lines, each after its line break.
    """

    status: int
    decisive: dict[str, str]
    keeps_alive: bool
    length: int | None
    chunked: bool
    lines: str

    @property
    def headers(self) -> dict[str, str]:
        """All headers by lower-case name; a repeated one has its last value."""
        found: dict[str, str] = {}
        for line in self.lines.split("\r\n")[1:]:
            name, _, value = line.partition(":")
            found[name.lower()] = value.strip(" \t")
        return found


def parse_head(data: bytes) -> ResponseHead:
    """Parses a head without its empty last line. Raises BadHead."""
    match = _HEAD.fullmatch(data)
    if match is None:
        raise BadHead(f"no head of HTTP/1.1: {data[:60]!r}")
    status = int(match[2])
    lines = match[3].decode("latin-1")
    headers = _decisive_headers(lines)
    length, chunked = _framing(status, headers)
    tokens = headers.get("connection", "").lower()
    keeps = "close" not in tokens and (match[1] == b"1" or "keep-alive" in tokens)
    return ResponseHead(status, headers, keeps, length, chunked, lines)


def _decisive_headers(lines: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in _DECISIVE.findall(lines):
        name, value = name.lower(), value.rstrip(" \t")
        known = found.setdefault(name, value)
        if known != value:
            if name != "connection":
                raise BadHead(f"two different {name} headers")
            found[name] = f"{known}, {value}"
    return found


def _framing(status: int, headers: dict[str, str]) -> tuple[int | None, bool]:
    coding, length = headers.get("transfer-encoding"), headers.get("content-length")
    if status < 200 or status in (204, 304):
        return 0, False
    if coding is not None:
        if coding.lower() != "chunked" or length is not None:
            raise BadHead(f"a body framed by transfer-encoding {coding!r}")
        return None, True
    if length is None:
        return None, False
    # int() would also take signs, blanks, underscores and foreign digits.
    if not (length.isascii() and length.isdigit() and len(length) <= 19):
        raise BadHead(f"content-length {length[:40]!r}")
    return int(length), False


def dechunk(data: bytes) -> bytes | None:
    """The content of a chunked body; None as long as it is not complete. Raises BadHead."""
    found: list[bytes] = []
    at = 0
    while True:
        end = data.find(b"\r\n", at)
        if end < 0:
            return None
        match = _CHUNK_SIZE.match(data, at, end)
        if match is None:
            raise BadHead(f"a malformed chunk size: {data[at : at + 20]!r}")
        size = int(match[0], 16)
        if size == 0:
            # The last chunk is followed by trailers, if any, and an empty line.
            complete = data.startswith(b"\r\n", end + 2) or data.find(b"\r\n\r\n", end) >= 0
            return b"".join(found) if complete else None
        start, at = end + 2, end + 2 + size
        if len(data) < at + 2:
            return None
        if data[at : at + 2] != b"\r\n":
            raise BadHead("a chunk that does not end where it should")
        found.append(data[start:at])
        at += 2

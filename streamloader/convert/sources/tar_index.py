"""Finds the members of a plain tar by its headers alone; their content is not read.

POSIX ustar and what pax and GNU tar add for long names and large sizes
(https://pubs.opengroup.org/onlinepubs/9699919799/utilities/pax.html).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from streamloader.convert.report import utf8_name
from streamloader.errors import ConfigError

_BLOCK = 512
_REGULAR = frozenset({b"0", b"\0", b"7"})
_GNU_LONG_NAME = b"L"
_GNU_LONG_LINK = b"K"
_PAX = b"x"
_PAX_GLOBAL = b"g"
_MAX_META_BYTES = 1 << 20
#: How much is read at once: headers of small members come together.
WINDOW_BYTES = 256 << 10

ReadAt = Callable[[int, int], bytes]
"""``read(offset, length)`` gives bytes of the tar."""


@dataclass(frozen=True, slots=True)
class TarMember:
    """A regular file in a tar.

    Args:
        name: bytes that are not UTF-8 as surrogates.
        offset: where its content begins in the tar.
        size: of its content.
    """

    name: str
    offset: int
    size: int


def read_members(read: ReadAt, tar_bytes: int, name: str) -> Iterator[TarMember]:
    """Yield the regular files of a tar in order.

    Args:
        read: reads the tar.
        tar_bytes: its length.
        name: how messages call it.

    Raises:
        ConfigError: it is no plain tar, or it is cut short.
    """
    window = _Window(read, tar_bytes)
    at = 0
    long_name: str | None = None
    long_size: int | None = None
    while at + _BLOCK <= tar_bytes:
        header = window.get(at, _BLOCK)
        if not header.strip(b"\0"):
            return
        _check_sum(header, name, at)
        kind, size = header[156:157], _number(header[124:136], name, at)
        content = at + _BLOCK
        if kind in (_GNU_LONG_NAME, _PAX) and size <= _MAX_META_BYTES:
            data = window.get(content, size)
            if len(data) < size:
                raise _cut_short(name, at)
            if kind == _GNU_LONG_NAME:
                long_name = _text(data.rstrip(b"\0"))
            else:
                long_name, long_size = _pax_values(data, long_name, long_size)
        elif kind not in (_GNU_LONG_LINK, _PAX_GLOBAL):
            size = size if long_size is None else long_size
            if content + size > tar_bytes:
                raise _cut_short(name, at)
            if kind in _REGULAR:
                yield TarMember(long_name or _header_name(header), content, size)
            long_name = long_size = None
        at = content + -(-size // _BLOCK) * _BLOCK


class _Window:
    """A part of the tar in memory, so that near headers cost one read."""

    def __init__(self, read: ReadAt, tar_bytes: int) -> None:
        self._read = read
        self._tar_bytes = tar_bytes
        self._start = 0
        self._data = b""

    def get(self, offset: int, length: int) -> bytes:
        inside = offset - self._start
        if not 0 <= inside <= inside + length <= len(self._data):
            wanted = min(max(WINDOW_BYTES, length), self._tar_bytes - offset)
            self._start, self._data, inside = offset, self._read(offset, wanted), 0
        return self._data[inside : inside + length]


def _check_sum(header: bytes, name: str, at: int) -> None:
    stated = _number(header[148:156], name, at)
    actual = sum(header[:148]) + sum(header[156:]) + 8 * ord(" ")
    if stated != actual:
        raise ConfigError(
            f"{utf8_name(name)} is no plain tar, or is damaged: the checksum of the header at byte"
            f" {at} is wrong"
        )


def _number(field: bytes, name: str, at: int) -> int:
    """Return a number in octal digits, or in base 256 as GNU tar writes large ones."""
    if field[0] & 0x80:
        return int.from_bytes(field[1:], "big")
    try:
        return int(field.strip(b" \0") or b"0", 8)
    except ValueError as error:
        raise ConfigError(
            f"{utf8_name(name)} is no plain tar, or is damaged: the header at byte {at} has no"
            " number where one should be"
        ) from error


def _header_name(header: bytes) -> str:
    name, prefix = header[:100].rstrip(b"\0"), b""
    if header[257:263] == b"ustar\0":
        prefix = header[345:500].rstrip(b"\0")
    return _text(prefix + b"/" + name if prefix else name)


def _pax_values(data: bytes, name: str | None, size: int | None) -> tuple[str | None, int | None]:
    """Return name and size from a pax record list, ``b"<length> <key>=<value>\\n"`` each."""
    while data:
        digits, _, rest = data.partition(b" ")
        if not digits.isdigit() or not 0 < int(digits) <= len(data):
            break
        record = rest[: int(digits) - len(digits) - 2]
        key, _, value = record.partition(b"=")
        if key == b"path":
            name = _text(value)
        elif key == b"size" and value.isdigit():
            size = int(value)
        data = data[int(digits) :]
    return name, size


def _text(raw: bytes) -> str:
    return raw.split(b"\0")[0].decode("utf-8", "surrogateescape")


def _cut_short(name: str, at: int) -> ConfigError:
    return ConfigError(
        f"{utf8_name(name)} is cut short: the member at byte {at} reaches beyond its end"
    )

"""Finds the record batches in an Arrow file or stream, without reading them.

Both are a run of messages: a length, metadata (a flatbuffer), then the body whose length the
metadata says. A file has a magic before them and an index behind, which is not needed.
Layout: https://arrow.apache.org/docs/format/Columnar.html, "Encapsulated message format"; the
fields of the metadata in ``Message.fbs``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_FILE_MAGIC = b"ARROW1"
_FILE_HEAD_BYTES = 8
_CONTINUATION = 0xFFFFFFFF
_MAX_METADATA_BYTES = 1 << 28
_READ_AHEAD_BYTES = 1 << 18
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3

ReadAt = Callable[[int, int], bytes]
"""``read_at(offset, length)`` gives a range that lies in the file."""

Span = tuple[int, int]
"""Offset and length of a message."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A record batch.

    Args:
        spans: what must be read to understand it: schema, dictionaries, and its own message.
        rows: of it.
        body_bytes: of its columns, as stored.
    """

    spans: tuple[Span, ...]
    rows: int
    body_bytes: int


class NotArrowError(ValueError):
    """Bytes that are no Arrow messages, in words for the user."""


def schema_and_batches(read_at: ReadAt, size: int) -> tuple[Span, list[Batch]]:
    """Return where the schema is, and every record batch.

    Args:
        read_at: reads the file.
        size: of the file.

    Raises:
        NotArrowError: it is no such file, or is damaged.
    """
    schema: Span | None = None
    dictionaries: list[Span] = []
    batches = []
    for message in _messages(_ahead(read_at, size), size):
        span = (message.offset, message.length)
        if message.kind == _SCHEMA and schema is None:
            schema = span
        elif schema is None:
            raise NotArrowError("does not begin with a schema")
        elif message.kind == _DICTIONARY:
            dictionaries.append(span)
        elif message.kind == _BATCH:
            batches.append(Batch((schema, *dictionaries, span), message.rows, message.body_bytes))
        else:
            raise NotArrowError(f"holds a message of kind {message.kind}, which is not read")
    if schema is None:
        raise NotArrowError("holds no schema")
    return schema, batches


@dataclass(frozen=True, slots=True)
class _Message:
    offset: int
    length: int
    kind: int
    rows: int
    body_bytes: int


def _messages(read_at: ReadAt, size: int) -> Iterator[_Message]:
    at = 0
    if size >= _FILE_HEAD_BYTES and read_at(0, _FILE_HEAD_BYTES).startswith(_FILE_MAGIC):
        at = _FILE_HEAD_BYTES
    while at + 4 <= size:
        (metadata_bytes,) = struct.unpack("<I", read_at(at, 4))
        prefix = 4
        if metadata_bytes == _CONTINUATION:
            if at + 8 > size:
                raise NotArrowError(f"is cut short at byte {at}")
            (metadata_bytes,) = struct.unpack("<I", read_at(at + 4, 4))
            prefix = 8
        if not metadata_bytes:
            return
        start = at + prefix
        if metadata_bytes > _MAX_METADATA_BYTES or start + metadata_bytes > size:
            raise NotArrowError(f"holds no Arrow message at byte {at}, or is cut short")
        try:
            kind, body_bytes, rows = _described(read_at(start, metadata_bytes))
        except struct.error as error:
            raise NotArrowError(f"holds no Arrow message at byte {at}") from error
        length = prefix + metadata_bytes + body_bytes
        if body_bytes < 0 or at + length > size:
            raise NotArrowError(f"is cut short in the message at byte {at}")
        if rows < 0:
            raise NotArrowError(f"holds a batch of {rows} rows at byte {at}")
        yield _Message(at, length, kind, rows, body_bytes)
        at += length


def _described(metadata: bytes) -> tuple[int, int, int]:
    """Return kind, bytes of the body, and rows of a message; raises struct.error for no message."""
    message = _Table(metadata, _offset(metadata, 0))
    header_at = message.field(2)
    kind = message.number(1, "<B")
    rows = 0
    if kind == _BATCH:
        if header_at is None:
            raise struct.error("a batch without a header")
        rows = _Table(metadata, header_at + _offset(metadata, header_at)).number(0, "<q")
    return kind, message.number(3, "<q"), rows


class _Table:
    """A table of a flatbuffer: fields by number, each where the vtable says, or absent."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at
        (to_vtable,) = _unpack("<i", data, at)
        self._vtable = at - to_vtable
        (self._vtable_bytes,) = _unpack("<H", data, self._vtable)

    def field(self, number: int) -> int | None:
        """Return where a field is."""
        place = 4 + 2 * number
        if place + 2 > self._vtable_bytes:
            return None
        (offset,) = _unpack("<H", self._data, self._vtable + place)
        return self._at + int(offset) if offset else None

    def number(self, number: int, kind: str) -> int:
        """Return a field that is a number, 0 where it is absent."""
        at = self.field(number)
        return 0 if at is None else int(_unpack(kind, self._data, at)[0])


def _offset(data: bytes, at: int) -> int:
    return int(_unpack("<I", data, at)[0])


def _unpack(kind: str, data: bytes, at: int) -> tuple[int, ...]:
    if at < 0:
        raise struct.error("before the beginning")
    return struct.unpack_from(kind, data, at)


def _ahead(read_at: ReadAt, size: int) -> ReadAt:
    """Return a reader that reads more than is asked for, since most messages are near."""
    held, start = b"", 0

    def read(offset: int, length: int) -> bytes:
        nonlocal held, start
        if not start <= offset <= offset + length <= start + len(held):
            held, start = (
                read_at(offset, min(max(length, _READ_AHEAD_BYTES), size - offset)),
                offset,
            )
        return held[offset - start : offset - start + length]

    return read

"""A file of a source, wherever it lies, as libraries read files."""

from __future__ import annotations

import io

from streamloader.convert.sources.places import (
    FileRange,
    Place,
    ReadRanges,
    SourceFile,
    require_bytes,
)


class RangeFile(io.RawIOBase):
    """Reads the ranges that are asked for, and nothing before that; for one thread at a time.

    A file that is gone or changed since it was listed raises ConfigError, a bucket that fails
    StorageError.

    Args:
        read: reads ranges of ``place``.
        place: where the file lies.
        file: as listed.
    """

    def __init__(self, read: ReadRanges, place: Place, file: SourceFile) -> None:
        super().__init__()
        self._read_ranges = read
        self._place = place
        self._file = file
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        rest = max(0, self._file.size - self._at)
        wanted = rest if size is None or size < 0 else min(size, rest)
        data = self.read_at(self._at, wanted)
        self._at += wanted
        return data

    def read_at(self, offset: int, length: int) -> bytes:
        """Return a range that lies in the file."""
        if not length:
            return b""
        (data,) = self._read_ranges([FileRange(self._file, offset, length)])
        return require_bytes(data, self._place, self._file)

"""Where the files of a source lie: a folder or a bucket, listed and read the same way."""

from __future__ import annotations

import asyncio
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from storage_backends import Changed, NotFound, Store, Truncated, open_store
from streamloader.convert.report import utf8_name
from streamloader.convert.run_memory import RunMemory
from streamloader.convert.sources.packed_files import PackedFiles, read_packed_files
from streamloader.errors import ConfigError
from streamloader.fetch import LoopThread, all_or_cancel

_READS_IN_FLIGHT = 64
_HIDDEN_NAMES = frozenset({"__macosx", "thumbs.db", "desktop.ini"})


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of a source.

    Args:
        path: relative to the source, with ``/``; bytes that are not UTF-8 as surrogates.
        size: its bytes when it was listed.
        etag: what a bucket knows its content by; None for local files.
    """

    path: str
    size: int
    etag: str | None = None


@dataclass(frozen=True, slots=True)
class FileRange:
    """Bytes of a file to read."""

    file: SourceFile
    offset: int
    length: int

    @classmethod
    def whole(cls, file: SourceFile) -> FileRange:
        """All of a file."""
        return cls(file, 0, file.size)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Why a range has no bytes, in words that follow the file's name."""

    reason: str


class ReadRanges(ABC):
    """Reads ranges of files; may be called from several threads at once.

    Attributes:
        packs: whether ``packed`` can be a gain.
    """

    packs = False

    @abstractmethod
    def into(
        self, ranges: Sequence[FileRange], memory: RunMemory
    ) -> Iterator[memoryview | Unreadable]:
        """Give the bytes of each range in order, as pieces of ``memory``."""

    def packed(self, _files: Sequence[SourceFile], _memory: RunMemory) -> PackedFiles | None:
        """Give whole files at once, None where that is no gain or one is not as it was listed."""
        return None

    def __call__(self, ranges: Sequence[FileRange]) -> Iterator[bytes | Unreadable]:
        """Give the bytes of each range in order."""
        for data in self.into(ranges, RunMemory(0)):
            yield data if isinstance(data, Unreadable) else bytes(data)


class Place(ABC):
    """A folder, or what is below a prefix of a bucket.

    Attributes:
        url: how messages call it.
    """

    url: str

    @abstractmethod
    def list_files(self) -> list[SourceFile]:
        """Every file that is not hidden, in code-point order of the paths."""

    @abstractmethod
    def reading(self) -> AbstractContextManager[ReadRanges]:
        """Hold what reading needs, and give the function that reads."""


@dataclass(frozen=True, slots=True)
class Folder(Place):
    """A folder of this machine.

    Args:
        url: its path.
        only: name of the one file in it that is the source; None for all.
    """

    url: str
    only: str | None = None

    def list_files(self) -> list[SourceFile]:
        if self.only is not None:
            return [SourceFile(self.only, os.stat(os.path.join(self.url, self.only)).st_size)]
        found: list[SourceFile] = []
        for folder, folders, names in os.walk(self.url, onerror=_unlistable, followlinks=False):
            folders[:] = [name for name in folders if not is_hidden(name)]
            for name in names:
                path = os.path.join(folder, name)
                if is_hidden(name) or not os.path.isfile(path):
                    continue
                relative = os.path.relpath(path, self.url)
                found.append(SourceFile(relative, os.stat(path).st_size))
        return sorted(found, key=lambda file: file.path)

    @contextmanager
    def reading(self) -> Iterator[ReadRanges]:
        yield _ReadFolder(self.url)


class _ReadFolder(ReadRanges):
    packs = True

    def __init__(self, root: str) -> None:
        self._root = os.path.join(root, "")

    def into(
        self, ranges: Sequence[FileRange], memory: RunMemory
    ) -> Iterator[memoryview | Unreadable]:
        for wanted in ranges:
            yield read_local(self._root + wanted.file.path, wanted, memory)

    def packed(self, files: Sequence[SourceFile], memory: RunMemory) -> PackedFiles | None:
        lengths = np.fromiter((file.size for file in files), np.int64, len(files))
        return read_packed_files(self._root, [file.path for file in files], lengths, memory)


@dataclass(frozen=True, slots=True)
class Bucket(Place):
    """Objects of a bucket.

    Args:
        url: ``s3://bucket/prefix``.
        options: of ``open_store``.
        only: key of the one object below it that is the source; None for all.
    """

    url: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    only: str | None = None

    def list_files(self) -> list[SourceFile]:
        """Every object that is neither hidden nor an empty marker of a folder."""
        return [
            file
            for file in self.list_all()
            if file.path
            and not (file.path.endswith("/") and file.size == 0)
            and not any(map(is_hidden, file.path.split("/")))
        ]

    def list_all(self) -> list[SourceFile]:
        """Every object."""
        with LoopThread("source-loop") as loop:
            return loop.run(self._list())

    async def _list(self) -> list[SourceFile]:
        async with open_store(self.url, **self.options) as store:
            await store.check()
            if self.only is not None:
                info = await store.info(self.only)
                return [SourceFile(self.only, info.size, info.etag)]
            return [SourceFile(info.key, info.size, info.etag) async for info in store.list()]

    @contextmanager
    def reading(self) -> Iterator[ReadRanges]:
        store = open_store(self.url, **self.options)
        with LoopThread("source-loop") as loop:
            loop.run(store.__aenter__())
            try:
                yield _ReadBucket(store, loop)
            finally:
                loop.run(store.close())


class _ReadBucket(ReadRanges):
    """Packs nothing: its reads do not wait for Python, and one that is repeated costs a request."""

    def __init__(self, store: Store, loop: LoopThread) -> None:
        self._store = store
        self._loop = loop

    def into(
        self, ranges: Sequence[FileRange], memory: RunMemory
    ) -> Iterator[memoryview | Unreadable]:
        pieces = [memory.take(wanted.length) for wanted in ranges]
        return iter(self._loop.run(_read_all(self._store, ranges, pieces)))


async def _read_all(
    store: Store, ranges: Sequence[FileRange], pieces: Sequence[memoryview]
) -> list[memoryview | Unreadable]:
    at_once = asyncio.Semaphore(_READS_IN_FLIGHT)

    async def read(wanted: FileRange, data: memoryview) -> memoryview | Unreadable:
        file = wanted.file
        async with at_once:
            try:
                await store.read_into(file.path, wanted.offset, data, file.etag)
            except NotFound:
                return Unreadable("is not there any more")
            except Truncated:
                return Unreadable(f"has less than the {file.size} bytes it was listed with")
            except Changed:
                return Unreadable("changed during the conversion: it is another object now")
        return data

    return await all_or_cancel(list(map(read, ranges, pieces)))


def is_in_bucket(path: str) -> bool:
    """Tell whether a path is the URL of something that is no local file."""
    return "://" in path and not path.lower().startswith("file://")


def open_place(
    path: str, options: Mapping[str, Any] | None = None, *, is_object: bool = False
) -> Place:
    """Return the place that a path or URL names; nothing is asked of a bucket yet.

    Args:
        path: a path or URL.
        options: of ``open_store``, for buckets.
        is_object: a URL is that of one object, not of a prefix.
    """
    if is_in_bucket(path):
        if not is_object:
            return Bucket(path, dict(options or {}))
        prefix, _, name = path.rpartition("/")
        return Bucket(prefix, dict(options or {}), only=name)
    absolute = open_store(path).url
    if os.path.isfile(absolute):
        return Folder(os.path.dirname(absolute), only=os.path.basename(absolute))
    return Folder(absolute)


def read_local(path: str, wanted: FileRange, memory: RunMemory) -> memoryview | Unreadable:
    """Read bytes of a local file, if it still is the one that was listed: plans rest on it."""
    data = memory.take(wanted.length)
    try:
        fd = open_nonblocking(path, os.O_RDONLY)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                return Unreadable("changed during the conversion: no regular file any more")
            if status.st_size != wanted.file.size:
                return Unreadable(
                    f"changed during the conversion: listed with {wanted.file.size} bytes, now"
                    f" {status.st_size}"
                )
            got = _read_at(fd, wanted.offset, data)
        finally:
            os.close(fd)
    except OSError as error:
        return Unreadable(f"cannot be read: {error.strerror or error}")
    if got != wanted.length:
        return Unreadable(f"changed during the conversion: {got} of {wanted.length} bytes")
    return data


def _read_at(fd: int, offset: int, data: memoryview) -> int:
    """Fill ``data``, as far as the file goes; in one call, but for what systems give in several."""
    got = os.preadv(fd, [data], offset)
    while got < len(data):
        more = os.preadv(fd, [data[got:]], offset + got)
        if not more:
            break
        got += more
    return got


def open_nonblocking(path: str, flags: int) -> int:
    """Open without waiting: a file may have become a FIFO since it was listed."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def is_hidden(name: str) -> bool:
    """Tell whether a file or folder is one that systems leave behind, or meant to be unseen."""
    return name.startswith(".") or name.lower() in _HIDDEN_NAMES


def require_bytes(data: bytes | Unreadable, place: Place, file: SourceFile) -> bytes:
    """Return bytes without which the source as a whole cannot be understood.

    Raises:
        ConfigError: they could not be read.
    """
    if isinstance(data, Unreadable):
        raise ConfigError(f"{utf8_name(file.path)} of {utf8_name(place.url)} {data.reason}")
    return data


def _unlistable(error: OSError) -> None:
    raise ConfigError(
        f"cannot read the folder {utf8_name(str(error.filename))}: {error.strerror};"
        " make it readable or move it out of the source"
    ) from error

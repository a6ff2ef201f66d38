"""The contract that every backend keeps."""

from __future__ import annotations

import asyncio
import enum
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from storage_backends.errors import Misconfigured, StorageError

#: Largest object that ``Store.read`` accepts unless told otherwise.
READ_MAX_BYTES = 64 * 2**20


class Buffer(Protocol):
    """Anything with the buffer protocol: memoryview, bytearray, a numpy array, mmap…"""

    def __buffer__(self, flags: int, /) -> memoryview: ...


class Counters(Protocol):
    """Where a store counts: any object with these two methods, called from the store's loop.

    Counted are ``storage.requests``, ``storage.retries``, ``storage.bytes_read`` and
    ``storage.bytes_written``; observed is ``storage.read_s`` per completed ``read_into``.
    """

    def add(self, name: str, value: int = 1) -> None: ...

    def observe(self, name: str, seconds: float) -> None: ...


class NullCounters:
    """Counts nothing."""

    def add(self, name: str, value: int = 1) -> None:
        """Ignores the count."""

    def observe(self, name: str, seconds: float) -> None:
        """Ignores the time."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One stored object.

    Attributes:
        key: its key, relative to the URL of the store.
        size: its length in bytes.
        etag: opaque; equal as long as the content is the same object. None if there is none.
    """

    key: str
    size: int
    etag: str | None


class OpenFiles(Protocol):
    """A store's objects as open files, for threads that read by themselves."""

    def opened(self, keys: Sequence[str]) -> AbstractContextManager[list[int]]:
        """Descriptors for positioned reads of the objects, good inside the block.

        Raises StorageError. An object that was replaced may still be read as it was.
        """
        ...

    def count(self, sizes_bytes: Sequence[int], times_s: Sequence[float]) -> None:
        """Counts reads as ``Store.read_into`` counts its own: bytes and seconds of each."""
        ...


@dataclass(frozen=True, slots=True)
class UnfinishedWrite:
    """What a writer that was killed has left in the storage.

    Attributes:
        key: what was being written, relative to the URL of the store; for a local store the
            temporary file itself, whose target nothing tells.
        upload_id: what a bucket knows the upload by; None for local files.
        size: bytes that it takes; None where the storage does not say.
    """

    key: str
    upload_id: str | None
    size: int | None


class ObjectWriter(ABC):
    """Writes one object as a stream, inside ``async with``.

    Leaving the block normally makes the whole object visible at once; leaving it by an exception,
    cancellation included, leaves nothing behind and what was there before untouched.

    Attributes:
        bytes_written: bytes given to ``write`` so far.
    """

    bytes_written: int = 0

    @abstractmethod
    async def write(self, data: Buffer) -> None:
        """Appends ``data``; the caller may reuse its memory when the call has returned."""

    async def write_all(self, pieces: Sequence[Buffer]) -> None:
        """Appends several pieces, as ``write`` does one, without joining them first."""
        for piece in pieces:
            await self.write(piece)

    @abstractmethod
    async def __aenter__(self) -> Self: ...

    @abstractmethod
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


class _State(enum.Enum):
    NEW = "is not open yet; use it inside 'async with'"
    OPEN = "is open"
    CLOSED = "is closed; open another one"


class Store(ABC):
    """Objects below one URL, by key. Made by ``open_store``, used inside ``async with``.

    A store belongs to the event loop that entered it. Its calls may run concurrently. Every call
    may raise any ``StorageError``; those named below are the ones that belong to the call.

    Attributes:
        url: normalised, without a trailing slash, never with a secret.
        parallel_reads: how many reads at once serve this kind of storage well.
        open_files: of the same objects, where they are files; to be used while the store is open.
            None elsewhere.
        parallel_commits: how many writers may wait at once to have their objects acknowledged;
            each keeps what it has not sent.
        is_durable: what was written stays, also when the machine fails just then.
    """

    parallel_reads: int = 32
    open_files: OpenFiles | None = None
    parallel_commits: int = 1
    is_durable: bool = True

    def __init__(self, url: str, counters: Counters | None) -> None:
        self.url = url
        self._counters: Counters = counters if counters is not None else NullCounters()
        self._state = _State.NEW
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> Self:
        if self._state is not _State.NEW:
            raise Misconfigured(f"the store {self.url} {self._state.value}", url=self.url)
        self._state = _State.OPEN
        self._loop = asyncio.get_running_loop()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Releases everything the store holds; no call may be running. Idempotent."""
        if self._state is _State.OPEN:
            self._state = _State.CLOSED
            await self._close()

    def _require_open(self) -> None:
        if self._state is not _State.OPEN:
            raise Misconfigured(f"the store {self.url} {self._state.value}", url=self.url)
        if self._loop is not asyncio.get_running_loop():
            raise Misconfigured(
                f"the store {self.url} belongs to another event loop; open one per loop",
                url=self.url,
            )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    @abstractmethod
    async def _close(self) -> None: ...

    @abstractmethod
    async def info(self, key: str) -> ObjectInfo:
        """Size and etag of an object, without its content. Raises NotFound."""

    @abstractmethod
    async def read_into(
        self, key: str, offset: int, buffer: Buffer, etag: str | None = None
    ) -> None:
        """Fills the whole of ``buffer`` with the object's bytes from ``offset`` on.

        The buffer is written only while the call runs: when it has returned, raised, or its
        cancellation has been awaited, nothing touches the buffer any more. After an error its
        content is undefined. An empty buffer is filled without asking the storage.

        Args:
            key: the object.
            offset: first byte to read.
            buffer: writable, C-contiguous memory of any item type.
            etag: as given by ``info`` or ``list``; reads that object or none.

        Raises:
            NotFound: there is no such object.
            Truncated: the object ends before the buffer is full.
            Changed: ``etag`` was given and the object has another one now.
        """

    @abstractmethod
    async def read(self, key: str, max_bytes: int = READ_MAX_BYTES) -> bytes:
        """The whole of a small object.

        Raises:
            NotFound: there is no such object.
            StorageError: it is larger than ``max_bytes``; known before its content is read.
        """

    @abstractmethod
    def list(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        """All objects whose key starts with ``prefix``, in the order of their UTF-8 bytes.

        ``prefix`` is a plain string prefix: ``"train"`` finds ``train/a`` and ``train2``. A bucket
        without such objects gives an empty listing; a bucket or folder that does not exist gives
        NotFound.
        """

    @abstractmethod
    def open_writer(self, key: str) -> ObjectWriter:
        """A writer of the object ``key``, of any length; it replaces the object on commit."""

    @abstractmethod
    async def put(self, key: str, data: Buffer) -> None:
        """Writes a small object at once; readers see the old or the new one, never a mixture."""

    @abstractmethod
    async def put_if_absent(self, key: str, data: Buffer) -> bool:
        """Writes a small object if there is none; False, and nothing written, if there is one.

        Of several callers that race for one key, exactly one gets True.
        """

    @abstractmethod
    async def delete(self, key: str) -> None:
        """Removes an object; no error if there is none."""

    def unfinished(self) -> AsyncIterator[UnfinishedWrite]:
        """What writers of this library left that were killed, or that are still at work.

        Nothing tells the two apart. None in a storage where a write leaves nothing.
        """
        return _nothing()

    async def discard(self, write: UnfinishedWrite) -> None:
        """Removes what an unfinished write has left; a writer that is at work will fail.

        No error if it is gone, or has become complete.
        """
        raise Misconfigured(
            f"{self.url} has no unfinished writes, so {write.key!r} is none", url=self.url
        )

    @abstractmethod
    async def check(self) -> None:
        """Returns if the place itself can be used, else raises the error that says why not.

        S3: the bucket exists and may be listed. Local: the folder can be searched, or, if it does
        not exist, its nearest existing parent is a folder in which it could be made.
        """


async def _nothing() -> AsyncIterator[UnfinishedWrite]:
    none: tuple[UnfinishedWrite, ...] = ()
    for write in none:
        yield write


def writable_bytes(buffer: Buffer, url: str) -> memoryview:
    """``buffer`` as flat writable bytes; Misconfigured if it is not contiguous and writable."""
    view = memoryview(buffer)
    if view.readonly:
        raise Misconfigured(f"cannot read {url} into a read-only buffer", url=url)
    if not view.c_contiguous:
        raise Misconfigured(f"cannot read {url} into a buffer that is not contiguous", url=url)
    return _flat(view)


def readable_bytes(data: Buffer, url: str) -> memoryview:
    """``data`` as flat bytes; Misconfigured if it is not contiguous."""
    view = memoryview(data)
    if not view.c_contiguous:
        raise Misconfigured(f"cannot write {url} from memory that is not contiguous", url=url)
    return _flat(view)


def check_offset(offset: int, url: str) -> None:
    """Misconfigured if ``offset`` is negative."""
    if offset < 0:
        raise Misconfigured(f"offset of {url} must be at least 0, got {offset}", url=url)


def too_large(url: str, size: int, max_bytes: int) -> StorageError:
    """The error of ``Store.read`` for an object above the limit."""
    return StorageError(
        f"{url} has {size} bytes, more than the {max_bytes} expected; is it the right object?",
        url=url,
        code="EntityTooLarge",
    )


def _flat(view: memoryview) -> memoryview:
    # An empty view cannot be cast.
    return view.cast("B") if view.nbytes else memoryview(bytearray())

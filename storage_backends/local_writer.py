"""A streamed write of one file."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from storage_backends.errors import Misconfigured, StorageError
from storage_backends.local_errors import printable
from storage_backends.local_new_file import NewFile
from storage_backends.local_threads import LocalThreads
from storage_backends.store import Buffer, ObjectWriter, readable_bytes

#: Writes are gathered up to this size, since each one costs a change of threads.
_GATHER_BYTES = 2**20


class LocalWriter(ObjectWriter):
    """Gathers small writes and hands them to the threads of the store.

    Args:
        threads: of the store.
        file: to be made.
    """

    def __init__(self, threads: LocalThreads, file: NewFile) -> None:
        self._threads = threads
        self._path = file.path
        self._file = file
        self._gathered = bytearray()
        self._open = False
        self.bytes_written = 0

    async def __aenter__(self) -> Self:
        await self._threads.run(self._path, self._file.create)
        self._open = True
        return self

    async def write(self, data: Buffer) -> None:
        await self.write_all([data])

    async def write_all(self, pieces: Sequence[Buffer]) -> None:
        if not self._open:
            raise Misconfigured(
                f"the writer of {printable(self._path)} is not open; use it inside 'async with'",
                url=self._path,
            )
        views = [readable_bytes(piece, self._path) for piece in pieces]
        size = sum(map(len, views))
        self.bytes_written += size
        if len(self._gathered) + size < _GATHER_BYTES:
            for view in views:
                self._gathered += view
            return
        await self._flush(views)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._open = False
        try:
            if error is None:
                await self._flush()
                await self._threads.commit(self._path, self._file.commit)
        except BaseException as failure:
            await self._discard(failure)
            raise
        if error is not None:
            await self._discard(error)
        else:
            self._threads.counters.add("storage.bytes_written", self.bytes_written)

    async def _flush(self, views: Sequence[memoryview] = ()) -> None:
        gathered, self._gathered = self._gathered, bytearray()
        pieces = [memoryview(gathered), *views] if gathered else list(views)
        if pieces:
            await self._threads.run(self._path, self._file.write_all, pieces)

    async def _discard(self, reason: BaseException) -> None:
        try:
            await self._threads.run(self._path, self._file.discard)
        except StorageError as error:
            reason.add_note(f"{printable(self._file.temporary)} is left behind: {error}")

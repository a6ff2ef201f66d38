"""Objects in a folder of this machine.

What the page cache holds is read at once, since handing it to a thread takes longer. Every system
call that may wait runs in a few threads of the store's own, and a call that is cancelled ends only
when its thread has let go of the caller's memory.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

import aiofiles

from storage_backends._cancellation import to_the_end
from storage_backends.errors import AccessDenied, Misconfigured, NotFound
from storage_backends.local_errors import printable
from storage_backends.local_files import FileReader, file_etag, open_regular, require_regular
from storage_backends.local_listing import Folder, root_folder, scan
from storage_backends.local_new_file import NewFile, is_unfinished
from storage_backends.local_open_files import LocalOpenFiles, object_path
from storage_backends.local_threads import COMMITS_AT_ONCE, LocalThreads, translated
from storage_backends.local_writer import LocalWriter
from storage_backends.options import StorageOptions
from storage_backends.store import (
    READ_MAX_BYTES,
    Buffer,
    Counters,
    ObjectInfo,
    ObjectWriter,
    Store,
    UnfinishedWrite,
    check_offset,
    readable_bytes,
    too_large,
    writable_bytes,
)
from storage_backends.urls import LocalLocation

_MAKE = os.W_OK | os.X_OK

Result = TypeVar("Result")


class LocalStore(Store):
    """A folder; keys are paths below it, with ``/`` between the parts."""

    parallel_reads = 8
    parallel_commits = COMMITS_AT_ONCE

    def __init__(
        self, location: LocalLocation, options: StorageOptions, counters: Counters | None
    ) -> None:
        super().__init__(location.url, counters)
        self.is_durable = options.sync
        self._root = location.path
        self._reader = FileReader()
        self._threads = LocalThreads(self._counters)
        self.open_files = LocalOpenFiles(self._root, self._reader, self._counters)

    async def _close(self) -> None:
        self._threads.close()
        self._reader.close()

    async def info(self, key: str) -> ObjectInfo:
        path = self._path(key)
        status = await self._threads.run(path, _regular_status, path)
        return ObjectInfo(key, status.st_size, file_etag(status))

    async def read_into(
        self, key: str, offset: int, buffer: Buffer, etag: str | None = None
    ) -> None:
        path = self._path(key)
        target = writable_bytes(buffer, path)
        check_offset(offset, path)
        if not len(target):
            return
        now = asyncio.get_running_loop().time
        start = now()
        with translated(path):
            done = self._reader.read_cached(path, offset, target, etag)
            if done == len(target):
                self._counters.add("storage.requests")
            else:
                await self._read_in_thread(path, offset + done, target[done:], etag)
        self._counters.add("storage.bytes_read", len(target))
        self._counters.observe("storage.read_s", now() - start)

    async def _read_in_thread(
        self, path: str, offset: int, target: memoryview, etag: str | None
    ) -> None:
        cancelled = threading.Event()
        read = self._threads.start(self._reader.read_into, path, offset, target, etag, cancelled)
        await to_the_end(read, hurry=cancelled.set)

    async def read(self, key: str, max_bytes: int = READ_MAX_BYTES) -> bytes:
        path = self._path(key)
        with translated(path):
            data = await to_the_end(self._read_whole(path, max_bytes))
        self._counters.add("storage.bytes_read", len(data))
        return data

    async def list(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        self._require_open()
        waiting: list[Folder | ObjectInfo] = [
            await self._threads.run(self._root, root_folder, self._root)
        ]
        while waiting:
            item = waiting.pop()
            if isinstance(item, ObjectInfo):
                yield item
            else:
                waiting.extend(reversed(await self._threads.run(item.path, scan, item, prefix)))

    def open_writer(self, key: str) -> ObjectWriter:
        return LocalWriter(self._threads, NewFile(self._path(key), sync=self.is_durable))

    async def put(self, key: str, data: Buffer) -> None:
        await self._create(key, data, NewFile.commit)

    async def put_if_absent(self, key: str, data: Buffer) -> bool:
        return await self._create(key, data, NewFile.commit_if_absent)

    async def delete(self, key: str) -> None:
        path = self._path(key)
        try:
            await self._threads.run(path, os.unlink, path)
        except NotFound as error:
            if error.code not in ("ENOENT", "ENOTDIR"):
                raise

    async def unfinished(self) -> AsyncIterator[UnfinishedWrite]:
        self._require_open()
        for path, size in await self._threads.run(self._root, _unfinished_files, self._root):
            yield UnfinishedWrite(path, None, size)

    async def discard(self, write: UnfinishedWrite) -> None:
        if not is_unfinished(os.path.basename(write.key)):
            raise Misconfigured(
                f"{printable(write.key)!r} is no unfinished file; delete it by its key",
                url=self._root,
            )
        await self.delete(write.key)

    async def check(self) -> None:
        self._require_open()
        await self._threads.run(self._root, _check_folder, self._root)

    def _path(self, key: str) -> str:
        self._require_open()
        return object_path(self._root, key)

    async def _read_whole(self, path: str, max_bytes: int) -> bytes:
        self._counters.add("storage.requests")
        async with aiofiles.open(
            path, "rb", opener=lambda name, _: open_regular(name), executor=self._threads.executor
        ) as file:
            size = os.fstat(file.fileno()).st_size
            if size > max_bytes:
                raise too_large(path, size, max_bytes)
            return await file.read()

    async def _create(self, key: str, data: Buffer, commit: Callable[[NewFile], Result]) -> Result:
        path = self._path(key)
        view = readable_bytes(data, path)
        file = NewFile(path, sync=self.is_durable)
        result = await self._threads.run(path, _write_file, file, view, commit)
        self._counters.add("storage.bytes_written", len(view))
        return result


def _regular_status(path: str) -> os.stat_result:
    return require_regular(os.stat(path), path)


def _write_file(file: NewFile, data: memoryview, commit: Callable[[NewFile], Result]) -> Result:
    try:
        file.create()
        file.write_all([data])
        return commit(file)
    finally:
        file.discard()


def _unfinished_files(root: str) -> list[tuple[str, int]]:
    """Temporary files below a folder by their relative paths, with their sizes, sorted."""
    found = []
    for folder, _, names in os.walk(root):
        for name in filter(is_unfinished, names):
            path = os.path.join(folder, name)
            try:
                found.append((os.path.relpath(path, root), os.lstat(path).st_size))
            except FileNotFoundError:
                # Its writer has ended since.
                continue
    return sorted(found)


def _check_folder(root: str) -> None:
    existing = root
    while not os.path.lexists(existing):
        existing = os.path.dirname(existing)
    needed, doing = (os.R_OK | os.X_OK, "read") if existing == root else (_MAKE, "make folders in")
    shown = printable(existing)
    if not os.path.isdir(existing):
        raise NotFound(f"{shown} is not a folder; give another path", url=root, code="ENOTDIR")
    if not os.access(existing, needed, effective_ids=os.access in os.supports_effective_ids):
        raise AccessDenied(
            f"no permission to {doing} {shown}; change its owner or mode", url=root, code="EACCES"
        )

"""Reading local objects in threads that may block, without an event loop."""

from __future__ import annotations

import os
import threading
import time

from storage_backends.errors import Misconfigured
from storage_backends.local_errors import printable
from storage_backends.local_files import FileReader
from storage_backends.local_threads import translated
from storage_backends.store import Counters


class LocalBlockingReader:
    """The ``blocking_reader`` of a local store.

    Args:
        root: folder of the store.
        reader: of its files; closed by the store.
    """

    def __init__(self, root: str, reader: FileReader, counters: Counters) -> None:
        self._root = root
        self._reader = reader
        self._counters = counters

    def read_into(
        self, key: str, offset: int, buffer: memoryview, cancelled: threading.Event
    ) -> None:
        path = object_path(self._root, key)
        start = time.perf_counter()
        with translated(path):
            self._reader.read_into(path, offset, buffer, None, cancelled)
        self._counters.add("storage.requests")
        self._counters.add("storage.bytes_read", len(buffer))
        self._counters.observe("storage.read_s", time.perf_counter() - start)


def object_path(root: str, key: str) -> str:
    """Where the object is; Misconfigured for a key that would lead out of the folder.

    ``a//b`` and ``./a`` are refused as well, since they would be second names of one object.
    """
    parts = key.split("/")
    if "\0" in key or any(part in ("", ".", "..") for part in parts):
        raise Misconfigured(
            f"key {printable(key)!r} cannot be a file below {printable(root)}; use a "
            "relative path without '.', '..' or empty parts",
            url=root,
        )
    return os.path.join(root, key)

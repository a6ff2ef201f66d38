"""Local objects as open files, for threads that read without an event loop."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from storage_backends.errors import Misconfigured
from storage_backends.local_errors import printable
from storage_backends.local_files import FileReader
from storage_backends.local_threads import translated
from storage_backends.store import Counters


class LocalOpenFiles:
    """The ``open_files`` of a local store; safe to use from several threads.

    Args:
        root: folder of the store.
        reader: has the descriptors; closed by the store.
    """

    def __init__(self, root: str, reader: FileReader, counters: Counters) -> None:
        self._root = root
        self._reader = reader
        self._counters = counters

    @contextmanager
    def opened(self, keys: Sequence[str]) -> Iterator[list[int]]:
        with ExitStack() as stack:
            descriptors = []
            for key in keys:
                path = object_path(self._root, key)
                with translated(path):
                    descriptors.append(stack.enter_context(self._reader.held(path)))
            yield descriptors

    def count(self, sizes_bytes: Sequence[int], times_s: Sequence[float]) -> None:
        self._counters.add("storage.requests", len(sizes_bytes))
        self._counters.add("storage.bytes_read", sum(sizes_bytes))
        for seconds in times_s:
            self._counters.observe("storage.read_s", seconds)


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

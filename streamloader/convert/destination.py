"""The place a conversion writes to, open as long as it lasts."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from storage_backends import Store, open_store
from streamloader.fetch import LoopThread
from streamloader.monitor import Counters


@dataclass(frozen=True, slots=True, eq=False)
class Destination:
    """An opened store and the loop that it works in.

    Args:
        store: entered in ``loop``.
        loop: runs everything that waits.
        options: of ``open_store``, with which another process opens it too.
        counters: get what the store does.
    """

    store: Store
    loop: LoopThread
    options: Mapping[str, Any] = field(repr=False)
    counters: Counters

    @property
    def url(self) -> str:
        """Where it is."""
        return self.store.url

    @property
    def requests(self) -> int:
        """Requests and calls of the system, repeated ones included."""
        return self.counters.count("storage.requests")

    @property
    def retries(self) -> int:
        """Requests that were repeated, since the storage or the network failed."""
        return self.counters.count("storage.retries") + self.counters.count("storage.reconnects")


@contextmanager
def open_destination(
    dest: str | os.PathLike[str], options: Mapping[str, Any] | None
) -> Iterator[Destination]:
    """Hold a destination open.

    Raises:
        StorageError: options that cannot work.
    """
    counters = Counters()
    store = open_store(os.fspath(dest), counters, **(options or {}))
    with LoopThread("convert-loop") as loop:
        loop.run(store.__aenter__())
        try:
            yield Destination(store, loop, options or {}, counters)
        finally:
            loop.run(store.close())

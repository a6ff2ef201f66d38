"""Closes what users forget to close: when a loader is collected, and at interpreter exit.

The interpreter joins non-daemon threads before it runs ``atexit`` functions, so those would
come too late; ``threading._register_atexit`` runs before the join. It is private, and what
``concurrent.futures`` uses for the same purpose.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol


class Closable(Protocol):
    def close(self) -> None: ...


class CloseAtExit:
    """Engines that are open, closed together at interpreter exit."""

    def __init__(self) -> None:
        self._open: weakref.WeakSet[Any] = weakref.WeakSet()
        self._registered = False
        self._lock = threading.Lock()

    def watch(self, engine: Closable) -> None:
        """Closes ``engine`` at interpreter exit if it still lives then."""
        with self._lock:
            self._open.add(engine)
            if not self._registered:
                threading._register_atexit(self._close_all)  # type: ignore[attr-defined]  # noqa: SLF001 - see the module
                self._registered = True

    def _close_all(self) -> None:
        for engine in list(self._open):
            engine.close()


def outside_own_threads(end: Callable[[], None]) -> None:
    """Calls ``end``, from a new thread if this one is streamloader's own.

    The garbage collector runs finalisers in whichever thread it happens to interrupt, and a
    thread cannot wait for itself to end.
    """
    if threading.current_thread().name.startswith("streamloader-"):
        threading.Thread(target=end, name="closing-streamloader").start()
    else:
        end()


close_at_exit = CloseAtExit()

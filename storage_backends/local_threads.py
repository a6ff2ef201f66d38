"""The threads of a local store."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from storage_backends._cancellation import to_the_end
from storage_backends.local_errors import storage_error
from storage_backends.store import Counters

_THREADS = 4
#: Threads that wait until the disk has all of a file; nothing else is to wait behind them.
COMMITS_AT_ONCE = 8

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class LocalThreads:
    """Runs blocking calls off the event loop.

    Attributes:
        counters: gets a ``storage.requests`` per call; the callers count bytes.
        executor: the threads; they start with the first call.
        committers: threads of their own for what only waits for the disk.
    """

    def __init__(self, counters: Counters) -> None:
        self.counters = counters
        self.executor = ThreadPoolExecutor(_THREADS, "storage-local")
        self.committers = ThreadPoolExecutor(COMMITS_AT_ONCE, "storage-local-commit")

    async def run(
        self,
        path: str,
        function: Callable[Arguments, Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        """Calls ``function`` to its end, cancelled or not; its OSError is one of ``path``."""
        with translated(path):
            return await to_the_end(self.start(function, *args, **kwargs))

    def start(
        self,
        function: Callable[Arguments, Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> asyncio.Future[Result]:
        """Starts ``function`` in a thread."""
        return self._start(self.executor, functools.partial(function, *args, **kwargs))

    async def commit(self, path: str, function: Callable[[], Result]) -> Result:
        """As ``run``, for a call that only waits for the disk."""
        with translated(path):
            return await to_the_end(self._start(self.committers, function))

    def _start(
        self, executor: ThreadPoolExecutor, call: Callable[[], Result]
    ) -> asyncio.Future[Result]:
        self.counters.add("storage.requests")
        return asyncio.get_running_loop().run_in_executor(executor, call)

    def close(self) -> None:
        """Ends the threads; no call may be running."""
        self.executor.shutdown()
        self.committers.shutdown()


@contextlib.contextmanager
def translated(path: str) -> Iterator[None]:
    """Turns an OSError into this package's error for ``path``."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, path) from error

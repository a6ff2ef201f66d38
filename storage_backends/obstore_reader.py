"""Reads through obstore: for Google Cloud and Azure, and for S3 with ``reader="obstore"``."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

from storage_backends._retry import Fault, RetryPolicy
from storage_backends.errors import AccessDenied, Misconfigured, NotFound, Unavailable
from storage_backends.http_faults import xml_value
from storage_backends.http_part import bare_etag
from storage_backends.refusals import (
    Place,
    answer_fault,
    broken_body,
    changed,
    too_short,
    wrong_answer,
)
from storage_backends.store import Counters, too_large

#: Other than the objects themselves: what an obstore client is made with.
CLIENT = {"allow_http": True, "connect_timeout": "3s", "read_timeout": "10s", "timeout": "10min"}
#: There is one retry policy, ours.
RETRY: dict[str, Any] = {"max_retries": 0}
_STATUS = re.compile(r"status[: ]+(\d{3})|\b(\d{3}) [A-Z][a-z]+")

#: The client that has the objects; asked anew per attempt, since credentials change.
Client = Callable[[Place], Awaitable[Any]]


def import_obstore() -> Any:
    """The library; Misconfigured if it is not there."""
    try:
        import obstore
    except ImportError as error:
        raise Misconfigured(
            "obstore is not installed; install it with: pip install 'streamloader[cloud]'", url=""
        ) from error
    return obstore


class ObstoreReader:
    """Copies what obstore has read; checks, resumes and repeats as every reader does.

    Attributes:
        errors: what its calls may raise when storage or network fail.

    Args:
        client: gives the client.
        policy: repeats attempts.
        counters: gets ``storage.requests`` and ``storage.bytes_read``.
    """

    def __init__(self, client: Client, policy: RetryPolicy, counters: Counters) -> None:
        self._obstore = import_obstore()
        # A missing object is an error of the language's own kind.
        self.errors = (self._obstore.exceptions.BaseError, OSError)
        self._client = client
        self._policy = policy
        self._counters = counters

    async def read_into(
        self, place: Place, key: str, target: memoryview, offset: int, etag: str | None
    ) -> None:
        """Fills ``target``; as ``Store.read_into``."""
        now = asyncio.get_running_loop().time
        start = now()
        read = _Read(place, key, target, offset, etag)
        await self._policy.run(lambda: self._attempt(read), place.url)
        self._counters.observe("storage.read_s", now() - start)

    async def read(self, place: Place, key: str, max_bytes: int) -> bytes:
        """The whole of a small object; as ``Store.read``."""

        async def attempt() -> bytes:
            result = await self.call(place, self._obstore.get_async, key)
            size = int(result.meta["size"])
            if size > max_bytes:
                raise Fault(too_large(place.url, size, max_bytes), transient=False)
            read = _Read(place, key, memoryview(bytearray(size)), 0, None)
            await self._receive(result, read)
            return bytes(read.target)

        return await self._policy.run(attempt, place.url)

    async def close(self) -> None:
        """obstore closes its connections itself."""

    async def call(self, place: Place, operation: Any, *args: Any, **more: Any) -> Any:
        """One attempt of one operation. Raises Fault."""
        client = await self._client(place)
        self._counters.add("storage.requests")
        try:
            result = await operation(client, *args, **more)
        except self.errors as error:
            raise self.fault_of(error, place) from error
        except ValueError as error:
            raise _bad_key(place) from error
        self._policy.note_answer()
        return result

    def fault_of(self, error: Exception, place: Place) -> Fault:
        """The fault of an operation that ended in ``error``."""
        kinds = self._obstore.exceptions
        text = str(error)
        code = xml_value("Code", text.encode())
        found = _STATUS.search(text)
        status = int(found[1] or found[2]) if found else None
        if isinstance(error, kinds.NotFoundError | FileNotFoundError):
            status, code = 404, code or "NoSuchKey"
        elif isinstance(error, kinds.PermissionDeniedError | kinds.UnauthenticatedError):
            status = 403 if isinstance(error, kinds.PermissionDeniedError) else 401
        elif isinstance(error, kinds.PreconditionError):
            return changed(place, 412)
        elif isinstance(error, kinds.InvalidPathError):
            return _bad_key(place)
        if status is not None and status >= 300:
            self._policy.note_answer()
            return answer_fault(status, code or str(status), "", {}, place)
        message = f"{place}: the connection failed or broke; check endpoint and network"
        failure = Unavailable(message, url=place.url, code=type(error).__name__)
        return Fault(failure, transient=True, unreached=True)

    async def _attempt(self, read: _Read) -> None:
        options: dict[str, Any] = {"range": (read.offset + read.done, read.end)}
        if read.etag is not None:
            options["if_match"] = f'"{read.etag}"'
        try:
            result = await self.call(read.place, self._obstore.get_async, read.key, options=options)
        except Fault as fault:
            if fault.error.status == 416 or _is_out_of_range(fault):
                raise too_short(read.place, read.end, None, 416) from fault.__cause__
            raise
        etag = bare_etag(result.meta["e_tag"])
        if read.etag is None:
            read.etag = etag
        elif etag is not None and etag != read.etag:
            raise changed(read.place, 206)
        size = int(result.meta["size"])
        if size < read.end:
            raise too_short(read.place, read.end, size, 206)
        if tuple(result.range) != (read.offset + read.done, read.end):
            raise wrong_answer(read.place, f"the range {tuple(result.range)}", 206)
        await self._receive(result, read)

    async def _receive(self, result: Any, read: _Read) -> None:
        before = read.done
        try:
            async for chunk in result.stream():
                end = read.done + len(chunk)
                if end > len(read.target):
                    raise wrong_answer(read.place, "more bytes than it announced", 206)
                read.target[read.done : end] = memoryview(chunk)
                read.done = end
        except self.errors as error:
            raise broken_body(read.place, read.done, len(read.target)) from error
        finally:
            self._counters.add("storage.bytes_read", read.done - before)
        if read.done < len(read.target):
            raise broken_body(read.place, read.done, len(read.target))


class _Read:
    """State of one read across its attempts."""

    __slots__ = ("done", "etag", "key", "offset", "place", "target")

    def __init__(
        self, place: Place, key: str, target: memoryview, offset: int, etag: str | None
    ) -> None:
        self.place = place
        self.key = key
        self.target = target
        self.offset = offset
        self.etag = etag
        self.done = 0

    @property
    def end(self) -> int:
        """Byte of the object behind the last one that is wanted."""
        return self.offset + len(self.target)


def _is_out_of_range(fault: Fault) -> bool:
    """obstore sees a range beyond the object itself, and says so in words only."""
    cause = fault.__cause__
    said = str(cause).casefold()
    known = isinstance(fault.error, NotFound | AccessDenied)
    return not known and ("invalid range" in said or "416 range not" in said)


def _bad_key(place: Place) -> Fault:
    """Empty and dot segments and control characters, which obstore refuses."""
    message = f"{place}: obstore takes no such key; rename it or use another reader"
    return Fault(Misconfigured(message, url=place.url, code="InvalidPath"), transient=False)

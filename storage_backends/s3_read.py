"""One read of an S3 object: a range into the caller's memory, or the whole of a small object.

A body that breaks is taken up where it broke, pinned to the etag seen first, so that the bytes of
two versions never mix.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import aiohttp

from storage_backends._retry import Fault
from storage_backends.http_part import bare_etag
from storage_backends.refusals import Place, broken_body, changed, too_short, wrong_answer
from storage_backends.s3_errors import ENGINE_ERRORS, fault_of
from storage_backends.s3_requests import S3Requests
from storage_backends.store import too_large

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


class S3Read:
    """State of one read across its attempts.

    Args:
        requests: how to reach the bucket.
        place: the object, for messages.
        key: full key within the bucket.
        target: memory to fill; None reads the whole object into memory of its own.
        offset: byte of the object that comes first in ``target``.
        etag: the version to read; the one met first if None.
        max_bytes: bound of a whole object.
    """

    def __init__(
        self,
        requests: S3Requests,
        place: Place,
        key: str,
        *,
        target: memoryview | None = None,
        offset: int = 0,
        etag: str | None = None,
        max_bytes: int = 0,
    ) -> None:
        self._requests = requests
        self._place = place
        self._key = key
        self._target = target
        self._offset = offset
        self._etag = etag
        self._max_bytes = max_bytes
        self._done = 0

    async def attempt(self) -> memoryview:
        """Reads what is still missing; returns the filled memory. Raises Fault."""
        arguments: dict[str, Any] = {"Key": self._key}
        if self._target is not None:
            first = self._offset + self._done
            arguments["Range"] = f"bytes={first}-{self._offset + len(self._target) - 1}"
        if self._etag is not None:
            arguments["IfMatch"] = f'"{self._etag}"'
        try:
            response = await self._requests.call(self._place, "get_object", **arguments)
        except Fault as fault:
            raise self._sharper(fault) from fault.__cause__
        # Before version 3 the engine's body was the HTTP response itself.
        body = getattr(response["Body"], "raw_stream", response["Body"])
        complete = False
        try:
            self._check_etag(response)
            target = self._check_length(response)
            await self._receive(body, target)
            complete = True
        finally:
            # What is left of an unwanted body would arrive in the next answer's place.
            body.release() if complete else body.close()
        return target

    def _sharper(self, fault: Fault) -> Fault:
        status = fault.error.status
        if status == 416 and self._target is not None:
            return too_short(self._place, self._offset + len(self._target), None, status)
        if status == 412:
            return changed(self._place, status)
        return fault

    def _check_etag(self, response: Mapping[str, Any]) -> None:
        etag = bare_etag(response.get("ETag"))
        if self._etag is None:
            self._etag = etag
        elif etag is not None and etag != self._etag:
            # Not every server that is called S3-compatible knows If-Match.
            raise changed(self._place, _status(response))

    def _check_length(self, response: Mapping[str, Any]) -> memoryview:
        """The memory to fill, after a look at whether the coming body is what was asked for."""
        length = response.get("ContentLength")
        if self._target is None:
            if length is None:
                raise wrong_answer(self._place, "no Content-Length", _status(response))
            if length > self._max_bytes:
                error = too_large(self._place.url, length, self._max_bytes)
                raise Fault(error, transient=False)
            self._target = memoryview(bytearray(length))
            return self._target
        wanted = len(self._target) - self._done
        if _status(response) == 206:
            self._check_range(response.get("ContentRange") or "")
        elif self._offset + self._done > 0:
            raise wrong_answer(self._place, "the whole object for a range of it", 200)
        elif length is not None and length < wanted:
            raise too_short(self._place, wanted, length, 200)
        if length is not None and length != wanted:
            raise wrong_answer(
                self._place, f"{length} bytes where {wanted} were asked for", _status(response)
            )
        return self._target

    def _check_range(self, text: str) -> None:
        assert self._target is not None
        match = _CONTENT_RANGE.fullmatch(text)
        first, end = self._offset + self._done, self._offset + len(self._target)
        if match is None or int(match[1]) != first:
            raise wrong_answer(
                self._place, f"range {text!r} instead of bytes {first}-{end - 1}", 206
            )
        size = None if match[3] == "*" else int(match[3])
        if size is not None and size < end:
            raise too_short(self._place, end, size, 206)
        if int(match[2]) != end - 1:
            raise wrong_answer(
                self._place, f"range {text!r} instead of bytes {first}-{end - 1}", 206
            )

    async def _receive(self, body: Any, target: memoryview) -> None:
        before = self._done
        try:
            while self._done < len(target):
                chunk = await body.content.readany()
                if not chunk:
                    raise broken_body(self._place, self._done, len(target))
                end = self._done + len(chunk)
                if end > len(target):
                    raise wrong_answer(self._place, "more bytes than it announced", body.status)
                target[self._done : end] = chunk
                self._done = end
        except ENGINE_ERRORS as error:
            if isinstance(error, aiohttp.ClientPayloadError):
                raise broken_body(self._place, self._done, len(target)) from error
            raise fault_of(error, self._place) from error
        finally:
            self._requests.counters.add("storage.bytes_read", self._done - before)


def _status(response: Mapping[str, Any]) -> int:
    return int(response["ResponseMetadata"]["HTTPStatusCode"])

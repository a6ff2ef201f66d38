"""A streamed upload: one PUT for what fits in a part, a multipart upload for everything longer."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Self

from storage_backends._cancellation import to_the_end
from storage_backends._retry import Fault
from storage_backends.errors import NotFound, StorageError
from storage_backends.http_part import bare_etag
from storage_backends.refusals import Place
from storage_backends.s3_requests import S3Requests
from storage_backends.store import Buffer, ObjectWriter, readable_bytes

_PARTS_IN_FLIGHT = 3
_ABORT_TIMEOUT_S = 10.0
#: What S3 allows per upload.
_MAX_PARTS = 10_000


class S3Writer(ObjectWriter):
    """Holds at most one part being filled and ``_PARTS_IN_FLIGHT`` being sent.

    Args:
        requests: how to reach the bucket.
        key: key relative to the store.
    """

    def __init__(self, requests: S3Requests, key: str) -> None:
        self._requests = requests
        self._relative_key = key
        self._key = requests.full_key(key)
        self._place: Place | None = None
        self._part = bytearray()
        self._upload_id: str | None = None
        self._sent = 0
        self._etags: dict[int, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.bytes_written = 0

    async def __aenter__(self) -> Self:
        self._place = await self._requests.place(self._relative_key, writing=True)
        return self

    async def write(self, data: Buffer) -> None:
        """Appends ``data``; waits only while too many parts are in flight."""
        place = self._entered()
        view = readable_bytes(data, place.url)
        self.bytes_written += len(view)
        while len(view):
            # A full part leaves only when more follows, so that what fits in one part exactly
            # becomes a plain PUT.
            if len(self._part) == self._requests.part_bytes:
                await self._send_part(place)
            room = self._requests.part_bytes - len(self._part)
            self._part += view[:room]
            view = view[room:]

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        place = self._entered()
        try:
            if error is None:
                await self._commit(place)
        except BaseException as failure:
            await self._abort(place, failure)
            raise
        else:
            if error is not None:
                await self._abort(place, error)
        finally:
            self._place = None

    def _entered(self) -> Place:
        if self._place is None:
            raise StorageError(
                f"the writer of {self._key!r} is not open; use it inside 'async with'",
                url=self._key,
            )
        return self._place

    async def _send_part(self, place: Place) -> None:
        """Starts the upload of the filled part, once there is room in flight."""
        await self._settle(_PARTS_IN_FLIGHT - 1)
        if self._sent == _MAX_PARTS:
            raise StorageError(
                f"{place} exceeds {_MAX_PARTS} parts of {self._requests.part_bytes} bytes; "
                "give a larger part_bytes",
                url=place.url,
                code="EntityTooLarge",
            )
        if self._upload_id is None:
            # To the end, since an upload whose id is not known cannot be aborted.
            await to_the_end(self._begin(place))
        self._sent += 1
        part, self._part = bytes(self._part), bytearray()
        self._tasks.add(asyncio.create_task(self._upload_part(place, self._sent, part)))

    async def _begin(self, place: Place) -> None:
        answer = await self._requests.run(place, "create_multipart_upload", Key=self._key)
        self._upload_id = answer["UploadId"]

    async def _upload_part(self, place: Place, number: int, part: bytes) -> None:
        target = {"Key": self._key, "UploadId": self._upload_id, "PartNumber": number}
        answer = await self._requests.repeat(
            place, lambda: self._requests.send(place, "upload_part", part, **target)
        )
        self._etags[number] = answer["ETag"]

    async def _settle(self, at_most: int) -> None:
        """Waits until at most ``at_most`` parts are in flight; raises what a part has raised."""
        while len(self._tasks) > at_most:
            done, self._tasks = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()

    async def _commit(self, place: Place) -> None:
        if self._upload_id is None:
            await put_object(self._requests, place, self._key, bytes(self._part))
            return
        if self._part:
            await self._send_part(place)
        await self._settle(0)
        target = {"Key": self._key, "UploadId": self._upload_id}
        completion = _Completion(self._requests, place, target, self._etags, self.bytes_written)
        await self._requests.repeat(place, completion.attempt)

    async def _abort(self, place: Place, reason: BaseException) -> None:
        """Leaves no part behind; what fails in it becomes a note on ``reason``."""
        for task in self._tasks:
            task.cancel()
        outcomes = await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = set()
        for outcome in outcomes:
            if isinstance(outcome, StorageError) and outcome is not reason:
                reason.add_note(f"a part of the upload had failed as well: {outcome}")
        if self._upload_id is None:
            return
        try:
            async with asyncio.timeout(_ABORT_TIMEOUT_S):
                await self._requests.run(
                    place, "abort_multipart_upload", Key=self._key, UploadId=self._upload_id
                )
        except NotFound:
            # The server has dropped the upload itself.
            return
        except (StorageError, TimeoutError) as error:
            reason.add_note(f"the unfinished upload {self._upload_id} is left behind: {error}")


class _Completion:
    """Completes an upload once, although the answer to an earlier attempt may have got lost."""

    def __init__(
        self,
        requests: S3Requests,
        place: Place,
        target: dict[str, Any],
        etags: dict[int, str],
        size: int,
    ) -> None:
        self._requests = requests
        self._place = place
        self._target = target
        self._parts = [{"PartNumber": n, "ETag": etag} for n, etag in sorted(etags.items())]
        self._size = size
        self._tried = False

    async def attempt(self) -> None:
        """Returns once the object is there. Raises Fault."""
        try:
            await self._requests.call(
                self._place,
                "complete_multipart_upload",
                **self._target,
                MultipartUpload={"Parts": self._parts},
            )
        except Fault as fault:
            if self._tried and fault.error.code == "NoSuchUpload" and await self._is_complete():
                return
            self._tried = True
            raise

    async def _is_complete(self) -> bool:
        """The object has the length, and by its etag the number of parts, of this upload."""
        head = await self._requests.call(self._place, "head_object", Key=self._target["Key"])
        etag = bare_etag(head.get("ETag")) or ""
        return head["ContentLength"] == self._size and etag.endswith(f"-{len(self._parts)}")


async def put_object(requests: S3Requests, place: Place, key: str, data: bytes) -> None:
    """One plain PUT under the retry policy."""
    await requests.repeat(place, lambda: requests.send(place, "put_object", data, Key=key))

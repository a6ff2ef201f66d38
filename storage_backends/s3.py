"""Objects in a bucket of S3 or of a server that speaks its protocol."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Self

from storage_backends._retry import Fault
from storage_backends.errors import NotFound
from storage_backends.http_part import bare_etag
from storage_backends.options import StorageOptions
from storage_backends.refusals import Place, wrong_answer
from storage_backends.s3_reader import ObjectReader, make_reader
from storage_backends.s3_requests import S3Requests
from storage_backends.s3_writer import S3Writer, put_object
from storage_backends.store import (
    READ_MAX_BYTES,
    Buffer,
    Counters,
    ObjectInfo,
    Store,
    UnfinishedWrite,
    check_offset,
    readable_bytes,
    writable_bytes,
)
from storage_backends.urls import S3Location

#: What S3 gives at most per request of a listing.
_PAGE_KEYS = 1_000


class S3Store(Store):
    """A bucket, or what is below a prefix of it."""

    def __init__(
        self, location: S3Location, options: StorageOptions, counters: Counters | None
    ) -> None:
        super().__init__(location.url, counters)
        self._requests = S3Requests(location, options, self._counters)
        self._options = options
        self._reader: ObjectReader | None = None

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._reader = make_reader(self._requests, self._options)
        return self

    def _open_reader(self) -> ObjectReader:
        assert self._reader is not None
        return self._reader

    async def _close(self) -> None:
        if self._reader is not None:
            await self._reader.close()
        await self._requests.close()

    async def info(self, key: str) -> ObjectInfo:
        place = await self._place(key)
        full_key = self._requests.full_key(key)
        head = await self._head(place, "head_object", Key=full_key)
        return ObjectInfo(key, int(head["ContentLength"]), bare_etag(head.get("ETag")))

    async def read_into(
        self, key: str, offset: int, buffer: Buffer, etag: str | None = None
    ) -> None:
        self._require_open()
        place = self._requests.known_place(key) or await self._requests.place(key)
        target = writable_bytes(buffer, place.url)
        check_offset(offset, place.url)
        if len(target):
            await self._open_reader().read_into(place, place.key, target, offset, bare_etag(etag))

    async def read(self, key: str, max_bytes: int = READ_MAX_BYTES) -> bytes:
        place = await self._place(key)
        return await self._open_reader().read(place, place.key, max_bytes)

    async def list(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        place = await self._place(None)
        if self._requests.lists_in_order:
            async for info in self._pages(place, prefix):
                yield info
            return
        found = [info async for info in self._pages(place, prefix)]
        # Strings compare by code point, which is the order of their UTF-8 bytes.
        found.sort(key=lambda info: info.key)
        for info in found:
            yield info

    async def _pages(self, place: Place, prefix: str) -> AsyncIterator[ObjectInfo]:
        own = self._requests.prefix
        arguments: dict[str, Any] = {"Prefix": own + prefix, "MaxKeys": _PAGE_KEYS}
        while True:
            page = await self._requests.run(place, "list_objects_v2", **arguments)
            for entry in page.get("Contents", ()):
                # A folder marker of the store's own prefix has no key within the store.
                if key := entry["Key"].removeprefix(own):
                    yield ObjectInfo(key, int(entry["Size"]), bare_etag(entry.get("ETag")))
            if not page.get("IsTruncated"):
                return
            token = page.get("NextContinuationToken")
            if not token or token == arguments.get("ContinuationToken"):
                raise wrong_answer(place, "a listing that does not go on", 200).error
            arguments["ContinuationToken"] = token

    def open_writer(self, key: str) -> S3Writer:
        self._require_open()
        return S3Writer(self._requests, key)

    async def put(self, key: str, data: Buffer) -> None:
        place = await self._place(key, writing=True)
        body = bytes(readable_bytes(data, place.url))
        await put_object(self._requests, place, self._requests.full_key(key), body)

    async def put_if_absent(self, key: str, data: Buffer) -> bool:
        place = await self._place(key, writing=True)
        body = bytes(readable_bytes(data, place.url))
        creation = _Creation(self._requests, place, self._requests.full_key(key), body)
        return await self._requests.repeat(place, creation.attempt)

    async def delete(self, key: str) -> None:
        place = await self._place(key, writing=True)
        await self._requests.run(place, "delete_object", Key=self._requests.full_key(key))

    async def unfinished(self) -> AsyncIterator[UnfinishedWrite]:
        place = await self._place(None)
        own = self._requests.prefix
        arguments: dict[str, Any] = {"Prefix": own, "MaxUploads": _PAGE_KEYS}
        while True:
            page = await self._requests.run(place, "list_multipart_uploads", **arguments)
            for upload in page.get("Uploads", ()):
                if key := upload["Key"].removeprefix(own):
                    yield UnfinishedWrite(key, upload["UploadId"], None)
            if not page.get("IsTruncated"):
                return
            marker = (page.get("NextKeyMarker"), page.get("NextUploadIdMarker"))
            if marker == (arguments.get("KeyMarker"), arguments.get("UploadIdMarker")):
                raise wrong_answer(place, "a listing of uploads that does not go on", 200).error
            arguments["KeyMarker"], arguments["UploadIdMarker"] = marker

    async def discard(self, write: UnfinishedWrite) -> None:
        place = await self._place(write.key, writing=True)
        target = {"Key": self._requests.full_key(write.key), "UploadId": write.upload_id}
        try:
            await self._requests.run(place, "abort_multipart_upload", **target)
        except NotFound as error:
            if error.code == "NoSuchBucket":
                raise

    async def check(self) -> None:
        await self._head(await self._place(None), "head_bucket")

    async def _place(self, key: str | None, *, writing: bool = False) -> Place:
        self._require_open()
        return await self._requests.place(key, writing=writing)

    async def _head(self, place: Place, operation: str, **arguments: Any) -> dict[str, Any]:
        async def attempt() -> dict[str, Any]:
            try:
                return await self._requests.call(place, operation, **arguments)
            except Fault as fault:
                better = await self._requests.explain(fault, place)
                raise better from better.__cause__

        return await self._requests.repeat(place, attempt)


class _Creation:
    """Creates an object once, although the answer to an earlier attempt may have got lost."""

    def __init__(self, requests: S3Requests, place: Place, key: str, body: bytes) -> None:
        self._requests = requests
        self._place = place
        self._key = key
        self._body = body
        self._maybe_ours = False

    async def attempt(self) -> bool:
        try:
            await self._requests.send(
                self._place, "put_object", self._body, Key=self._key, IfNoneMatch="*"
            )
        except Fault as fault:
            if fault.error.status != 412:
                self._maybe_ours = True
                raise
            return self._maybe_ours and await self._holds_body()
        return True

    async def _holds_body(self) -> bool:
        """The object is what an attempt of ours, whose answer got lost, has written."""
        # Imported on use: it is the engine's, which has just written.
        from storage_backends.s3_read import S3Read

        read = S3Read(self._requests, self._place, self._key, max_bytes=len(self._body))
        try:
            return bytes(await read.attempt()) == self._body
        except Fault as fault:
            if fault.error.code == "EntityTooLarge":
                return False
            raise

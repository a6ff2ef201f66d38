"""Objects in Google Cloud Storage (``gs://``) and Azure Blob Storage (``az://``), by obstore."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any, Self

from storage_backends._retry import Fault, RetryPolicy
from storage_backends.errors import Misconfigured, NotFound
from storage_backends.http_part import bare_etag
from storage_backends.obstore_reader import CLIENT, RETRY, ObstoreReader, import_obstore
from storage_backends.options import StorageOptions
from storage_backends.refusals import Place
from storage_backends.store import (
    READ_MAX_BYTES,
    Buffer,
    Counters,
    ObjectInfo,
    ObjectWriter,
    Store,
    check_offset,
    readable_bytes,
    writable_bytes,
)
from storage_backends.urls import CloudLocation

_PARTS_IN_FLIGHT = 3


class CloudStore(Store):
    """A bucket or container, or what is below a prefix of it.

    Args:
        location: where.
        options: ``anonymous``, ``download_retry``, ``download_timeout`` and ``part_bytes`` count.
        counters: as of every store.
        make_client: gives the obstore client; the one of the location's scheme if None.
    """

    def __init__(
        self,
        location: CloudLocation,
        options: StorageOptions,
        counters: Counters | None,
        make_client: Callable[[], Any] | None = None,
    ) -> None:
        super().__init__(location.url, counters)
        self._obstore = import_obstore()
        self._location = location
        self._options = options
        self._make_client = make_client or self._client_of_scheme
        self._made: Any = None
        self._policy = RetryPolicy(options.download_retry, options.download_timeout, self._counters)
        self._reader = ObstoreReader(self._client, self._policy, self._counters)

    async def _close(self) -> None:
        self._made = None
        await self._reader.close()

    async def info(self, key: str) -> ObjectInfo:
        try:
            meta = await self._run(self._place(key), self._obstore.head_async, self._full(key))
        except NotFound:
            # The answer to a HEAD request does not say whether there is a bucket.
            await self.check()
            raise
        return ObjectInfo(key, int(meta["size"]), bare_etag(meta["e_tag"]))

    async def read_into(
        self, key: str, offset: int, buffer: Buffer, etag: str | None = None
    ) -> None:
        place = self._place(key)
        target = writable_bytes(buffer, place.url)
        check_offset(offset, place.url)
        if len(target):
            full_key = self._full(key)
            await self._reader.read_into(place, full_key, target, offset, bare_etag(etag))

    async def read(self, key: str, max_bytes: int = READ_MAX_BYTES) -> bytes:
        return await self._reader.read(self._place(key), self._full(key), max_bytes)

    async def list(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        place, own = self._place(None), self._full("")
        # obstore lists below whole segments only: what is asked for is picked out here.
        folder, _, _ = (own + prefix).rpartition("/")

        async def attempt() -> list[ObjectInfo]:
            found = []
            client = await self._client(place)
            self._counters.add("storage.requests")
            try:
                async for page in self._obstore.list(client, prefix=folder or None):
                    for meta in page:
                        key = str(meta["path"]).removeprefix(own)
                        if key.startswith(prefix) and key != meta["path"][: len(own)]:
                            info = ObjectInfo(key, int(meta["size"]), bare_etag(meta["e_tag"]))
                            found.append(info)
            except self._reader.errors as error:
                raise self._reader.fault_of(error, place) from error
            return found

        for info in sorted(await self._policy.run(attempt, place.url), key=lambda info: info.key):
            yield info

    def open_writer(self, key: str) -> ObjectWriter:
        self._require_open()
        return _CloudWriter(self, self._place(key, writing=True), self._full(key))

    async def put(self, key: str, data: Buffer) -> None:
        place = self._place(key, writing=True)
        await self.send(place, self._full(key), bytes(readable_bytes(data, place.url)))

    async def put_if_absent(self, key: str, data: Buffer) -> bool:
        place = self._place(key, writing=True)
        body = bytes(readable_bytes(data, place.url))
        maybe_ours = False

        async def attempt() -> bool:
            nonlocal maybe_ours
            client = await self._client(place)
            self._counters.add("storage.requests")
            try:
                await self._obstore.put_async(
                    client, self._full(key), body, mode="create", use_multipart=False
                )
            except self._obstore.exceptions.AlreadyExistsError:
                # An attempt of ours may have made it, and its answer got lost.
                return maybe_ours and await self._holds(key, body)
            except self._reader.errors as error:
                maybe_ours = True
                raise self._reader.fault_of(error, place) from error
            self._counters.add("storage.bytes_written", len(body))
            return True

        return await self._policy.run(attempt, place.url)

    async def delete(self, key: str) -> None:
        place = self._place(key, writing=True)
        try:
            await self._run(place, self._obstore.delete_async, self._full(key))
        except NotFound as error:
            if error.code == "NoSuchBucket":
                raise

    async def check(self) -> None:
        place = self._place(None)

        async def attempt() -> None:
            client = await self._client(place)
            self._counters.add("storage.requests")
            try:
                await self._obstore.list_with_delimiter_async(client, prefix=self._full("") or None)
            except self._reader.errors as error:
                raise self._reader.fault_of(error, place) from error

        await self._policy.run(attempt, place.url)

    async def send(self, place: Place, full_key: str, body: bytes) -> None:
        """One plain PUT under the retry policy."""
        await self._run(place, self._obstore.put_async, full_key, body, use_multipart=False)
        self._counters.add("storage.bytes_written", len(body))

    async def stream(self, place: Place, full_key: str, parts: AsyncIterator[bytes]) -> None:
        """An upload in parts, which is given up if ``parts`` raises."""
        client = await self._client(place)
        self._counters.add("storage.requests")
        try:
            await self._obstore.put_async(
                client,
                full_key,
                parts,
                use_multipart=True,
                chunk_size=self._options.part_bytes,
                max_concurrency=_PARTS_IN_FLIGHT,
            )
        except self._reader.errors as error:
            fault = self._reader.fault_of(error, place)
            raise fault.error from error

    @property
    def part_bytes(self) -> int:
        """Size of the parts of a streamed upload."""
        return self._options.part_bytes

    def count_written(self, nbytes: int) -> None:
        """Counts bytes of a streamed upload."""
        self._counters.add("storage.bytes_written", nbytes)

    async def _run(self, place: Place, operation: Any, *args: Any, **more: Any) -> Any:
        return await self._policy.run(
            lambda: self._reader.call(place, operation, *args, **more), place.url
        )

    async def _holds(self, key: str, body: bytes) -> bool:
        info = await self.info(key)
        return info.size == len(body) and await self.read(key, len(body)) == body

    async def _client(self, place: Place) -> Any:
        if self._made is None:
            try:
                self._made = self._make_client()
            except (ValueError, *self._reader.errors) as error:
                message = f"{place.url}: the configuration of the environment cannot work ({error})"
                wrong = Misconfigured(message.splitlines()[0], url=place.url)
                raise Fault(wrong, transient=False) from error
        return self._made

    def _client_of_scheme(self) -> Any:
        from obstore.store import AzureStore, GCSStore

        make: Any = GCSStore if self._location.scheme == "gs" else AzureStore
        more: dict[str, Any] = {"skip_signature": True} if self._options.anonymous else {}
        return make(self._location.bucket, client_options=CLIENT, retry_config=RETRY, **more)

    def _place(self, key: str | None, *, writing: bool = False) -> Place:
        self._require_open()
        if key == "":
            raise Misconfigured(f"empty key in {self.url}", url=self.url)
        url = self.url if key is None else f"{self.url}/{key}"
        service = "Google Cloud Storage" if self._location.scheme == "gs" else "Azure"
        identity = "anonymous" if self._options.anonymous else "credentials of the environment"
        return Place(url, self._location.bucket, service, identity, writing)

    def _full(self, key: str) -> str:
        return f"{self._location.prefix}/{key}" if self._location.prefix else key


class _CloudWriter(ObjectWriter):
    """Hands full parts to an upload that runs beside; what fits in one part is a plain PUT."""

    def __init__(self, store: CloudStore, place: Place, full_key: str) -> None:
        self._store = store
        self._place = place
        self._key = full_key
        self._part = bytearray()
        self._parts: asyncio.Queue[bytes | None] = asyncio.Queue(1)
        self._upload: asyncio.Task[None] | None = None
        self._inside = False
        self.bytes_written = 0

    async def __aenter__(self) -> Self:
        self._inside = True
        return self

    async def write(self, data: Buffer) -> None:
        if not self._inside:
            raise Misconfigured(
                f"the writer of {self._place.url} is used outside its 'async with' block",
                url=self._place.url,
            )
        view = readable_bytes(data, self._place.url)
        self.bytes_written += len(view)
        while len(view):
            if len(self._part) == self._store.part_bytes:
                await self._hand_over()
            room = self._store.part_bytes - len(self._part)
            self._part += view[:room]
            view = view[room:]

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._inside = False
        try:
            if error is None:
                await self._commit()
        finally:
            if self._upload is not None:
                self._upload.cancel()
                await asyncio.gather(self._upload, return_exceptions=True)

    async def _commit(self) -> None:
        if self._upload is None:
            await self._store.send(self._place, self._key, bytes(self._part))
            return
        if self._part:
            await self._hand_over()
        await self._give(None)
        await self._upload
        self._store.count_written(self.bytes_written)

    async def _hand_over(self) -> None:
        if self._upload is None:
            self._upload = asyncio.create_task(
                self._store.stream(self._place, self._key, self._stream())
            )
        part, self._part = bytes(self._part), bytearray()
        await self._give(part)

    async def _give(self, part: bytes | None) -> None:
        """Waits for the upload to take it, or for the upload to fail."""
        assert self._upload is not None
        given = asyncio.ensure_future(self._parts.put(part))
        try:
            await asyncio.wait([given, self._upload], return_when=asyncio.FIRST_COMPLETED)
        finally:
            given.cancel()
        if self._upload.done():
            await self._upload

    async def _stream(self) -> AsyncIterator[bytes]:
        while (part := await self._parts.get()) is not None:
            yield part

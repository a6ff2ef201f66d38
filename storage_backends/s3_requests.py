"""Requests to one bucket: keys to full keys, the engine's errors to ours, counted and repeated."""

from __future__ import annotations

import io
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from storage_backends._retry import Fault, RetryPolicy
from storage_backends.errors import Misconfigured
from storage_backends.options import StorageOptions
from storage_backends.refusals import EXPIRED_CODES, Place
from storage_backends.s3_connection import S3Connection
from storage_backends.store import Counters
from storage_backends.urls import S3Location

Result = TypeVar("Result")
_MAX_PLACES = 4096


class S3Requests:
    """What the calls of an S3 store share.

    Attributes:
        connection: address, credentials, and the engine's client.
        policy: what repeats an attempt.
        counters: gets a ``storage.requests`` per attempt; the callers count bytes.
        part_bytes: size of the parts of a streamed upload.
        is_directory_bucket: a bucket of S3 Express One Zone.
    """

    def __init__(self, location: S3Location, options: StorageOptions, counters: Counters) -> None:
        self._location = location
        self.connection = S3Connection(location, options)
        self.policy = RetryPolicy(options.download_retry, options.download_timeout, counters)
        self.is_directory_bucket = location.bucket.endswith("--x-s3")
        self._places: dict[tuple[str | None, bool], Place] = {}
        self._places_of: Any = None
        self.counters = counters
        self.part_bytes = options.part_bytes

    @property
    def prefix(self) -> str:
        """What every full key of the store starts with: nothing, or a prefix with its slash."""
        return f"{self._location.prefix}/" if self._location.prefix else ""

    @property
    def lists_in_order(self) -> bool:
        """The server promises listings in the order of UTF-8 bytes.

        AWS does, except for directory buckets; servers that speak its protocol may not
        (SeaweedFS lists folder by folder).
        """
        return not self.is_directory_bucket and not self.connection.custom_endpoint

    def full_key(self, key: str) -> str:
        """The key within the bucket; Misconfigured if no object can have it."""
        if not key:
            raise Misconfigured(f"empty key in {self._location.url}", url=self._location.url)
        full = self.prefix + key
        try:
            full.encode()
        except UnicodeEncodeError as error:
            raise Misconfigured(
                f"key {key!r} in {self._location.url} is not valid Unicode, which S3 demands; "
                "rename it",
                url=self._location.url,
            ) from error
        return full

    def known_place(self, key: str) -> Place | None:
        """Where a read of ``key`` happens, if it has been asked for and nothing has changed."""
        if self.connection.is_current(self._places_of):
            return self._places.get((key, False))
        return None

    async def place(self, key: str | None = None, *, writing: bool = False) -> Place:
        """Where an operation on ``key``, or on the bucket, happens."""
        basis = await self.connection.basis()
        if basis is not self._places_of or len(self._places) >= _MAX_PLACES:
            self._places_of = basis
            self._places.clear()
        place = self._places.get((key, writing))
        if place is None:
            place = self._places[key, writing] = self._make_place(key, writing=writing)
        return place

    def _make_place(self, key: str | None, *, writing: bool) -> Place:
        location = self._location
        full_key = "" if key is None else self.full_key(key)
        return Place(
            url=location.url if key is None else f"s3://{location.bucket}/{full_key}",
            bucket=location.bucket,
            endpoint=self.connection.endpoint,
            identity=self.connection.identity,
            writing=writing,
            key=full_key,
        )

    async def call(self, place: Place, operation: str, **arguments: Any) -> dict[str, Any]:
        """One attempt of one operation of the engine on the bucket. Raises Fault."""
        client = await self.connection.client()
        # Imported on use: it is the engine's.
        from storage_backends.s3_errors import ENGINE_ERRORS, fault_of

        self.counters.add("storage.requests")
        skew_s = self.connection.clock.skew_s
        try:
            response: dict[str, Any] = await getattr(client, operation)(
                Bucket=self._location.bucket, **arguments
            )
        except ENGINE_ERRORS as error:
            fault = fault_of(error, place)
            if fault.error.status is not None:
                self.policy.note_answer()
            if await self._mend(client, skew_s, fault, error):
                fault.transient = True
            raise fault from error
        self.policy.note_answer()
        return response

    async def _mend(self, client: Any, skew_s: float, fault: Fault, error: Exception) -> bool:
        """Changes what can be changed after a refusal; True if the request may go well now."""
        if fault.error.code in EXPIRED_CODES:
            return await self.connection.renew(client)
        if fault.error.code == "RequestTimeTooSkewed":
            answer = getattr(error, "response", {}).get("ResponseMetadata", {})
            corrected = self.connection.clock.correct(answer.get("HTTPHeaders", {}).get("date"))
            # Another request may have corrected it since this one was signed.
            return corrected or self.connection.clock.skew_s != skew_s
        return False

    async def repeat(self, place: Place, attempt: Callable[[], Awaitable[Result]]) -> Result:
        """Calls ``attempt`` under the retry policy. Raises StorageError."""
        return await self.policy.run(attempt, place.url)

    async def run(self, place: Place, operation: str, **arguments: Any) -> dict[str, Any]:
        """``call`` under the retry policy. Raises StorageError."""
        return await self.repeat(place, lambda: self.call(place, operation, **arguments))

    async def send(
        self, place: Place, operation: str, body: bytes, **arguments: Any
    ) -> dict[str, Any]:
        """One attempt of an operation that sends ``body``, and counts it. Raises Fault."""
        # The engine sends a file in steps, and plain bytes in one go that holds up the loop.
        answer = await self.call(place, operation, Body=io.BytesIO(body), **arguments)
        self.counters.add("storage.bytes_written", len(body))
        return answer

    async def explain(self, fault: Fault, place: Place) -> Fault:
        """A better fault where ``fault`` is of a HEAD request, whose answer has no error code.

        A listing of the bucket gets the same refusal with the reason, so that a missing bucket
        can be told from a missing object, and a wrong key from a missing permission.
        """
        if fault.error.status not in (400, 403, 404):
            return fault
        try:
            await self.call(place, "list_objects_v2", Prefix=self.prefix, MaxKeys=1)
        except Fault as explained:
            if explained.error.status == fault.error.status:
                return explained
        return fault

    async def close(self) -> None:
        """Closes every connection."""
        await self.connection.close()

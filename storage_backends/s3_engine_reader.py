"""Reads of S3 objects through the engine: ``reader="aiobotocore"``."""

from __future__ import annotations

import asyncio

from storage_backends.refusals import Place
from storage_backends.s3_read import S3Read
from storage_backends.s3_requests import S3Requests


class EngineReader:
    """The slower way, for what the native reader does not know: directory buckets.

    Args:
        requests: how to reach the bucket.
    """

    def __init__(self, requests: S3Requests) -> None:
        self._requests = requests

    async def read_into(
        self, place: Place, key: str, target: memoryview, offset: int, etag: str | None
    ) -> None:
        """Fills ``target``; as ``Store.read_into``."""
        now = asyncio.get_running_loop().time
        start = now()
        read = S3Read(self._requests, place, key, target=target, offset=offset, etag=etag)
        await self._requests.repeat(place, read.attempt)
        self._requests.counters.observe("storage.read_s", now() - start)

    async def read(self, place: Place, key: str, max_bytes: int) -> bytes:
        """The whole of a small object; as ``Store.read``."""
        read = S3Read(self._requests, place, key, max_bytes=max_bytes)
        return bytes(await self._requests.repeat(place, read.attempt))

    async def close(self) -> None:
        """The connections are the engine's, and closed with it."""

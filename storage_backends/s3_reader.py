"""What reads the objects of an S3 store, by the option ``reader``."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, Protocol

from storage_backends.http_reader import HttpReader
from storage_backends.obstore_reader import CLIENT, RETRY, ObstoreReader, import_obstore
from storage_backends.options import StorageOptions
from storage_backends.refusals import Place
from storage_backends.s3_access import S3Access
from storage_backends.s3_requests import S3Requests
from storage_backends.s3_source import S3Source

#: How long credentials are taken as they are.
_FRESH_S = 30.0


class ObjectReader(Protocol):
    """Reads by full key; each call stands above its own retries and counts what it reads."""

    async def read_into(
        self, place: Place, key: str, target: memoryview, offset: int, etag: str | None
    ) -> None:
        """Fills ``target``; as ``Store.read_into``."""

    async def read(self, place: Place, key: str, max_bytes: int) -> bytes:
        """The whole of a small object; as ``Store.read``."""

    async def close(self) -> None:
        """Closes the reader's own connections."""


def make_reader(requests: S3Requests, options: StorageOptions) -> ObjectReader:
    """The reader that the options name; to be called within the event loop of the store.

    Requests to directory buckets are signed with a session of their own, which only the engine
    knows how to begin.
    """
    if options.reader == "aiobotocore" or requests.is_directory_bucket:
        # Imported on use, as all of the engine is.
        from storage_backends.s3_engine_reader import EngineReader

        return EngineReader(requests)
    if options.reader == "obstore":
        client = _ObstoreClient(requests, options)
        return ObstoreReader(client.get, requests.policy, requests.counters)
    source = S3Source(requests.connection, verify_tls=options.verify_tls)
    return HttpReader(source, requests.policy, requests.counters, options.max_connections)


class _ObstoreClient:
    """An obstore client with the engine's credentials, made anew when they may have changed."""

    def __init__(self, requests: S3Requests, options: StorageOptions) -> None:
        self._connection = requests.connection
        self._verify_tls = options.verify_tls
        self._client: Any = None
        self._made_of: Any = None
        self._fresh_until = 0.0
        import_obstore()

    async def get(self, place: Place) -> Any:
        """The client. Raises Fault."""
        now = time.monotonic()
        if now < self._fresh_until and self._connection.is_current(self._made_of):
            return self._client
        from obstore.store import S3Store as Client

        make: Any = Client
        access = await self._connection.access(place)
        keys: dict[str, Any] = {"skip_signature": True}
        if access.credentials is not None:
            keys = {
                "access_key_id": access.credentials.key_id,
                "secret_access_key": access.credentials.secret,
            }
            if access.credentials.token is not None:
                keys["session_token"] = access.credentials.token
        loop = asyncio.get_running_loop()
        client_options = await loop.run_in_executor(None, self._client_options, access)
        self._client = make(
            place.bucket,
            # An endpoint of this style has the bucket in it, wherever that is.
            endpoint=access.bucket_url,
            virtual_hosted_style_request=True,
            region=access.region,
            client_options=client_options,
            retry_config=RETRY,
            **keys,
        )
        self._made_of, self._fresh_until = access.basis, now + _FRESH_S
        return self._client

    def _client_options(self, access: S3Access) -> dict[str, Any]:
        """Which certificates are trusted; reads the file of the authorities."""
        if not self._verify_tls:
            return {**CLIENT, "allow_invalid_certificates": True}
        authorities = Path(access.authorities)
        if access.own_authorities and authorities.is_file():
            return {**CLIENT, "root_certificate": authorities.read_bytes()}
        return CLIENT

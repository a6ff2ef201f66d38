"""Bytes by key and range, from S3 or a folder, into memory that the caller owns.

    async with open_store("s3://bucket/train", region="eu-central-1") as store:
        info = await store.info("0.dts")
        await store.read_into("0.dts", 4096, buffer, etag=info.etag)

The contract is ``Store``, the errors are those of ``errors``, the options ``StorageOptions``.
"""

from storage_backends.errors import (
    AccessDenied,
    Changed,
    Misconfigured,
    NotFound,
    StorageError,
    Throttled,
    Truncated,
    Unavailable,
)
from storage_backends.opening import open_store, options_of
from storage_backends.options import StorageOptions
from storage_backends.store import (
    Buffer,
    Counters,
    ObjectInfo,
    ObjectWriter,
    OpenFiles,
    Store,
    UnfinishedWrite,
)
from storage_backends.urls import join_url

__all__ = [
    "AccessDenied",
    "Buffer",
    "Changed",
    "Counters",
    "Misconfigured",
    "NotFound",
    "ObjectInfo",
    "ObjectWriter",
    "OpenFiles",
    "StorageError",
    "StorageOptions",
    "Store",
    "Throttled",
    "Truncated",
    "Unavailable",
    "UnfinishedWrite",
    "join_url",
    "open_store",
    "options_of",
]

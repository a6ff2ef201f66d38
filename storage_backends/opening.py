"""From a URL to a store."""

from __future__ import annotations

import os
from typing import Any

from storage_backends.options import parse_options
from storage_backends.store import Counters, Store
from storage_backends.urls import LocalLocation, parse_url


def open_store(
    url: str | os.PathLike[str], counters: Counters | None = None, **options: Any
) -> Store:
    """A store of the objects below ``url``; does no I/O before it is entered.

    Args:
        url: ``s3://bucket/prefix``, ``file:///folder`` or a plain path.
        counters: where requests, retries, bytes and times are counted; nowhere if None.
        options: fields of ``StorageOptions``; None stands for the default. A local store takes
            ``download_retry`` and ``download_timeout``, and has no use of them.

    Raises:
        Misconfigured: a URL of another form, an unknown option, or a value that cannot work.
    """
    location = parse_url(url)
    parsed = parse_options(options, local=isinstance(location, LocalLocation))
    # Imported on use: the S3 engine takes half a second, and most programs need one of the two.
    if isinstance(location, LocalLocation):
        from storage_backends.local import LocalStore

        return LocalStore(location, counters)
    from storage_backends.s3 import S3Store

    return S3Store(location, parsed, counters)

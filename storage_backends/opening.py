"""From a URL to a store."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from storage_backends.options import known_options, parse_options
from storage_backends.store import Counters, Store
from storage_backends.urls import CloudLocation, HttpLocation, LocalLocation, parse_url


def options_of(url: str | os.PathLike[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of some options, meant for several stores, that the one at ``url`` takes.

    What no store knows stays among them, for ``open_store`` to refuse.

    Raises:
        Misconfigured: a URL of another form.
    """
    location = parse_url(url)
    if isinstance(location, LocalLocation):
        return known_options(options, "file")
    if isinstance(location, HttpLocation):
        return known_options(options, "http")
    scheme = location.scheme if isinstance(location, CloudLocation) else "s3"
    return known_options(options, scheme)


def open_store(
    url: str | os.PathLike[str], counters: Counters | None = None, **options: Any
) -> Store:
    """A store of the objects below ``url``; does no I/O before it is entered.

    Args:
        url: ``s3://bucket/prefix``, ``gs://bucket/prefix``, ``az://container/prefix``,
            ``http(s)://host/folder`` for reading, ``file:///folder`` or a plain path.
        counters: where requests, retries, bytes and times are counted; nowhere if None.
        options: fields of ``StorageOptions``; None stands for the default. A local store takes
            ``sync``, and ``download_retry`` and ``download_timeout``, which it has no use of.

    Raises:
        Misconfigured: a URL of another form, an unknown option, or a value that cannot work.
    """
    location = parse_url(url)
    # Imported on use: the S3 engine takes half a second, and most programs need one of them.
    if isinstance(location, LocalLocation):
        from storage_backends.local import LocalStore

        return LocalStore(location, parse_options(options, "file"), counters)
    if isinstance(location, HttpLocation):
        from storage_backends.http_store import HttpStore

        return HttpStore(location, parse_options(options, "http"), counters)
    if isinstance(location, CloudLocation):
        from storage_backends.cloud_store import CloudStore

        return CloudStore(location, parse_options(options, location.scheme), counters)
    parsed = parse_options(options, "s3")
    from storage_backends.s3 import S3Store

    return S3Store(location, parsed, counters)

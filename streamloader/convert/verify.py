"""Checks a stored data set against everything it says about itself.

Looked at are the manifest and the sidecar with their digests, that each shard is there in full,
every bound and checksum of its structure, the checksum of every record, that padding is zero,
and on request every picture's pixels and the SHA-256 of whole shards. A fault is reported and
the rest still looked at.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from storage_backends import Store, open_store
from streamloader.convert.faults import VerifyReport, fault_of
from streamloader.convert.shard_check import CheckSettings, ManifestChecker, VerifyProgress
from streamloader.errors import ShardError
from streamloader.fetch import read_manifest
from streamloader.fetch.loop import LoopThread
from streamloader.topology import allowed_cpus


def verify(
    url: str | os.PathLike[str],
    *,
    decode: bool = False,
    sha256: bool = False,
    jobs: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: VerifyProgress | None = None,
) -> VerifyReport:
    """Check a data set, all splits of it.

    Args:
        url: a path or ``s3://bucket/prefix``.
        decode: decode every picture too.
        sha256: compare every shard's SHA-256 with the manifest's too.
        jobs: threads that check; None takes the CPUs this process may use.
        storage_options: options of ``open_store``.
        progress: called with (samples checked, samples in all) from another thread.

    Raises:
        ConfigError: there is no data set.
        StorageError: the storage refused or failed; a shard that is missing is a fault instead.
    """
    threads = jobs if jobs is not None else allowed_cpus()
    store = open_store(os.fspath(url), **(storage_options or {}))
    pool = ThreadPoolExecutor(threads, thread_name_prefix="streamloader-verify")
    with pool, LoopThread("verify-loop") as loop:
        return loop.run(_verify(store, pool, threads, decode, sha256, progress))


async def _verify(
    store: Store,
    pool: ThreadPoolExecutor,
    threads: int,
    decode: bool,
    sha256: bool,
    progress: VerifyProgress | None,
) -> VerifyReport:
    started_s = time.monotonic()
    async with store:
        try:
            manifest = await read_manifest(store)
        except ShardError as error:
            seconds = time.monotonic() - started_s
            return VerifyReport(store.url, 0, 0, 0, (fault_of(error),), seconds)
        settings = CheckSettings(pool, threads, decode=decode, sha256=sha256)
        checker = ManifestChecker(store, manifest, settings, progress)
        faults = await checker.run()
    return VerifyReport(
        store.url,
        checker.samples,
        manifest.num_shards,
        checker.bytes_read,
        tuple(faults),
        time.monotonic() - started_s,
    )

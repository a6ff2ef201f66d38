"""Removes what broken conversions left at a destination."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from storage_backends import NotFound, open_store
from streamloader.convert.removal import Rest, find_rests, remove_rests
from streamloader.errors import ConfigError
from streamloader.fetch import LoopThread

JSON_RESTS = 1000


@dataclass(frozen=True, slots=True)
class CleanReport:
    """What was left by broken conversions.

    Args:
        url: the destination.
        rests: files and unfinished uploads.
        removed: whether they were removed.
    """

    url: str
    rests: tuple[Rest, ...]
    removed: bool

    @property
    def bytes(self) -> int:
        """Bytes of them, as far as the storage says."""
        return sum(rest.bytes or 0 for rest in self.rests)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values; of the rests the first 1,000."""
        return {
            "url": self.url,
            "removed": self.removed,
            "files": sum(rest.write is None for rest in self.rests),
            "uploads": sum(rest.write is not None for rest in self.rests),
            "bytes": self.bytes,
            "rests": [
                {"name": rest.name, "bytes": rest.bytes, "unfinished": rest.write is not None}
                for rest in self.rests[:JSON_RESTS]
            ],
        }


def clean(
    dest: str | os.PathLike[str],
    *,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> CleanReport:
    """Remove what broken conversions left: the journal, shards of no revision, unfinished writes.

    A published data set keeps all its revisions. Files of anybody else stay. A conversion that
    is at work there cannot be told from one that is broken, and would fail.

    Args:
        dest: where a conversion was writing.
        dry_run: only say what would be removed.
        storage_options: options of ``open_store``.

    Raises:
        ConfigError: there is no such folder.
        ShardError: a published manifest is damaged, so that nothing says what is needed.
        StorageError: the storage refused or failed.
    """
    store = open_store(os.fspath(dest), **(storage_options or {}))

    async def run() -> CleanReport:
        async with store:
            await store.check()
            try:
                rests = await find_rests(store)
            except NotFound as error:
                if error.code == "NoSuchBucket":
                    raise
                raise ConfigError(f"there is no folder {store.url}") from error
            if not dry_run:
                await remove_rests(store, rests)
            return CleanReport(store.url, tuple(rests), not dry_run)

    with LoopThread("clean-loop") as loop:
        return loop.run(run())

"""Streams one shard to the store while it is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy.typing as npt

from storage_backends import ObjectWriter, Store
from streamloader.convert.options import SAMPLE_ALIGN
from streamloader.dts import PackedJpegs, PictureHeader, Schema, ShardSummary, ShardWriter


@dataclass(frozen=True, slots=True)
class StoredShard:
    """A shard that is complete in the store.

    Args:
        name: its file name.
        split: name of its split, None without splits.
        summary: its sizes, digests and record offsets.
    """

    name: str
    split: str | None
    summary: ShardSummary


class ShardUpload:
    """One shard on its way, inside ``async with``.

    ``add`` only works on memory and may run in any thread, one call at a time; ``flush`` sends
    what was added. The object is opened with the first sample, so that a shard whose samples
    were all rejected leaves no trace, and it appears with ``finish`` or not at all.

    Args:
        store: where to; already entered.
        name, split, schema, uuid, zstd_level: of the shard.
        borrow: keep what is added as it is until ``flush``, instead of a copy of what may change.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        split: str | None,
        schema: Schema,
        uuid: bytes,
        *,
        zstd_level: int,
        borrow: bool = False,
    ) -> None:
        self._store = store
        self._name = name
        self._split = split
        self._pending: list[bytes | memoryview] = []
        self._writer = ShardWriter(
            schema,
            uuid=uuid,
            sink=self._collect,
            sample_align=SAMPLE_ALIGN,
            name=name,
            zstd_level=zstd_level,
            sink_keeps=not borrow,
        )
        self._stack = AsyncExitStack()
        self._object: ObjectWriter | None = None
        self.bytes_pending = 0

    def add(
        self,
        record: Mapping[str, Any],
        key: str | None,
        headers: Mapping[str, PictureHeader] | None = None,
    ) -> None:
        """Append one sample; see ``ShardWriter.add``."""
        self._writer.add(record, key, headers)

    def add_packed(
        self, pictures: PackedJpegs, columns: Mapping[str, npt.NDArray[Any]], keys: Sequence[str]
    ) -> None:
        """Append several samples; see ``ShardWriter.add_packed``."""
        self._writer.add_packed(pictures, columns, keys)

    async def flush(self) -> None:
        """Send what was added; waits as long as the store is slower than the samples come."""
        if not self.num_samples:
            return
        if self._object is None:
            self._object = await self._stack.enter_async_context(
                self._store.open_writer(self._name)
            )
        pending, self._pending, self.bytes_pending = self._pending, [], 0
        if pending:
            await self._object.write_all(pending)

    async def finish(self, stats: Mapping[str, Any] | None = None) -> StoredShard | None:
        """Write the tail and make the shard appear; None, and no shard, without samples.

        Args:
            stats: what the shard says of itself, as JSON values.
        """
        if not self.num_samples:
            return None
        summary = self._writer.finish(stats)
        await self.flush()
        await self._stack.aclose()
        return StoredShard(self._name, self._split, summary)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    @property
    def bytes_made(self) -> int:
        """Bytes of the shard so far."""
        return self._writer.bytes_written

    @property
    def num_samples(self) -> int:
        """Samples added so far."""
        return self._writer.num_samples

    def _collect(self, data: bytes | memoryview) -> None:
        self._pending.append(data)
        self.bytes_pending += len(data)

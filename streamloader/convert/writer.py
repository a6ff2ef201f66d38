"""Writes a data set sample by sample, from Python."""

from __future__ import annotations

import enum
import os
from collections.abc import Coroutine, Iterable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from storage_backends import StorageError, open_store
from streamloader.convert.encoding import CodecChoice, Encoding
from streamloader.convert.options import DEFAULT_SHARD_BYTES, SAMPLE_ALIGN, CutOptions
from streamloader.convert.parallel import for_each
from streamloader.convert.publish import AlreadyPublishedError, Publication, publish, require_free
from streamloader.convert.upload import ShardUpload, StoredShard
from streamloader.dts import DEFAULT_HASH, Field, Manifest, canonical_json, shard_uuid
from streamloader.errors import ConfigError
from streamloader.fetch.loop import LoopThread

T = TypeVar("T")

_SEND_BYTES = 4 << 20
_REMOVALS_IN_FLIGHT = 16


class _State(enum.Enum):
    NEW = "is not open yet; use it inside a with-statement"
    OPEN = "is open"
    CLOSED = "is closed; make another one"


class DatasetWriter:
    """Writes samples into shards and publishes them as a data set on a clean exit.

    ::

        with DatasetWriter("s3://bucket/set", {"image": "picture", "label": "int64"}) as writer:
            writer.write({"image": jpeg_bytes, "label": 3}, key="cat/1.jpg")

    Samples are stored in the order they are written: shuffle them before, if they are sorted. An
    exception inside the block publishes nothing and removes the shards already stored. Calls
    block while the store is slower than the samples come; they work inside a running event loop.
    One thread at a time may call.

    Args:
        dest: a path or ``s3://bucket/prefix`` that holds no data set.
        fields: type by name: ``"picture"``, ``"bytes"``, ``"str"``, ``"json"``, ``"int64"``,
            ``("float32", (4,))``, or a ``streamloader.dts.Field`` …
        classes: class names by label, for the reader's ``classes``.
        shard_bytes: a shard ends with the record that reaches this size.
        block_samples: samples that are fetched together; ``"auto"`` takes about 1 MiB.
        codec: ``"zstd"`` compresses every payload field but pictures, or codecs by field name, as
            ``{"text": "zstd"}``; None leaves each field its own. Needs ``streamloader[zstd]``.
        zstd_level: 1 to 22, only with codec ``zstd``; None is 3.
        hash: that guards every sample: ``"xxh3-64"``, or ``"crc32"`` for readers with zlib alone.
        storage_options: options of ``open_store``.

    Raises:
        ConfigError: an argument that cannot work, or ``dest`` holds a data set.
        StorageError: on entering or writing, when the storage refuses or fails.
    """

    def __init__(
        self,
        dest: str | os.PathLike[str],
        fields: Mapping[str, Any],
        *,
        classes: Iterable[str] | None = None,
        shard_bytes: int | str = DEFAULT_SHARD_BYTES,
        block_samples: int | str = "auto",
        codec: CodecChoice = None,
        zstd_level: int | None = None,
        hash: str = DEFAULT_HASH,  # noqa: A002  as the format calls it
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._encoding = Encoding(codec, zstd_level, hash)
        self._schema = self._encoding.schema(Field.parse(*item) for item in fields.items())
        self._classes = tuple(classes or ())
        self._cut = CutOptions(shard_bytes, block_samples)
        self._store = open_store(os.fspath(dest), **(storage_options or {}))
        self._state = _State.NEW
        self._loop = LoopThread("writer-loop")
        self._upload: ShardUpload | None = None
        self._shards: list[StoredShard] = []
        self._manifest: Manifest | None = None
        self.num_samples = 0

    @property
    def manifest(self) -> Manifest:
        """What was published; there after a clean exit."""
        if self._manifest is None:
            raise ConfigError("nothing is published until the with-statement has ended cleanly")
        return self._manifest

    def write(self, sample: Mapping[str, Any], key: str | None = None) -> None:
        """Append one sample.

        Args:
            sample: a value for every field; pictures and bytes as bytes-like objects.
            key: a name for the sample, such as the path it came from.

        Raises:
            ConfigError: fields that are missing, unknown or of the wrong type; the writer stays
                usable.
            StorageError: the storage failed.
        """
        self._require_open()
        if self._upload is None:
            self._upload = self._next_upload()
        self._upload.add(sample, key)
        self.num_samples += 1
        if self._upload.bytes_made >= self._cut.shard_limit:
            self._finish_shard()
        elif self._upload.bytes_pending >= _SEND_BYTES:
            self._run(self._upload.flush())

    def __enter__(self) -> Self:
        if self._state is not _State.NEW:
            raise ConfigError(f"this DatasetWriter {self._state.value}")
        self._loop.start()
        try:
            self._run(self._open())
        except BaseException:
            self._close()
            raise
        self._state = _State.OPEN
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._publish()
        except AlreadyPublishedError:
            # The names at the destination are the other writer's: nothing here is ours to remove.
            raise
        except BaseException as failure:
            self._discard(failure)
            raise
        else:
            if error is not None:
                self._discard(error)
        finally:
            self._close()

    def _publish(self) -> None:
        if not self.num_samples:
            raise ConfigError(f"no sample was written to {self._store.url}; nothing to publish")
        if self._upload is not None:
            self._finish_shard()
        stored_bytes = sum(shard.summary.bytes for shard in self._shards)
        publication = Publication(
            schema=self._schema,
            classes=self._classes,
            block_samples=self._cut.samples_per_block(stored_bytes, self.num_samples),
            export_seed=None,
        )
        self._manifest = self._run(publish(self._store, self._shards, publication))

    def _next_upload(self) -> ShardUpload:
        number = len(self._shards)
        options = canonical_json(
            {
                "classes": list(self._classes),
                "sample_align": SAMPLE_ALIGN,
                "schema": self._schema.to_json().decode("utf-8"),
                "shard": number,
                "shard_bytes": self._cut.shard_limit,
                **self._encoding.shaping(self._schema),
            }
        )
        uuid = shard_uuid(options, ())
        return ShardUpload(
            self._store,
            f"{number:05d}.dts",
            None,
            self._schema,
            uuid,
            zstd_level=self._encoding.level,
        )

    def _finish_shard(self) -> None:
        assert self._upload is not None
        shard = self._run(self._upload.finish())
        if shard is not None:
            self._shards.append(shard)
        self._upload = None

    def _discard(self, error: BaseException) -> None:
        """Take back what was stored, as far as the storage lets us; ``error`` is what counts."""
        try:
            self._run(self._remove_all(error))
        except StorageError as failure:
            error.add_note(f"the unfinished shards could not be removed: {failure}")

    async def _open(self) -> None:
        await self._store.__aenter__()
        await require_free(self._store)

    async def _remove_all(self, error: BaseException) -> None:
        if self._upload is not None:
            await self._upload.__aexit__(type(error), error, error.__traceback__)
        names = [shard.name for shard in self._shards]
        await for_each(names, self._store.delete, at_once=_REMOVALS_IN_FLIGHT)

    def _close(self) -> None:
        self._state = _State.CLOSED
        try:
            self._run(self._store.close())
        finally:
            self._loop.close()

    def _run(self, coro: Coroutine[Any, Any, T]) -> T:
        return self._loop.run(coro)

    def _require_open(self) -> None:
        if self._state is not _State.OPEN:
            raise ConfigError(f"this DatasetWriter {self._state.value}")

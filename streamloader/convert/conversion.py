"""Converts a folder of pictures into a data set."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from storage_backends import Store, open_store
from streamloader.convert.encoding import CodecChoice, Encoding
from streamloader.convert.layout import Source, read_source, require_folder
from streamloader.convert.options import DEFAULT_SHARD_BYTES, ConvertOptions, CutOptions
from streamloader.convert.pipeline import Pipeline, ProgressCallback, Threads, conversion_threads
from streamloader.convert.plan import plan_shards
from streamloader.convert.publish import Publication, publish, require_free, split_samples
from streamloader.convert.report import (
    REJECTS_NAME,
    ConvertReport,
    Rejected,
    RejectedError,
    RejectKind,
    rejects_jsonl,
    sort_rejects,
    utf8_name,
)
from streamloader.convert.upload import StoredShard
from streamloader.dts import DEFAULT_HASH, Field, Schema
from streamloader.errors import ConfigError
from streamloader.fetch.loop import LoopThread


def convert(
    src: str | os.PathLike[str],
    dest: str | os.PathLike[str],
    *,
    shard_bytes: int | str = DEFAULT_SHARD_BYTES,
    block_samples: int | str = "auto",
    shuffle_seed: int | None = 0,
    jobs: int | None = None,
    decode_check: bool = True,
    max_rejects: int | None = None,
    codec: CodecChoice = None,
    zstd_level: int | None = None,
    hash: str = DEFAULT_HASH,  # noqa: A002  as the format calls it
    storage_options: Mapping[str, Any] | None = None,
    progress: ProgressCallback | None = None,
) -> ConvertReport:
    """Store the pictures of a folder as a data set of shards, and publish it.

    The fields are ``image``, the files as they are, and with class folders ``label`` (int64),
    the place of the folder among the class names in code-point order. Keys are the paths
    relative to ``src``. The same source and options give the same bytes, for any ``jobs``; those
    of compressed values also depend on the version of zstd.

    Args:
        src: class folders, a flat folder, or either in ``train`` and ``val``.
        dest: a path or ``s3://bucket/prefix``; must hold no data set; buckets are never made.
        shard_bytes: largest shard, as a size string or bytes.
        block_samples: samples that are fetched together; ``"auto"`` takes about 1 MiB.
        shuffle_seed: seed of the stored order; None keeps the order of the paths.
        jobs: threads that read and decode; None takes the CPUs this process may use.
        decode_check: decode every picture fully, so that none of the stored is damaged.
        max_rejects: stop when more bad pictures than this were met; None has no limit.
        codec: ``{"image": "zstd"}`` compresses the files that become at least a 16th smaller, as
            BMP does and JPEG does not; needs ``streamloader[zstd]``, here and where it is read.
        zstd_level: 1 to 22, only with codec ``zstd``; None is 3.
        hash: that guards every sample: ``"xxh3-64"``, or ``"crc32"`` for readers with zlib alone.
        storage_options: options of ``open_store`` for ``dest``.
        progress: called with a ``Progress`` as the conversion goes, from another thread.

    Raises:
        ConfigError: an argument, source or destination that cannot work; nothing was written.
        RejectedError: more rejects than allowed, or no sound picture; nothing is published.
        StorageError: the destination failed; nothing is published.
    """
    options = ConvertOptions(
        CutOptions(shard_bytes, block_samples),
        Encoding(codec, zstd_level, hash),
        shuffle_seed,
        jobs,
        decode_check,
        max_rejects,
    )
    require_folder(src)
    store = open_store(os.fspath(dest), **(storage_options or {}))
    _refuse_nesting(src, store.url)
    # The loop is closed first: the coroutines are gone when the threads they use are joined.
    with conversion_threads(options.num_threads) as threads, LoopThread("convert-loop") as loop:
        return loop.run(_convert(store, Path(src), options, threads, progress))


async def _convert(
    store: Store,
    src: Path,
    options: ConvertOptions,
    threads: Threads,
    progress: ProgressCallback | None,
) -> ConvertReport:
    started_s = time.monotonic()
    running = asyncio.get_running_loop()
    async with store:
        await require_free(store)
        source = await running.run_in_executor(threads.readers, read_source, src)
        schema = options.encoding.schema(source_fields(source))
        plans = await running.run_in_executor(threads.readers, plan_shards, source, schema, options)
        pipeline = Pipeline(
            store,
            src,
            schema,
            threads=threads,
            zstd_level=options.encoding.level,
            decode_check=options.decode_check,
            max_rejects=options.max_rejects,
            rejects=[r for r in source.rejects if r.kind is RejectKind.BAD],
            progress=progress,
        )
        shards = await pipeline.run(plans)
        left_out = [r for r in source.rejects if r.kind is not RejectKind.BAD]
        rejected = sort_rejects([*pipeline.rejects, *left_out])
        _require_samples(shards, rejected)
        publication = _describe(source, schema, options)
        await store.put(REJECTS_NAME, rejects_jsonl(rejected))
        manifest = await publish(store, shards, publication)
    return ConvertReport(
        url=store.url,
        samples=manifest.num_samples,
        shards=len(shards),
        bytes_in=pipeline.bytes_in,
        bytes_out=sum(shard.summary.bytes for shard in shards),
        rejected=rejected,
        seconds=time.monotonic() - started_s,
        classes=publication.classes,
        splits=split_samples(shards),
        block_samples=publication.block_samples,
        fingerprint=manifest.fingerprint,
        warnings=(*source.warnings, *_warn_lost_splits(source, shards)),
    )


def source_fields(source: Source) -> tuple[Field, ...]:
    """Return the fields that a source gives: a picture, and a label where there are classes."""
    image = Field("image", "picture")
    return (image, Field("label", "i8")) if source.classes else (image,)


def _describe(source: Source, schema: Schema, options: ConvertOptions) -> Publication:
    pictures = [picture for split in source.splits for picture in split.pictures]
    total_bytes = sum(picture.size for picture in pictures)
    return Publication(
        schema=schema,
        classes=tuple(utf8_name(name) for name in source.classes),
        block_samples=options.cut.samples_per_block(total_bytes, len(pictures)),
        export_seed=options.shuffle_seed,
    )


def _require_samples(shards: list[StoredShard], rejected: tuple[Rejected, ...]) -> None:
    if not shards:
        first = rejected[0]
        raise RejectedError(
            f"none of the pictures is sound, nothing was published; the first is"
            f" {utf8_name(first.path)}: {first.reason}",
            rejected,
        )


def _warn_lost_splits(source: Source, shards: list[StoredShard]) -> list[str]:
    stored = {shard.split for shard in shards}
    lost = [split.name for split in source.splits if split.name not in stored]
    return [f"no picture of the split {name} is sound; it is left out" for name in lost]


def _refuse_nesting(src: str | os.PathLike[str], url: str) -> None:
    """Refuse a destination inside the source: the next run would find its shards there."""
    if "://" in url:
        return
    source, dest = Path(os.path.realpath(src)), Path(os.path.realpath(url))
    if dest.is_relative_to(source):
        raise ConfigError(
            f"the destination {url} is inside the source {utf8_name(os.fspath(src))}; choose a"
            " folder outside of it"
        )

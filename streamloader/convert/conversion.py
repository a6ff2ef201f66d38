"""Converts a source into a data set."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from storage_backends import Store, open_store
from streamloader.convert.arrival import Arrival, arrive, look
from streamloader.convert.encoding import CodecChoice, Encoding
from streamloader.convert.engines import Engine, Job, open_engine
from streamloader.convert.journal import Journal
from streamloader.convert.lossless import require_lossless
from streamloader.convert.options import DEFAULT_SHARD_BYTES, ConvertOptions, CutOptions
from streamloader.convert.picture_options import PictureOptions
from streamloader.convert.pipeline import ShardResult, StoringOptions
from streamloader.convert.plan import Plan, plan_shards
from streamloader.convert.publish import (
    FIRST_REVISION,
    AlreadyPublishedError,
    Publication,
    confirm_all,
    first_manifest,
    publish_manifest,
)
from streamloader.convert.removal import rejects_name
from streamloader.convert.report import (
    ConvertReport,
    Rejected,
    RejectedError,
    RejectKind,
    rejects_jsonl,
    sort_rejects,
    utf8_name,
)
from streamloader.convert.sources import Listing, Source, SourceChoice, open_source
from streamloader.convert.tally import ProgressCallback, Tally
from streamloader.convert.upload import StoredShard
from streamloader.dts import DEFAULT_HASH, Manifest, Schema
from streamloader.errors import ConfigError
from streamloader.fetch import LoopThread, read_manifest

Sources = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def convert(
    src: Sources,
    dest: str | os.PathLike[str],
    *,
    source_kind: str = "auto",
    labels: str | os.PathLike[str] | None = None,
    keep_classes: Sequence[str] | None = None,
    keep_keys: Sequence[str] | None = None,
    split: str | None = None,
    shard_bytes: int | str = DEFAULT_SHARD_BYTES,
    block_samples: int | str = "auto",
    shuffle_seed: int | None = 0,
    jobs: int | None = None,
    decode_check: bool = True,
    max_rejects: int | None = None,
    codec: CodecChoice = None,
    zstd_level: int | None = None,
    hash: str = DEFAULT_HASH,  # noqa: A002  as the format calls it
    pictures: PictureOptions | None = None,
    resume: bool = False,
    overwrite: bool = False,
    engine: str = "local",
    storage_options: Mapping[str, Any] | None = None,
    source_options: Mapping[str, Any] | None = None,
    progress: ProgressCallback | None = None,
) -> ConvertReport:
    """Store the samples of a source as a data set of shards, and publish it.

    Folders of pictures give the fields ``image``, the files as they are, and with class folders
    ``label`` (int64), the place of the folder among the class names in code-point order; other
    sources give the fields that they have. Keys are the paths relative to ``src``. The same
    source and options give the same bytes, for any ``jobs`` and ``engine``; those of compressed
    values also depend on the version of zstd, those of pictures that are encoded anew on that of
    Pillow.

    A run that was killed goes on where it was when the same call is made again: shards that are
    complete are kept.

    Args:
        src: class folders, a flat folder, or either in ``train`` and ``val``; or another kind of
            source; or several of one kind, which are joined.
        dest: a path or ``s3://bucket/prefix``; must hold no data set; buckets are never made.
        source_kind: one of ``SOURCE_KINDS``; ``"auto"`` goes by what is there.
        labels: a CSV, JSONL or Parquet file with a row of fields for each picture of the folder.
        keep_classes: names of the classes whose samples are stored; None stores all.
        keep_keys: keys of the samples that are stored; None stores all.
        split: the only split of the source to store, then without splits.
        shard_bytes: largest shard, as a size string or bytes.
        block_samples: samples that are fetched together; ``"auto"`` takes about 1 MiB.
        shuffle_seed: seed of the stored order; None keeps the order of the source.
        jobs: threads that read and decode; None takes the CPUs this process may use.
        decode_check: decode every picture fully, so that none of the stored is damaged.
        max_rejects: stop when more bad samples than this were met; None has no limit.
        codec: ``{"image": "zstd"}`` compresses the files that become at least a 16th smaller, as
            BMP does and JPEG does not; needs ``streamloader[zstd]``, here and where it is read.
        zstd_level: 1 to 22, only with codec ``zstd``; None is 3.
        hash: that guards every sample: ``"xxh3-64"``, or ``"crc32"`` for readers with zlib alone.
        pictures: what is done to pictures; None stores them as they are.
        resume: accept a destination where the same conversion is published already.
        overwrite: remove a data set or an unfinished conversion that is at the destination.
        engine: ``"local"``, or ``"ray"`` to work on a cluster.
        storage_options: options of ``open_store`` for ``dest``.
        source_options: the same for ``src``; None takes those of ``dest``.
        progress: called with a ``Progress`` as the conversion goes, from another thread.

    Raises:
        ConfigError: an argument, source or destination that cannot work; nothing was written.
        RejectedError: more rejects than allowed, or no sound sample; nothing is published.
        StorageError: the destination failed; nothing is published.
    """
    options = ConvertOptions(
        CutOptions(shard_bytes, block_samples),
        Encoding(codec, zstd_level, hash),
        shuffle_seed,
        jobs,
        decode_check,
        max_rejects,
        pictures or PictureOptions(),
    )
    if resume and overwrite:
        raise ConfigError("resume and overwrite exclude each other; give one")
    if options.pictures.lossless_baseline:
        require_lossless()
    choice = SourceChoice.of(source_kind, labels, keep_classes, keep_keys, split)
    paths = source_paths(src)
    working = open_engine(engine, options.num_threads)
    store = open_store(os.fspath(dest), **(storage_options or {}))
    for path in paths:
        refuse_nesting(path, store.url)
    read_options = storage_options if source_options is None else source_options
    with LoopThread("convert-loop") as loop, ExitStack() as stack:
        loop.run(store.__aenter__())
        stack.callback(lambda: loop.run(store.close()))
        conversion = Conversion(
            store, loop, options, working, storage_options or {}, progress, resume, overwrite
        )
        return conversion.run(lambda: open_source(paths, choice, read_options or {}))


def source_paths(src: Sources) -> tuple[str, ...]:
    """Return the paths or URLs of the sources.

    Raises:
        ConfigError: there is none.
    """
    paths = (src,) if isinstance(src, str | os.PathLike) else tuple(src)
    if not paths:
        raise ConfigError("no source was given; give at least one")
    return tuple(os.fspath(path) for path in paths)


class Conversion:
    """One conversion, from its first look at the destination to its report.

    Args:
        store: the destination, entered in ``loop``.
        loop: runs everything that waits.
        options: of the conversion.
        engine: who does the work.
        storage_options: with which ``store`` was opened.
        progress: called as the conversion goes.
        resume, overwrite: what is allowed where the destination is taken.
    """

    def __init__(
        self,
        store: Store,
        loop: LoopThread,
        options: ConvertOptions,
        engine: Engine,
        storage_options: Mapping[str, Any],
        progress: ProgressCallback | None,
        resume: bool,
        overwrite: bool,
    ) -> None:
        self._started_s = time.monotonic()
        self._store = store
        self._loop = loop
        self._options = options
        self._engine = engine
        self._storage_options = storage_options
        self._progress = progress
        self._resume = resume
        self._overwrite = overwrite

    def run(self, open_it: Any) -> ConvertReport:
        """Convert what ``open_it`` opens."""
        found = self._loop.run(look(self._store, resume=self._resume, overwrite=self._overwrite))
        source: Source = open_it()
        listing = source.listing
        schema = self._options.encoding.schema(listing.fields)
        plan = plan_shards(listing, schema, self._options)
        journal = Journal(self._store, plan, FIRST_REVISION)
        arrival = self._loop.run(
            arrive(self._store, found, plan, journal, overwrite=self._overwrite)
        )
        if arrival is Arrival.DONE:
            return self._loop.run(self._already_done(listing, plan, journal))
        results, tally, resumed = store_shards(
            self._loop,
            self._engine,
            Job(
                source,
                plan.shards,
                storing_options(schema, self._options),
                self._store.url,
                self._storage_options,
                self._store,
                self._loop,
                journal,
                new_tally(listing, self._options, self._progress),
            ),
            go_on=arrival is Arrival.GO_ON,
        )
        return self._loop.run(
            self._publish(listing, schema, plan, journal, results, tally, resumed)
        )

    async def _publish(
        self,
        listing: Listing,
        schema: Schema,
        plan: Plan,
        journal: Journal,
        results: Sequence[ShardResult],
        tally: Tally,
        resumed: int,
    ) -> ConvertReport:
        rejected = all_rejects(listing, tally)
        shards = require_shards(plan, results, rejected)
        publication = Publication(
            schema, listing.classes, plan.block_samples, self._options.shuffle_seed
        )
        await journal.require_own()
        await confirm_all(self._store, shards)
        manifest, sidecar = first_manifest(shards, publication)
        await self._store.put(rejects_name(FIRST_REVISION), rejects_jsonl(rejected))
        try:
            await publish_manifest(self._store, manifest, sidecar, resumable=True)
        except AlreadyPublishedError:
            await journal.remove()
            raise
        await journal.remove()
        return self._report(listing, manifest, rejected, tally.bytes_in, resumed)

    async def _already_done(self, listing: Listing, plan: Plan, journal: Journal) -> ConvertReport:
        """Report what an earlier run has published, and remove what is left of its journal."""
        manifest = await read_manifest(self._store)
        await journal.remove()
        return self._report(listing, manifest, (), listing.total_bytes, len(plan.shards))

    def _report(
        self,
        listing: Listing,
        manifest: Manifest,
        rejected: tuple[Rejected, ...],
        bytes_in: int,
        resumed: int,
    ) -> ConvertReport:
        splits = {name: manifest.run_samples(run) for name, run in manifest.splits.items()}
        lost = [s.name for s in listing.splits if s.name is not None and s.name not in splits]
        warnings = [f"no sample of the split {name} is sound; it is left out" for name in lost]
        return ConvertReport(
            url=self._store.url,
            samples=manifest.num_samples,
            shards=manifest.num_shards,
            bytes_in=bytes_in,
            bytes_out=int(manifest.shard_bytes.sum()),
            rejected=rejected,
            seconds=time.monotonic() - self._started_s,
            classes=manifest.classes,
            splits=splits,
            block_samples=manifest.block_samples,
            fingerprint=manifest.fingerprint,
            warnings=(*listing.warnings, *warnings),
            resumed_shards=resumed,
            total_samples=manifest.num_samples,
        )


def storing_options(schema: Schema, options: ConvertOptions) -> StoringOptions:
    """Return how samples become records."""
    return StoringOptions(schema, options.encoding.level, options.decode_check, options.pictures)


def new_tally(
    listing: Listing, options: ConvertOptions, progress: ProgressCallback | None
) -> Tally:
    """Return the tally of a conversion, with the rejects of the listing counted.

    Raises:
        RejectedError: these are more than allowed.
    """
    tally = Tally(listing.num_samples, listing.total_bytes, options.max_rejects, progress)
    tally.add(rejects=[r for r in listing.rejects if r.kind is RejectKind.BAD])
    return tally


def store_shards(
    loop: LoopThread, engine: Engine, job: Job, *, go_on: bool
) -> tuple[list[ShardResult], Tally, int]:
    """Store the shards of a job, those left out that an earlier run has stored.

    Returns:
        what became of the shards, in any order; the tally; and how many were there already.
    """
    listing, tally = job.source.listing, job.tally
    done: dict[str, ShardResult] = {}
    if go_on:
        splits = [split.name for split in listing.splits]
        done = loop.run(job.journal.recorded(job.shards, splits))
    for plan in job.shards:
        result = done.get(plan.name)
        if result is not None:
            seen = int(listing.splits[plan.split].sizes[plan.order].sum())
            tally.add(
                samples=len(plan.order),
                bytes_seen=seen,
                bytes_in=result.bytes_in,
                rejects=result.rejects,
            )
    missing = [plan for plan in job.shards if plan.name not in done]
    results = engine.run(job.with_shards(missing)) if missing else []
    return [*done.values(), *results], tally, len(done)


def all_rejects(listing: Listing, tally: Tally) -> tuple[Rejected, ...]:
    """Return everything that was left out, bad samples first."""
    left_out = [r for r in listing.rejects if r.kind is not RejectKind.BAD]
    return sort_rejects([*tally.rejects, *left_out])


def require_shards(
    plan: Plan, results: Sequence[ShardResult], rejected: tuple[Rejected, ...]
) -> list[StoredShard]:
    """Return the stored shards in the order of the plan.

    Raises:
        RejectedError: there is none.
    """
    by_name = {result.name: result.shard for result in results}
    shards = [by_name[planned.name] for planned in plan.shards]
    stored = [shard for shard in shards if shard is not None]
    if not stored:
        first = rejected[0]
        raise RejectedError(
            f"none of the samples is sound, nothing was published; the first is"
            f" {utf8_name(first.path)}: {first.reason}",
            rejected,
        )
    return stored


def refuse_nesting(src: str, url: str) -> None:
    """Refuse a destination inside the source: the next run would find its shards there.

    Raises:
        ConfigError: it is.
    """
    if "://" in url:
        if src == url or url.startswith(src.rstrip("/") + "/"):
            raise _inside(src, url)
        return
    source, dest = Path(os.path.realpath(src)), Path(os.path.realpath(url))
    if dest.is_relative_to(source):
        raise _inside(src, url)


def _inside(src: str, url: str) -> ConfigError:
    return ConfigError(
        f"the destination {url} is inside the source {utf8_name(src)}; choose a place outside of it"
    )

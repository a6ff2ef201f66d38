"""Converts a source into a data set."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from streamloader.convert.arrival import Arrival, arrive, look
from streamloader.convert.destination import Destination, open_destination
from streamloader.convert.encoding import CodecChoice, Encoding
from streamloader.convert.engines import Engine, Job, open_engine
from streamloader.convert.journal import Journal
from streamloader.convert.lossless import require_lossless
from streamloader.convert.options import DEFAULT_SHARD_BYTES, ConvertOptions, CutOptions
from streamloader.convert.paths import Sources, refuse_nesting, source_paths
from streamloader.convert.picture_options import PictureOptions
from streamloader.convert.plan import Plan, plan_shards
from streamloader.convert.publish import FIRST_REVISION, Publication, confirm_all, first_manifest
from streamloader.convert.report import ConvertReport, Rejected
from streamloader.convert.sources import Listing, Source, SourceChoice, open_source
from streamloader.convert.storing import (
    StoredShards,
    all_rejects,
    new_tally,
    publish_stored,
    require_shards,
    store_shards,
    storing_options,
)
from streamloader.convert.tally import ProgressCallback
from streamloader.dts import DEFAULT_HASH, Manifest
from streamloader.errors import ConfigError
from streamloader.fetch import read_manifest


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
        labels: a CSV, JSONL or Parquet file with a row of fields for each picture of the folder;
            a path, or a URL that is opened with the options of ``src``.
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
    read_options = storage_options if source_options is None else source_options
    with open_destination(dest, storage_options) as destination:
        for path in paths:
            refuse_nesting(path, destination.url)
        conversion = Conversion(
            destination, options, working, progress, resume=resume, overwrite=overwrite
        )
        return conversion.run(lambda: open_source(paths, choice, read_options or {}))


class Conversion:
    """One conversion, from its first look at the destination to its report.

    Args:
        destination: where it writes to.
        options: of the conversion.
        engine: who does the work.
        progress: called as the conversion goes.
        resume, overwrite: what is allowed where the destination is taken.
    """

    def __init__(
        self,
        destination: Destination,
        options: ConvertOptions,
        engine: Engine,
        progress: ProgressCallback | None,
        *,
        resume: bool,
        overwrite: bool,
    ) -> None:
        self._started_s = time.monotonic()
        self._destination = destination
        self._store = destination.store
        self._options = options
        self._engine = engine
        self._progress = progress
        self._resume = resume
        self._overwrite = overwrite

    def run(self, open_it: Callable[[], Source]) -> ConvertReport:
        """Convert what ``open_it`` opens."""
        loop = self._destination.loop
        found = loop.run(look(self._store, resume=self._resume, overwrite=self._overwrite))
        source = open_it()
        listing = source.listing
        schema = self._options.encoding.schema(listing.fields)
        plan = plan_shards(listing, schema, self._options)
        journal = Journal(self._store, plan, FIRST_REVISION)
        arrival = loop.run(arrive(self._store, found, plan, journal, overwrite=self._overwrite))
        if arrival is Arrival.DONE:
            return loop.run(self._already_done(listing, plan, journal))
        job = Job(
            source,
            plan.shards,
            storing_options(schema, self._options),
            self._destination,
            journal,
            new_tally(listing, self._options, self._progress),
        )
        stored = store_shards(self._engine, job, go_on=arrival is Arrival.GO_ON)
        return loop.run(self._publish(job, plan, stored))

    async def _publish(self, job: Job, plan: Plan, stored: StoredShards) -> ConvertReport:
        listing = job.source.listing
        rejected = all_rejects(listing, job.tally)
        shards = require_shards(plan, stored.results, rejected)
        publication = Publication(
            job.options.schema, listing.classes, plan.block_samples, self._options.shuffle_seed
        )
        await job.journal.require_own()
        await confirm_all(self._store, shards)
        manifest, sidecar = first_manifest(shards, publication)
        warnings = await publish_stored(self._store, job.journal, manifest, sidecar, rejected)
        return self._report(
            listing, manifest, rejected, job.tally.bytes_in, stored.resumed, warnings
        )

    async def _already_done(self, listing: Listing, plan: Plan, journal: Journal) -> ConvertReport:
        """Report what an earlier run has published, and remove what is left of its journal."""
        manifest = await read_manifest(self._store)
        warnings = await journal.end()
        return self._report(listing, manifest, (), listing.total_bytes, len(plan.shards), warnings)

    def _report(
        self,
        listing: Listing,
        manifest: Manifest,
        rejected: tuple[Rejected, ...],
        bytes_in: int,
        resumed: int,
        warnings: tuple[str, ...],
    ) -> ConvertReport:
        splits = {name: manifest.run_samples(run) for name, run in manifest.splits.items()}
        lost = [s.name for s in listing.splits if s.name is not None and s.name not in splits]
        left_out = [f"no sample of the split {name} is sound; it is left out" for name in lost]
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
            warnings=(*listing.warnings, *left_out, *warnings),
            resumed_shards=resumed,
            total_samples=manifest.num_samples,
            requests=self._destination.requests,
            retries=self._destination.retries,
        )

"""Adds samples to a published data set: new shards and a new revision of the manifest.

What is there stays as it is, and so does every sample's number in its split: readers that have
opened an earlier revision do not notice.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from streamloader.convert.destination import Destination, open_destination
from streamloader.convert.encoding import CodecChoice, Encoding
from streamloader.convert.engines import Engine, Job, open_engine
from streamloader.convert.journal import Journal, StoredPlan, read_plan
from streamloader.convert.lossless import require_lossless
from streamloader.convert.next_revision import next_manifest
from streamloader.convert.options import (
    DEFAULT_SHARD_BYTES,
    SAMPLE_ALIGN,
    ConvertOptions,
    CutOptions,
)
from streamloader.convert.paths import Sources, refuse_nesting, source_paths
from streamloader.convert.picture_options import PictureOptions
from streamloader.convert.plan import Plan, plan_shards
from streamloader.convert.publish import AlreadyPublishedError, confirm_all
from streamloader.convert.report import ConvertReport, Rejected
from streamloader.convert.sources import Source, SourceChoice, open_source
from streamloader.convert.sources.joined import named_split, with_classes
from streamloader.convert.storing import (
    all_rejects,
    new_tally,
    publish_stored,
    require_shards,
    store_shards,
    storing_options,
)
from streamloader.convert.tally import ProgressCallback
from streamloader.convert.upload import StoredShard
from streamloader.dts import Manifest, Schema, ShardEntry, unite
from streamloader.errors import ConfigError
from streamloader.fetch import read_manifest


def append(
    src: Sources,
    dest: str | os.PathLike[str],
    *,
    source_kind: str = "auto",
    labels: str | os.PathLike[str] | None = None,
    keep_classes: Sequence[str] | None = None,
    keep_keys: Sequence[str] | None = None,
    split: str | None = None,
    into: str | None = None,
    shard_bytes: int | str = DEFAULT_SHARD_BYTES,
    shuffle_seed: int | None = 0,
    jobs: int | None = None,
    decode_check: bool = True,
    max_rejects: int | None = None,
    codec: CodecChoice = None,
    zstd_level: int | None = None,
    pictures: PictureOptions | None = None,
    resume: bool = False,
    engine: str = "local",
    storage_options: Mapping[str, Any] | None = None,
    source_options: Mapping[str, Any] | None = None,
    progress: ProgressCallback | None = None,
) -> ConvertReport:
    """Add the samples of a source to a data set, as a new revision of it.

    Classes go by name: those that the data set has keep their labels, new ones follow them.
    Samples go to the end of their split, so that no number changes. A run that was killed goes
    on when the same call is made again.

    Args:
        src, source_kind, labels, keep_classes, keep_keys, split: as for ``convert``.
        dest: a data set.
        into: the split that samples of a source without splits go to.
        shard_bytes, shuffle_seed, jobs, decode_check, max_rejects, codec, zstd_level, pictures:
            as for ``convert``; block size and hash are those of the data set.
        resume: add nothing where the newest revision is this very addition.
        engine, storage_options, source_options, progress: as for ``convert``.

    Returns:
        a report whose ``samples`` and ``shards`` are those that were added.

    Raises:
        ConfigError: there is no data set, or the source does not fit it; nothing was written.
        RejectedError: more rejects than allowed, or no sound sample; nothing is published.
        StorageError: the storage failed; nothing is published.
    """
    cut, encoding = CutOptions(shard_bytes), Encoding(codec, zstd_level)
    options = ConvertOptions(
        cut, encoding, shuffle_seed, jobs, decode_check, max_rejects, pictures or PictureOptions()
    )
    if options.pictures.lossless_baseline:
        require_lossless()
    choice = SourceChoice.of(source_kind, labels, keep_classes, keep_keys, split)
    paths = source_paths(src)
    working = open_engine(engine, options.num_threads)
    read_options = storage_options if source_options is None else source_options
    with open_destination(dest, storage_options) as destination:
        for path in paths:
            refuse_nesting(path, destination.url)
        base = destination.loop.run(read_manifest(destination.store))
        unfinished = destination.loop.run(read_plan(destination.store))
        source = open_source(paths, choice, read_options or {})
        addition = Addition(destination, base, options, working, progress, resume=resume)
        return addition.run(_placed(source, base, into), unfinished)


class Addition:
    """One addition to a data set.

    Args:
        destination: where the data set is.
        base: the newest revision.
        options: of the addition.
        engine: who does the work.
        progress: called as it goes.
        resume: accept that it is published already.
    """

    def __init__(
        self,
        destination: Destination,
        base: Manifest,
        options: ConvertOptions,
        engine: Engine,
        progress: ProgressCallback | None,
        *,
        resume: bool,
    ) -> None:
        self._started_s = time.monotonic()
        self._destination = destination
        self._store = destination.store
        self._base = base
        self._options = replace(options, encoding=replace(options.encoding, hash=base.hash))
        self._engine = engine
        self._progress = progress
        self._resume = resume

    def run(self, source: Source, unfinished: StoredPlan | None) -> ConvertReport:
        """Add the samples of a source.

        Args:
            source: with its labels counted in the classes of the data set.
            unfinished: plan of the unfinished conversion that was found, if any.
        """
        loop = self._destination.loop
        schema = self._options.encoding.schema(source.listing.fields)
        unite([*self._base.schemas, schema])
        last = self._plan(source, schema, self._base.rev)
        if self._is_published(last, unfinished):
            warnings = loop.run(Journal(self._store, last, self._base.rev).end())
            added = self._added_entries(last)
            return self._report(source, added, (), 0, len(last.shards), warnings)
        plan = self._plan(source, schema, self._base.rev + 1)
        journal = Journal(self._store, plan, self._base.rev + 1)
        if unfinished is not None and not journal.is_of(unfinished):
            raise ConfigError(
                f"{self._store.url} holds an unfinished conversion of another source or with other"
                " options; finish that one, or remove it with `streamloader clean`"
            )
        job = Job(
            source,
            plan.shards,
            storing_options(schema, self._options),
            self._destination,
            journal,
            new_tally(source.listing, self._options, self._progress),
        )
        stored = store_shards(self._engine, job, go_on=unfinished is not None)
        rejected = all_rejects(source.listing, job.tally)
        shards = require_shards(plan, stored.results, rejected)
        warnings = loop.run(self._publish(job, shards, rejected))
        names = {shard.name for shard in shards}
        added = [entry for entry in self._base.shards if entry.name in names]
        return self._report(source, added, rejected, job.tally.bytes_in, stored.resumed, warnings)

    def _plan(self, source: Source, schema: Schema, revision: int) -> Plan:
        return plan_shards(
            source.listing,
            schema,
            self._options,
            block_samples=self._base.block_samples,
            revision=revision,
        )

    def _is_published(self, last: Plan, unfinished: StoredPlan | None) -> bool:
        """Tell whether the newest revision is this very addition.

        It is if a journal says so, from a run that was killed when it had published; without one
        only ``resume`` may take it for that, since the same source can be added twice.
        """
        if self._base.rev == 1:
            return False
        if unfinished is not None:
            return unfinished.revision == self._base.rev and unfinished.digest == last.digest
        return self._resume and bool(self._added_entries(last))

    def _added_entries(self, plan: Plan) -> list[ShardEntry]:
        planned = {(shard.name, shard.uuid) for shard in plan.shards}
        return [entry for entry in self._base.shards if (entry.name, entry.uuid) in planned]

    async def _publish(
        self, job: Job, shards: Sequence[StoredShard], rejected: tuple[Rejected, ...]
    ) -> tuple[str, ...]:
        """Publish the next revision, which is the newest then; returns warnings."""
        await job.journal.require_own()
        current = await read_manifest(self._store)
        if current.fingerprint != self._base.fingerprint:
            await job.journal.remove()
            raise AlreadyPublishedError(
                f"another writer published revision {current.rev} at {self._store.url} in the"
                " meantime; append again"
            )
        await confirm_all(self._store, shards)
        manifest, sidecar = await next_manifest(
            self._store, self._base, job.options.schema, job.source.listing.classes, shards
        )
        warnings = await publish_stored(self._store, job.journal, manifest, sidecar, rejected)
        self._base = manifest
        return warnings

    def _report(
        self,
        source: Source,
        added: Sequence[ShardEntry],
        rejected: tuple[Rejected, ...],
        bytes_in: int,
        resumed: int,
        warnings: tuple[str, ...],
    ) -> ConvertReport:
        manifest = self._base
        return ConvertReport(
            url=self._store.url,
            samples=sum(entry.samples for entry in added),
            shards=len(added),
            bytes_in=bytes_in,
            bytes_out=sum(entry.bytes for entry in added),
            rejected=rejected,
            seconds=time.monotonic() - self._started_s,
            classes=manifest.classes,
            splits={name: manifest.run_samples(run) for name, run in manifest.splits.items()},
            block_samples=manifest.block_samples,
            fingerprint=manifest.fingerprint,
            warnings=(*source.listing.warnings, *warnings),
            resumed_shards=resumed,
            revision=manifest.rev,
            total_samples=manifest.num_samples,
            requests=self._destination.requests,
            retries=self._destination.retries,
        )


def _placed(source: Source, base: Manifest, into: str | None) -> Source:
    """Return a source whose classes and splits are those of the data set, as far as it has any.

    Raises:
        ConfigError: they do not fit.
    """
    if base.sample_align != SAMPLE_ALIGN:
        raise ConfigError(
            f"the data set aligns its records to {base.sample_align} bytes, which append cannot;"
            " convert it anew together with the source"
        )
    names = [split.name for split in source.listing.splits]
    if into is not None:
        if names != [None]:
            raise ConfigError("into is for sources without splits; this one has its own")
        source = named_split(source, into)
        names = [into]
    if (names == [None]) != (not base.splits):
        has, lacks = ("source", "data set") if not base.splits else ("data set", "source")
        raise ConfigError(
            f"the {has} has splits and the {lacks} has none; give the split with into, or convert"
            " them apart"
        )
    if bool(base.classes) != bool(source.listing.classes):
        has, lacks = ("data set", "source") if base.classes else ("source", "data set")
        raise ConfigError(
            f"the {has} has class names and the {lacks} has none, so labels would not mean the same"
        )
    return with_classes(source, base.classes)

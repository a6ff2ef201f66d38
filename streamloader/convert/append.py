"""Adds samples to a published data set: new shards and a new revision of the manifest.

What is there stays as it is, and so does every sample's number in its split: readers that have
opened an earlier revision do not notice.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from storage_backends import Store, open_store
from streamloader.convert.conversion import (
    Sources,
    all_rejects,
    new_tally,
    refuse_nesting,
    require_shards,
    source_paths,
    store_shards,
    storing_options,
)
from streamloader.convert.encoding import CodecChoice, Encoding
from streamloader.convert.engines import Engine, Job, open_engine
from streamloader.convert.journal import Journal, StoredPlan, read_plan
from streamloader.convert.lossless import require_lossless
from streamloader.convert.options import (
    DEFAULT_SHARD_BYTES,
    SAMPLE_ALIGN,
    ConvertOptions,
    CutOptions,
)
from streamloader.convert.parallel import for_each
from streamloader.convert.picture_options import PictureOptions
from streamloader.convert.plan import Plan, plan_shards
from streamloader.convert.publish import AlreadyPublishedError, confirm_all, publish_manifest
from streamloader.convert.removal import rejects_name
from streamloader.convert.report import ConvertReport, Rejected, rejects_jsonl
from streamloader.convert.sources import Source, SourceChoice, open_source
from streamloader.convert.sources.joined import named_split, with_classes
from streamloader.convert.tally import ProgressCallback
from streamloader.convert.upload import StoredShard
from streamloader.dts import (
    Manifest,
    Schema,
    ShardEntry,
    SidecarEntry,
    SplitEntry,
    build_sidecar,
    sidecar_name,
    unite,
)
from streamloader.errors import ConfigError
from streamloader.fetch import Catalog, LoopThread, read_manifest

_TAILS_IN_FLIGHT = 8

Offsets = npt.NDArray[np.uint64]


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
    store = open_store(os.fspath(dest), **(storage_options or {}))
    for path in paths:
        refuse_nesting(path, store.url)
    read_options = storage_options if source_options is None else source_options
    with LoopThread("append-loop") as loop, ExitStack() as stack:
        loop.run(store.__aenter__())
        stack.callback(lambda: loop.run(store.close()))
        base = loop.run(read_manifest(store))
        unfinished = loop.run(read_plan(store))
        source = open_source(paths, choice, read_options or {})
        addition = Addition(
            store, loop, base, options, working, storage_options or {}, progress, resume
        )
        return addition.run(_placed(source, base, into), unfinished)


class Addition:
    """One addition to a data set.

    Args:
        store: where the data set is, entered in ``loop``.
        loop: runs everything that waits.
        base: the newest revision.
        options: of the addition.
        engine: who does the work.
        storage_options: with which ``store`` was opened.
        progress: called as it goes.
        resume: accept that it is published already.
    """

    def __init__(
        self,
        store: Store,
        loop: LoopThread,
        base: Manifest,
        options: ConvertOptions,
        engine: Engine,
        storage_options: Mapping[str, Any],
        progress: ProgressCallback | None,
        resume: bool,
    ) -> None:
        self._started_s = time.monotonic()
        self._store = store
        self._loop = loop
        self._base = base
        self._options = replace(options, encoding=replace(options.encoding, hash=base.hash))
        self._engine = engine
        self._storage_options = storage_options
        self._progress = progress
        self._resume = resume

    def run(self, source: Source, unfinished: StoredPlan | None) -> ConvertReport:
        """Add the samples of a source.

        Args:
            source: with its labels counted in the classes of the data set.
            unfinished: plan of the unfinished conversion that was found, if any.
        """
        schema = self._options.encoding.schema(source.listing.fields)
        unite([*self._base.schemas, schema])
        last = self._plan(source, schema, self._base.rev)
        if self._is_published(last, unfinished):
            self._loop.run(Journal(self._store, last, self._base.rev).remove())
            return self._report(source, self._added_entries(last), (), 0, len(last.shards))
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
            self._store.url,
            self._storage_options,
            self._store,
            self._loop,
            journal,
            new_tally(source.listing, self._options, self._progress),
        )
        results, tally, resumed = store_shards(
            self._loop, self._engine, job, go_on=unfinished is not None
        )
        rejected = all_rejects(source.listing, tally)
        shards = require_shards(plan, results, rejected)
        manifest = self._loop.run(self._publish(source, schema, journal, shards, rejected))
        entries = [manifest.entry(place) for place in range(manifest.num_shards)]
        names = {shard.name for shard in shards}
        added = [entry for entry in entries if entry.name in names]
        self._base = manifest
        return self._report(source, added, rejected, tally.bytes_in, resumed)

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
        self,
        source: Source,
        schema: Schema,
        journal: Journal,
        shards: Sequence[StoredShard],
        rejected: tuple[Rejected, ...],
    ) -> Manifest:
        await journal.require_own()
        current = await read_manifest(self._store)
        if current.fingerprint != self._base.fingerprint:
            await journal.remove()
            raise AlreadyPublishedError(
                f"another writer published revision {current.rev} at {self._store.url} in the"
                " meantime; append again"
            )
        await confirm_all(self._store, shards)
        manifest, sidecar = await next_manifest(
            self._store, self._base, schema, source.listing.classes, shards
        )
        await self._store.put(rejects_name(manifest.rev), rejects_jsonl(rejected))
        try:
            await publish_manifest(self._store, manifest, sidecar, resumable=True)
        except AlreadyPublishedError:
            await journal.remove()
            raise
        await journal.remove()
        return manifest

    def _report(
        self,
        source: Source,
        added: Sequence[ShardEntry],
        rejected: tuple[Rejected, ...],
        bytes_in: int,
        resumed: int,
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
            warnings=source.listing.warnings,
            resumed_shards=resumed,
            revision=manifest.rev,
            total_samples=manifest.num_samples,
        )


@dataclass(frozen=True, slots=True)
class _Stored:
    """A shard of either revision: its line in the manifest, and where its records start."""

    entry: ShardEntry
    offsets: Offsets


async def next_manifest(
    store: Store,
    base: Manifest,
    schema: Schema,
    classes: tuple[str, ...],
    added: Sequence[StoredShard],
) -> tuple[Manifest, bytes]:
    """Return the manifest of the next revision, and its sidecar.

    Args:
        store: where the data set is.
        base: the revision before.
        schema: of the added shards.
        classes: of all samples; begin with those of ``base``.
        added: shards, each of a split if ``base`` has splits.
    """
    schemas = base.schemas if schema in base.schemas else (*base.schemas, schema)
    schema_id = schemas.index(schema)
    kept = await _stored_shards(store, base)
    new = [
        (s.split, _Stored(s.summary.entry(s.name, schema_id=schema_id), s.summary.offsets))
        for s in added
    ]
    names = list(dict.fromkeys([*_split_names(base), *(split for split, _ in new)]))
    shards: list[_Stored] = []
    splits: dict[str, SplitEntry] = {}
    starts = []
    for name in names:
        starts.append(len(shards))
        run = base.splits.get(name) if name is not None else SplitEntry(0, base.num_shards)
        if run is not None:
            shards += kept[run.first_shard : run.first_shard + run.num_shards]
        shards += [stored for split, stored in new if split == name]
        if name is not None:
            splits[name] = SplitEntry(starts[-1], len(shards) - starts[-1])
    table, max_block_bytes = build_sidecar(
        (stored.offsets for stored in shards), base.block_samples, starts
    )
    sidecar, rev = table.to_bytes(), base.rev + 1
    manifest = replace_manifest(
        base,
        rev=rev,
        schemas=schemas,
        shards=[stored.entry for stored in shards],
        splits=splits,
        classes=classes,
        max_block_bytes=max_block_bytes,
        max_record_bytes=max(
            base.max_record_bytes, *(shard.summary.max_record_bytes for shard in added)
        ),
        sidecar=SidecarEntry(sidecar_name(rev), hashlib.sha256(sidecar).hexdigest()),
    )
    return manifest, sidecar


def replace_manifest(base: Manifest, **changes: Any) -> Manifest:
    """Return a manifest that follows on another."""
    values: dict[str, Any] = {
        "dataset_uuid": base.dataset_uuid,
        "block_samples": base.block_samples,
        "parent_rev": base.rev,
        "export_seed": base.export_seed,
        "created_by": base.created_by,
        "sample_align": base.sample_align,
    }
    return Manifest(**{**values, **changes})


async def _stored_shards(store: Store, manifest: Manifest) -> list[_Stored]:
    """Read where the records of every shard start, from the tails."""
    catalog = await Catalog.open(store, any_split=True)
    offsets: list[Offsets | None] = [None] * manifest.num_shards

    async def read(shard: int) -> None:
        offsets[shard] = (await catalog.read_index(shard)).offsets.copy()

    await for_each(range(manifest.num_shards), read, at_once=_TAILS_IN_FLIGHT)
    return [
        _Stored(manifest.entry(shard), found)
        for shard, found in enumerate(offsets)
        if found is not None
    ]


def _split_names(manifest: Manifest) -> list[str | None]:
    """Return the splits in stored order; one without a name where there are none."""
    if not manifest.splits:
        return [None]
    return sorted(manifest.splits, key=lambda name: manifest.splits[name or ""].first_shard)


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

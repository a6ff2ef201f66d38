"""Stores the planned shards of a conversion or an addition, and counts what becomes of samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from storage_backends import NotFound, Store
from streamloader.convert.engines import Engine, Job
from streamloader.convert.journal import Journal
from streamloader.convert.options import ConvertOptions
from streamloader.convert.pipeline import ShardResult
from streamloader.convert.plan import Plan
from streamloader.convert.publish import AlreadyPublishedError, publish_manifest
from streamloader.convert.removal import rejects_name
from streamloader.convert.report import (
    Rejected,
    RejectedError,
    RejectKind,
    rejects_jsonl,
    sort_rejects,
    utf8_name,
)
from streamloader.convert.runs import StoringOptions
from streamloader.convert.sources import Listing
from streamloader.convert.tally import ProgressCallback, Tally
from streamloader.convert.upload import StoredShard
from streamloader.dts import Manifest, Schema


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


@dataclass(frozen=True, slots=True)
class StoredShards:
    """What became of the shards of a job.

    Args:
        results: in any order.
        resumed: how many of them an earlier run had stored.
    """

    results: tuple[ShardResult, ...]
    resumed: int


def store_shards(engine: Engine, job: Job, *, go_on: bool) -> StoredShards:
    """Store the shards of a job, those left out that an earlier run has stored."""
    listing = job.source.listing
    done: dict[str, ShardResult] = {}
    if go_on:
        splits = [split.name for split in listing.splits]
        done = job.destination.loop.run(job.journal.recorded(job.shards, splits))
    for plan in job.shards:
        result = done.get(plan.name)
        if result is not None:
            seen = int(listing.splits[plan.split].sizes[plan.order].sum())
            job.tally.add(
                samples=len(plan.order),
                bytes_seen=seen,
                bytes_in=result.bytes_in,
                rejects=result.rejects,
            )
    missing = [plan for plan in job.shards if plan.name not in done]
    results = _run(engine, job.with_shards(missing)) if missing else []
    return StoredShards((*done.values(), *results), len(done))


def _run(engine: Engine, job: Job) -> list[ShardResult]:
    try:
        return engine.run(job)
    except NotFound as error:
        published = job.destination.loop.run(job.journal.is_published())
        if error.code == "NoSuchUpload" and published:
            raise AlreadyPublishedError(
                f"another run of the same conversion published at {job.destination.url} in the"
                " meantime and removed the unfinished uploads; this run added nothing to it"
            ) from error
        raise


async def publish_stored(
    store: Store,
    journal: Journal,
    manifest: Manifest,
    sidecar: bytes,
    rejected: tuple[Rejected, ...],
) -> tuple[str, ...]:
    """Publish what was stored, with the list of what was left out, and end the journal.

    Returns:
        warnings.

    Raises:
        AlreadyPublishedError: somebody else did.
        StorageError: the storage failed; a run that goes on can still publish.
    """
    await store.put(rejects_name(manifest.rev), rejects_jsonl(rejected))
    try:
        await publish_manifest(store, manifest, sidecar, resumable=True)
    except AlreadyPublishedError:
        await journal.remove()
        raise
    return await journal.end()


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

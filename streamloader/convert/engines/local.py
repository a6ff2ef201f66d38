"""Converts in this process, with threads."""

from __future__ import annotations

from streamloader.convert.engines.engine import Engine, Job
from streamloader.convert.parallel import for_each
from streamloader.convert.pipeline import (
    Pipeline,
    ShardResult,
    Threads,
    conversion_threads,
)
from streamloader.convert.plan import ShardPlan
from streamloader.convert.runs import Run
from streamloader.convert.sources import ReadSamples


class LocalEngine(Engine):
    """Works on a few shards at a time.

    Args:
        num_threads: threads that read and decode.
    """

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads

    def run(self, job: Job) -> list[ShardResult]:
        with job.source.reading() as read, conversion_threads(self._num_threads) as threads:
            return job.destination.loop.run(_store_shards(job, read, threads))


async def _store_shards(job: Job, read: ReadSamples, threads: Threads) -> list[ShardResult]:
    def count(run: Run) -> None:
        job.tally.add(
            samples=run.samples,
            bytes_seen=run.bytes_seen,
            bytes_in=run.bytes_in,
            rejects=run.rejects,
        )

    pipeline = Pipeline(
        job.destination.store,
        job.source.listing,
        read,
        job.options,
        threads,
        begin=job.journal.begin,
        count=count,
    )
    results: list[ShardResult] = []

    async def store(plan: ShardPlan) -> None:
        result = await pipeline.store_shard(plan)
        await job.journal.record(result)
        results.append(result)

    try:
        await for_each(job.shards, store, at_once=pipeline.shards_at_once)
    finally:
        pipeline.abort()
    return results

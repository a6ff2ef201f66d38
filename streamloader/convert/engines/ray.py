"""Converts on a Ray cluster: a task a shard, on whichever machine is free.

A task does what the local engine does for one shard, so the bytes are the same. It writes the
shard and its journal entry itself; only the entry's content travels back. A task whose worker or
machine is lost is run again by Ray, and writes the same shard again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streamloader.convert.destination import open_destination
from streamloader.convert.engines.engine import Engine, Job
from streamloader.convert.journal import write_entry
from streamloader.convert.pipeline import (
    Pipeline,
    ShardResult,
    conversion_threads,
)
from streamloader.convert.plan import ShardPlan
from streamloader.convert.runs import Run, StoringOptions
from streamloader.convert.sources import Source
from streamloader.errors import ConfigError

#: How often a shard is begun again after the worker that made it was lost.
_MAX_RETRIES = 5
#: Tasks that wait for a worker, so that a lost driver loses little and memory stays small.
_TASKS_PER_CPU = 2


@dataclass(frozen=True, slots=True)
class _Target:
    """What every task needs besides the source and its shard."""

    options: StoringOptions
    url: str
    storage_options: Mapping[str, Any]
    num_threads: int


_Done = tuple[ShardResult, dict[str, int]]
"""A shard, and what was counted at the destination while it was stored."""


class RayEngine(Engine):
    """Works on as many shards at a time as the cluster has room for.

    Joins the cluster that ``RAY_ADDRESS`` names or that the program is connected to; without one
    Ray starts on this machine, and is stopped again. Source and destination must be reachable
    from every machine by the same path or URL.

    Args:
        num_threads: threads, and CPUs, of a task.

    Raises:
        ConfigError: Ray is not installed.
    """

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._ray = _import_ray()

    def run(self, job: Job) -> list[ShardResult]:
        ray = self._ray
        started_here = not ray.is_initialized()
        if started_here:
            ray.init(log_to_driver=False, include_dashboard=False, configure_logging=False)
        try:
            job.destination.loop.run(job.journal.begin())
            return self._run(job)
        finally:
            if started_here:
                ray.shutdown()

    def _run(self, job: Job) -> list[ShardResult]:
        ray = self._ray
        cpus = int(ray.cluster_resources().get("CPU", 1))
        threads = max(1, min(self._num_threads, cpus))
        task = ray.remote(num_cpus=threads, max_retries=_MAX_RETRIES)(_store_shard)
        source = ray.put(job.source)
        target = _Target(job.options, job.destination.url, job.destination.options, threads)
        at_once = max(1, cpus // threads) * _TASKS_PER_CPU
        waiting = list(reversed(job.shards))
        running: dict[Any, ShardPlan] = {}
        results: list[ShardResult] = []
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    plan = waiting.pop()
                    running[task.remote(source, target, plan)] = plan
                (done, *_), _ = ray.wait(list(running))
                plan = running.pop(done)
                result, counts = self._result_of(done)
                _count(job, plan, result)
                for name, value in counts.items():
                    job.destination.counters.add(name, value)
                results.append(result)
        finally:
            for reference in running:
                ray.cancel(reference, force=True)
        return results

    def _result_of(self, reference: Any) -> _Done:
        """Return the result of a task; its error is the one that it raised, not Ray's."""
        try:
            result: _Done = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from error
        return result


def _import_ray() -> Any:
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise ConfigError("engine 'ray' needs Ray: pip install 'streamloader[ray]'") from error
    return ray


def _count(job: Job, plan: ShardPlan, result: ShardResult) -> None:
    sizes = job.source.listing.splits[plan.split].sizes
    job.tally.add(
        samples=len(plan.order),
        bytes_seen=int(sizes[plan.order].sum()),
        bytes_in=result.bytes_in,
        rejects=result.rejects,
    )


def _store_shard(source: Source, target: _Target, plan: ShardPlan) -> _Done:
    """Store one shard; runs in a worker of the cluster."""
    with (
        source.reading() as read,
        open_destination(target.url, target.storage_options) as destination,
        conversion_threads(target.num_threads) as threads,
    ):

        async def begin() -> None:
            """The driver has begun the journal."""

        def count(_run: Run) -> None:
            """The driver counts whole shards."""

        async def store() -> ShardResult:
            pipeline = Pipeline(
                destination.store,
                source.listing,
                read,
                target.options,
                threads,
                begin=begin,
                count=count,
            )
            try:
                result = await pipeline.store_shard(plan)
                await write_entry(destination.store, result)
            finally:
                pipeline.abort()
            return result

        return destination.loop.run(store()), destination.counters.counts()

"""The contract of an engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from storage_backends import Store
from streamloader.convert.journal import Journal
from streamloader.convert.pipeline import ShardResult, StoringOptions
from streamloader.convert.plan import ShardPlan
from streamloader.convert.sources import Source
from streamloader.convert.tally import Tally
from streamloader.fetch import LoopThread


@dataclass(frozen=True, slots=True)
class Job:
    """What there is to do.

    Args:
        source: whose samples are stored.
        shards: those that are still to be stored.
        options: how samples become records.
        url: destination.
        storage_options: options of ``open_store`` for it.
        store: the destination, entered in ``loop``.
        loop: where ``store`` and ``journal`` are used.
        journal: where shards that are complete are noted.
        tally: counts samples and rejects, and may end the work.
    """

    source: Source
    shards: Sequence[ShardPlan]
    options: StoringOptions
    url: str
    storage_options: Mapping[str, Any]
    store: Store
    loop: LoopThread
    journal: Journal
    tally: Tally

    def with_shards(self, shards: Sequence[ShardPlan]) -> Self:
        """The same job for other shards."""
        return replace(self, shards=shards)


class Engine(ABC):
    """Stores shards; which they are, and what is in them, is decided already."""

    @abstractmethod
    def run(self, job: Job) -> list[ShardResult]:
        """Store all shards of a job and note each, and return them in any order.

        The first failure ends the work and is raised as it is.
        """

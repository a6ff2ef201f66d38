"""The contract of an engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from streamloader.convert.destination import Destination
from streamloader.convert.journal import Journal
from streamloader.convert.pipeline import ShardResult
from streamloader.convert.plan import ShardPlan
from streamloader.convert.runs import StoringOptions
from streamloader.convert.sources import Source
from streamloader.convert.tally import Tally


@dataclass(frozen=True, slots=True)
class Job:
    """What there is to do.

    Args:
        source: whose samples are stored.
        shards: those that are still to be stored.
        options: how samples become records.
        destination: where they are stored.
        journal: where shards that are complete are noted; of the destination.
        tally: counts samples and rejects, and may end the work.
    """

    source: Source
    shards: Sequence[ShardPlan]
    options: StoringOptions
    destination: Destination
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

"""What a conversion finds at its destination, and whether it may go on there."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from storage_backends import Store
from streamloader.convert.journal import PLAN_NAME, Journal, StoredPlan, read_plan
from streamloader.convert.plan import Plan
from streamloader.convert.publish import holds_a_data_set, published_names
from streamloader.convert.removal import remove_data_set
from streamloader.dts import POINTER_NAME
from streamloader.errors import ConfigError
from streamloader.fetch import read_manifest


class Arrival(enum.Enum):
    """How a conversion goes on."""

    BEGIN = "nothing is there yet"
    GO_ON = "an unfinished run of the same conversion is there"
    DONE = "the same conversion is published there"


@dataclass(frozen=True, slots=True)
class Found:
    """What is at a destination.

    Args:
        published: manifests and pointer; empty where no data set is.
        plan: of an unfinished conversion; None where there is none.
    """

    published: tuple[str, ...]
    plan: StoredPlan | None


async def look(store: Store, *, resume: bool, overwrite: bool) -> Found:
    """Look what is at a destination, before anything is read of the source.

    Raises:
        ConfigError: it holds a data set, and nothing allows for that.
        StorageError: there is no such place, or no way in.
    """
    published = await published_names(store)
    plan = await read_plan(store)
    if published and plan is None and not (resume or overwrite):
        raise holds_a_data_set(store, published[0])
    return Found(tuple(published), plan)


async def arrive(
    store: Store, found: Found, plan: Plan, journal: Journal, *, overwrite: bool
) -> Arrival:
    """Decide how to go on, and with ``overwrite`` make room for what cannot.

    Raises:
        ConfigError: what is there is of another conversion.
    """
    if found.plan is not None and journal.is_of(found.plan):
        done = POINTER_NAME in found.published
        return Arrival.DONE if done else Arrival.GO_ON
    if overwrite:
        await remove_data_set(store)
        return Arrival.BEGIN
    if found.plan is not None:
        raise ConfigError(
            f"{store.url} holds an unfinished conversion ({PLAN_NAME}) of another source or with"
            " other options; finish that one, replace it with --overwrite, or remove it with"
            " `streamloader clean`"
        )
    if not found.published:
        return Arrival.BEGIN
    if POINTER_NAME in found.published and await _is_published(store, plan):
        return Arrival.DONE
    raise ConfigError(
        f"{store.url} holds a data set ({found.published[0]}) of another source or other options,"
        " which cannot be gone on with; replace it with --overwrite or choose another destination"
    )


async def _is_published(store: Store, plan: Plan) -> bool:
    """Tell whether the data set that is there is what the plan would make.

    Shards without one sound sample are planned and not there.
    """
    manifest = await read_manifest(store)
    planned = {(shard.name, shard.uuid) for shard in plan.shards}
    stored = {(entry.name, entry.uuid) for entry in manifest.shards}
    return stored <= planned and manifest.block_samples == plan.block_samples

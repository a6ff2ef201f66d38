"""Opens what a loader reads: its data sets, the choice of their samples, and their caches."""

from __future__ import annotations

from contextlib import AsyncExitStack

from storage_backends import open_store, options_of
from streamloader._choice import Choice, choose
from streamloader._mixing import check_alike, choose_mixture
from streamloader._settings import Settings
from streamloader.errors import ConfigError
from streamloader.fetch import (
    BlockCache,
    Catalog,
    Reading,
    Sources,
    all_or_cancel,
    limit_tails,
)
from streamloader.monitor import Counters
from streamloader.order import MixedOrder

_TAIL_SHARE = 4


async def open_sources(settings: Settings, counters: Counters, opened: AsyncExitStack) -> Sources:
    """Opens the data sets, side by side; ``opened`` closes their stores.

    Raises:
        ConfigError: no data set there, no sample in it, or data sets that do not mix.
        StorageError: a storage refused or failed.
    """
    stores = []
    for source in settings.sources:
        options = {**settings.storage_options, **source.storage_options}
        if len(settings.sources) > 1:
            # The options of a mixture are for those of its stores that know them.
            options = options_of(source.url, options)
        store = open_store(source.url, counters=counters, **options)
        stores.append(await opened.enter_async_context(store))
    catalogs = await all_or_cancel(
        [
            Catalog.open(store, source.split)
            for store, source in zip(stores, settings.sources, strict=True)
        ]
    )
    for catalog in catalogs:
        if not catalog.num_samples:
            raise ConfigError(f"{catalog.url} holds no sample: nothing to load")
    check_alike(catalogs)
    limit_tails(catalogs, settings.memory_limit_bytes // _TAIL_SHARE)
    return Sources(catalogs)


async def choose_samples(sources: Sources, settings: Settings) -> Choice:
    """Which samples the epochs draw.

    Raises:
        ConfigError: a choice that does not fit the data sets.
    """
    if len(sources.catalogs) > 1:
        return choose_mixture(
            sources,
            settings.sources,
            seed=settings.seed,
            shuffle=settings.shuffle,
            epoch_size=settings.epoch_size,
        )
    return await choose(
        sources.catalogs[0],
        seed=settings.seed,
        shuffle=settings.shuffle,
        subset=settings.subset,
        weights=settings.sampler_weights,
        epoch_size=settings.epoch_size,
    )


async def open_caches(
    sources: Sources, settings: Settings, counters: Counters, opened: AsyncExitStack
) -> list[BlockCache]:
    """A cache for each data set, if there is a folder for them; ``opened`` closes them."""
    if settings.cache is None:
        return []
    fingerprints = [catalog.fingerprint for catalog in sources.catalogs]
    return [
        await opened.enter_async_context(
            BlockCache(settings.cache, own, counters, beside=fingerprints)
        )
        for own in fingerprints
    ]


async def readings(
    opened: Sources, choice: Choice, *, batch_size: int, world_size: int
) -> list[Reading]:
    """What of each data set must be in memory at once, for the division of memory."""
    order = choice.order(0)
    if not isinstance(order, MixedOrder):
        catalog, passes = opened.catalogs[0], 1
        if choice.epoch_size is not None and choice.weights is None:
            passes = 2 + batch_size * world_size // choice.spec.num_samples
        expansion = await catalog.expansion()
        return [Reading(catalog, order.spec, batch_size, expansion, passes)]
    found = []
    for catalog, spec, drawn in zip(
        opened.catalogs, order.mixture.specs, order.drawn.tolist(), strict=True
    ):
        rows = batch_size * drawn / order.spec.num_samples
        passes = 2 + int(rows * world_size) // spec.num_samples
        found.append(Reading(catalog, spec, rows, await catalog.expansion(), passes))
    return found

"""The threads, the memory and the opened data set of one loader, shared by its epochs."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from storage_backends import Store, open_store
from streamloader._choice import choose
from streamloader._fields import BatchFields
from streamloader._packing import check_packed
from streamloader._settings import Settings
from streamloader._world import World
from streamloader.decode import Decoder, WorkerPool, open_decoder
from streamloader.errors import ConfigError
from streamloader.fetch import (
    Arena,
    Catalog,
    LoopThread,
    Prefetcher,
    divide_memory,
)
from streamloader.monitor import Counters
from streamloader.topology import allowed_cpus
from streamloader.transfer import SlotLayout, SlotRing

if TYPE_CHECKING:
    from streamloader._delivery import Delivery
    from streamloader._epoch import EpochRun

_CONSUMER_SLOTS = 2


class Engine:
    """Everything that lives as long as the loader and must be closed.

    Args:
        settings: checked arguments.
        world: ranks, for the share of workers and blocks of this process.
        delivery: says how slots are made, and is told what is in them.

    Raises:
        ConfigError: no data set there, or arguments that do not fit it.
        StorageError: the storage refused or failed.
    """

    def __init__(self, settings: Settings, world: World, delivery: Delivery) -> None:
        self.settings = settings
        self.counters = Counters()
        self.num_workers = _own_workers(settings.num_workers, world)
        self._lock = threading.Lock()
        self._closed = False
        self.loop_thread = LoopThread("fetch").start()
        self.runs: set[EpochRun] = set()
        self._store: Store | None = None
        self._prefetcher: Prefetcher | None = None
        self._ring: SlotRing | None = None
        self.pool = WorkerPool(self.num_workers, counters=self.counters)
        try:
            self.loop_thread.run(self._open(world, delivery))
            self.pool.start()
        except BaseException:
            self.close()
            raise

    async def _open(self, world: World, delivery: Delivery) -> None:
        settings = self.settings
        self.slot_freed = asyncio.Event()
        store = open_store(settings.url, counters=self.counters, **settings.storage_options)
        self._store = await store.__aenter__()
        limit = settings.memory_limit_bytes
        catalog = await Catalog.open(store, settings.split, tail_limit_bytes=limit // 4)
        if not catalog.num_samples:
            raise ConfigError(f"{catalog.url} holds no sample: nothing to load")
        self.catalog = catalog
        schema = catalog.manifest.schema
        self.fields = BatchFields.choose(schema, settings.transform, delivery.slot_pixels)
        self.packed = check_packed(settings.pack, self.fields.variable)
        self.decoder: Decoder | None = None
        if settings.transform is not None:
            self.decoder = open_decoder(
                settings.transform,
                delivery.slot_pixels,
                max_pixels=settings.max_pixels,
                counters=self.counters,
            )
        self.choice = await choose(
            catalog,
            seed=settings.seed,
            shuffle=settings.shuffle,
            subset=settings.subset,
            weights=settings.sampler_weights,
            epoch_size=settings.epoch_size,
        )
        layout = SlotLayout.build(self.fields.slot, settings.batch_size)
        self.memory = divide_memory(
            catalog,
            self.choice.order(0).spec,
            limit,
            batch_size=settings.batch_size,
            world_size=world.world_size,
            slot_bytes=layout.stride_bytes,
            slots=settings.prefetch_batches + _CONSUMER_SLOTS,
            expansion=await catalog.expansion(),
        )
        self.arena = Arena(self.memory.block_bytes)
        self._prefetcher = Prefetcher(
            catalog, self.arena, counters=self.counters, selection=self.choice.selection
        )
        self._ring = SlotRing(
            layout,
            slots=self.memory.slots,
            max_slots=self.memory.max_slots,
            memory_factory=delivery.memory_factory,
            on_free=_waker(self),
        )
        delivery.open(self.fields, layout)

    @property
    def prefetcher(self) -> Prefetcher:
        assert self._prefetcher is not None
        return self._prefetcher

    @property
    def ring(self) -> SlotRing:
        assert self._ring is not None
        return self._ring

    def wake(self) -> None:
        """Lets a wait for a free slot look again; from any thread, also a finaliser."""
        try:
            self.loop_thread.loop.call_soon_threadsafe(self.slot_freed.set)
        except RuntimeError:  # the loop is closed: nobody waits any more
            return

    def memory_account(self) -> dict[str, Any]:
        """Bytes by room: what the limit gives each, and what is in use now."""
        ring = self.ring.stats()
        return {
            "plan": self.memory.to_dict(),
            "used": {
                "blocks": self.arena.used_bytes,
                "blocks_peak": self.arena.peak_bytes,
                "tails": self.catalog.tail_bytes_held,
                "slots": ring.nbytes,
            },
        }

    def close(self) -> None:
        """Ends every thread; may be called twice and from any thread but the engine's own."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        for run in tuple(self.runs):
            run.stop()
        self.pool.close()
        if self._store is not None:
            self.loop_thread.run(self._store.__aexit__(None, None, None))
        self.loop_thread.close()
        if self._prefetcher is not None:
            self._prefetcher.close()
        if self._ring is not None:
            self._ring.close()


def _waker(engine: Engine) -> Callable[[], None]:
    """``engine.wake`` without keeping the engine alive: slots may outlive it."""
    reference = weakref.ref(engine)

    def wake() -> None:
        alive = reference()
        if alive is not None:
            alive.wake()

    return wake


def _own_workers(num_workers: int | None, world: World) -> int:
    """This process's part of the node's workers, at least one."""
    total = num_workers if num_workers is not None else max(1, allowed_cpus() - 1)
    return max(1, -(-total // world.local_world_size))

"""The threads, the memory and the opened data set of one loader, shared by its epochs."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from storage_backends import Store, open_store
from streamloader._fields import BatchFields
from streamloader._settings import Settings
from streamloader._world import World
from streamloader.decode import Decoder, WorkerPool, open_decoder
from streamloader.errors import ConfigError
from streamloader.fetch import (
    Arena,
    Catalog,
    LoopThread,
    MemoryPlan,
    Prefetcher,
    open_block_bytes,
    plan_memory,
)
from streamloader.monitor import Counters
from streamloader.order import OrderSpec
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
        self.active_run: EpochRun | None = None
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
        schema = catalog.manifest.schemas[0]
        self.fields = BatchFields.choose(schema, settings.transform, delivery.slot_pixels)
        self.decoder: Decoder | None = None
        if settings.transform is not None:
            self.decoder = open_decoder(
                settings.transform,
                delivery.slot_pixels,
                max_pixels=settings.max_pixels,
                counters=self.counters,
            )
        self.spec = OrderSpec.choose(
            catalog.num_samples,
            catalog.blocks.block_samples,
            seed=settings.seed,
            shuffle=settings.shuffle,
        )
        layout = SlotLayout.build(self.fields.slot, settings.batch_size)
        self.memory = self._divide(layout, world)
        self.arena = Arena(self.memory.block_bytes)
        self._prefetcher = Prefetcher(catalog, self.arena, counters=self.counters)
        self._ring = SlotRing(
            layout,
            slots=self.memory.slots,
            max_slots=self.memory.max_slots,
            memory_factory=delivery.memory_factory,
            on_free=_waker(self),
        )
        delivery.open(self.fields, layout)

    def _divide(self, layout: SlotLayout, world: World) -> MemoryPlan:
        catalog, spec = self.catalog, self.spec
        row_bytes = catalog.row_layout().stride
        block_bytes = catalog.blocks.block_bytes
        needed = open_block_bytes(
            spec,
            block_bytes,
            batch_size=self.settings.batch_size,
            world_size=world.world_size,
            row_bytes=row_bytes,
        )
        everything = int(block_bytes.sum()) + spec.num_samples * row_bytes
        tails = int(np.sum(catalog.manifest.tail_bytes))
        return plan_memory(
            self.settings.memory_limit_bytes,
            slot_bytes=layout.stride_bytes,
            slots=self.settings.prefetch_batches + _CONSUMER_SLOTS,
            tail_bytes=tails,
            needed_block_bytes=needed,
            all_block_bytes=everything + everything // 8 + (4 << 20),
        )

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
        if self.active_run is not None:
            self.active_run.stop()
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

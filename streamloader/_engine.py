"""The threads, the memory and the opened data set of one loader, shared by its epochs."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import threading
import weakref
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from streamloader._decode_state import DecodeState
from streamloader._epoch import EpochRun
from streamloader._fields import BatchFields
from streamloader._opening import choose_samples, open_caches, open_sources, readings
from streamloader._own_process import OwnProcess
from streamloader._packing import check_packed
from streamloader._routing import room_for_picture
from streamloader._settings import Settings
from streamloader._world import World
from streamloader.decode import Decoder, WorkerPool, open_decoder
from streamloader.fetch import (
    Arena,
    LoopThread,
    Prefetcher,
    divide_among,
)
from streamloader.monitor import Counters, TimeSummary
from streamloader.order import LoaderState
from streamloader.topology import (
    Seats,
    bind_thread,
    format_cpu_list,
    plan_seats,
    read_machine,
    visible_cuda,
)
from streamloader.transfer import SlotRing

if TYPE_CHECKING:
    from streamloader._delivery import Delivery
    from streamloader._run import Run

_CONSUMER_SLOTS = 2
# A GPU waits when the thread that launches its kernels does: that thread comes first.
_NICENESS_BESIDE_A_GPU = 10

logger = logging.getLogger("streamloader.loader")


class Engine(OwnProcess):
    """Everything that lives as long as the loader and must be closed.

    Args:
        settings: checked arguments.
        world: ranks, for the share of workers and blocks of this process.
        delivery: says how slots are made, and is told what is in them.
        seats: of the workers, if they are known already.

    Raises:
        ConfigError: no data set there, or arguments that do not fit it.
        StorageError: the storage refused or failed.
    """

    def __init__(
        self, settings: Settings, world: World, delivery: Delivery, seats: Seats | None = None
    ) -> None:
        super().__init__()
        self.settings = settings
        self.counters = Counters()
        self.seats = seats or choose_seats(settings, world, delivery.gpu)
        self.num_workers = len(self.seats.workers)
        self._lock = threading.Lock()
        self._closed = False
        self._delivery = delivery
        self.loop_thread = LoopThread("fetch").start()
        self.runs: set[Run] = set()
        self._opened = AsyncExitStack()
        self._prefetcher: Prefetcher | None = None
        self._ring: SlotRing | None = None
        self.pool = WorkerPool(
            self.num_workers,
            counters=self.counters,
            cpus=self.seats.workers,
            niceness=0 if delivery.gpu is None else _NICENESS_BESIDE_A_GPU,
        )
        try:
            self.loop_thread.run(self._open(world, delivery))
            self.pool.start()
        except BaseException:
            self.close()
            raise

    def _bind_loop_thread(self) -> None:
        """Runs in the event loop's thread, whose executors start threads that inherit its CPUs."""
        refusal = bind_thread(self.seats.threads) if self.seats.threads else None
        if refusal is not None:
            logger.warning("the fetch thread runs on any CPU: %s", refusal)

    async def _open(self, world: World, delivery: Delivery) -> None:
        self._bind_loop_thread()
        self.slot_freed = asyncio.Event()
        await self._open_data(delivery)
        room_bytes = await self._divide_memory(world, delivery)
        self.arena = Arena(self.memory.block_bytes)
        self._prefetcher = Prefetcher(
            self.catalog,
            self.arena,
            counters=self.counters,
            selection=self.choice.selection,
            caches=await open_caches(self.catalog, self.settings, self.counters, self._opened),
        )
        self._ring = SlotRing(
            self.layout,
            slots=self.memory.slots,
            max_slots=self.memory.max_slots,
            memory_factory=partial(delivery.memory_factory, node=self.seats.node),
            on_free=_waker(self),
        )
        delivery.open(
            self.fields, self.layout, arena=self.arena, decoder=self.decoder, counters=self.counters
        )
        self.router = delivery.router(self.settings.gpu_decode_share, room_bytes, self.counters)
        self._decode_path = delivery.decode_path(self.decoder)

    async def _open_data(self, delivery: Delivery) -> None:
        """The data sets, which fields of them a batch has, and what decodes those."""
        settings = self.settings
        self.catalog = await open_sources(settings, self.counters, self._opened)
        self.fields = BatchFields.choose(
            self.catalog.schema, settings.transform, delivery.slot_pixels, mixed=settings.mixed
        )
        self.packed = check_packed(settings.pack, self.fields.variable)
        self.decoder: Decoder | None = None
        if settings.transform is not None:
            self.decoder = open_decoder(
                settings.transform,
                delivery.slot_pixels,
                settings.limits,
                counters=self.counters,
            )
        self.choice = await choose_samples(self.catalog, settings)

    async def _divide_memory(self, world: World, delivery: Delivery) -> int:
        """What slots look like and how much all parts get; the room of a carried picture."""
        settings = self.settings
        reads = await readings(
            self.catalog,
            self.choice,
            batch_size=settings.batch_size,
            world_size=world.world_size,
        )
        slots = settings.prefetch_batches + _CONSUMER_SLOTS
        room_bytes = room_for_picture(
            max(reading.mean_record_bytes for reading in reads),
            settings.batch_size,
            settings.memory_limit_bytes // 4 // slots,
        )
        self.layout = delivery.slot_layout(self.fields, settings.batch_size, room_bytes)
        self.memory = divide_among(
            reads,
            settings.memory_limit_bytes,
            world_size=world.world_size,
            slot_bytes=self.layout.stride_bytes,
            slots=slots,
        )
        return room_bytes

    @property
    def decode_state(self) -> DecodeState:
        """What decodes the pictures of the next run."""
        return DecodeState(self._decode_path, None if self.router is None else self.router.share)

    def continue_decoding(self, saved: DecodeState) -> bool:
        """Takes over the division that a saved run had, unless the user chose one.

        Returns:
            Whether that changed anything for the runs to come.
        """
        before = self.decode_state
        if self.settings.gpu_decode_share is None:
            self.share_pictures(saved.gpu_share)
        saved.warn_if_other(self.decode_state)
        return self.decode_state != before

    def share_pictures(self, gpu_share: float | None) -> None:
        """The engines get this share of the pictures of the runs to come, if there are any."""
        if self.router is not None and gpu_share is not None:
            self.router = dataclasses.replace(self.router, share=gpu_share)

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

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the data set's manifest, or of those of a mixture."""
        return self.catalog.fingerprint

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes."""
        return self.catalog.classes

    def new_run(
        self, cursor: LoaderState, world: World, delivery: Delivery, skipped_digest: int
    ) -> Run:
        """A run from the cursor on; to be started."""
        return EpochRun(
            self,
            cursor=cursor,
            rank=world.rank,
            world_size=world.world_size,
            delivery=delivery,
            skipped_digest=skipped_digest,
        )

    def account(self) -> dict[str, Any]:
        """Counts, times in milliseconds, memory, and where workers and slots are."""
        return {
            "counters": self.counters.counts(),
            "times_ms": {name: time.to_dict() for name, time in self.counters.times().items()},
            "memory_bytes": self.memory_account(),
            "seats": self.seats_account(),
            "staging": self.staging_account(),
        }

    def stage_time(self, stage: str) -> TimeSummary:
        """Times of one stage; all zero if it has not run."""
        return self.counters.time(stage)

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

    def staging_account(self) -> dict[str, Any]:
        """The slots' memory: its budget, how much is registered for DMA, and where it lies."""
        ring = self.ring.stats()
        return {
            "budget_bytes": ring.max_nbytes,
            "bytes": ring.nbytes,
            "pinned_bytes": ring.pinned_nbytes,
            "pin_refusal": ring.pin_refusal,
            "node": ring.node,
            "pages_by_node": dict(ring.pages_by_node),
        }

    def seats_account(self) -> dict[str, Any]:
        """Where the workers run: a list of CPUs each, "" for any."""
        seats = self.seats
        return {
            "pin_workers": self.settings.pin_workers,
            "node": None if seats.node is None else seats.node.index,
            "workers": [format_cpu_list(cpus) for cpus in seats.workers],
            "unbound_because": self.pool.bind_refusal or seats.unbound_because or None,
        }

    def close(self) -> None:
        """Ends every thread; may be called twice and from any thread but the engine's own.

        In a forked process it does nothing: the threads and what they hold are the parent's.
        """
        if self.is_forked:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
        for run in tuple(self.runs):
            run.stop()
        self.pool.close()
        self.loop_thread.run(self._opened.aclose())
        self.loop_thread.close()
        if self._prefetcher is not None:
            self._prefetcher.close()
        if self._ring is not None:
            self._ring.close()
        self._delivery.close()


def _waker(engine: Engine) -> Callable[[], None]:
    """``engine.wake`` without keeping the engine alive: slots may outlive it."""
    reference = weakref.ref(engine)

    def wake() -> None:
        alive = reference()
        if alive is not None:
            alive.wake()

    return wake


def choose_seats(settings: Settings, world: World, gpu: int | None) -> Seats:
    """This process's part of the node's workers, and where they run."""
    machine = read_machine(cuda=None if gpu is None else visible_cuda())
    seats = plan_seats(
        machine,
        local_rank=world.local_rank,
        local_world_size=world.local_world_size,
        gpu=gpu,
        num_workers=settings.num_workers,
        pin=settings.pin_workers,
    )
    if seats.unbound_because:
        logger.warning("workers and slots stay on any NUMA node: %s", seats.unbound_because)
    logger.info(
        "%d workers, %d of them bound; CPUs allowed: %s",
        len(seats.workers),
        seats.bound_workers,
        format_cpu_list(machine.allowed),
    )
    return seats

"""The loader: wires the rooms together and gives batches to a training loop."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, Self, cast

from streamloader._choice import SamplerWeights, Subset
from streamloader._closing import close_at_exit, outside_own_threads
from streamloader._continuing import choose_state, plan_of
from streamloader._decode_state import DecodeState
from streamloader._delivery import DecodeDevice, open_delivery
from streamloader._engine import Engine
from streamloader._feed_choice import choose_feed
from streamloader._feed_engine import FeedEngine
from streamloader._iterator import EpochIterator
from streamloader._run import Run
from streamloader._settings import Feed, OnError, Settings, choose_last_batch
from streamloader._user_code import BatchFunction, CollateFunction, SampleFunction, UserCode
from streamloader._world import World, detect_world
from streamloader.batch import Batch
from streamloader.decode import MAX_PIXELS, MAX_SCANS, PictureLimits, PixelFormat, Transform
from streamloader.errors import ConfigError
from streamloader.fetch import CacheOptions
from streamloader.monitor import TimeSummary
from streamloader.order import ArrivalPlan, LoaderState, RankPlan
from streamloader.order.plan import LastBatch
from streamloader.sizes import parse_size
from streamloader.source import DataSets, is_mixture, list_sources
from streamloader.topology import PinWorkers


class StreamLoader:
    """Batches of a DTS1 data set, or of several mixed, in an order that seed and epoch fix.

    Iterating gives :class:`~streamloader.Batch` mappings. A new ``iter`` after a full pass, or
    after a ``break``, is the next epoch from its start; one after an iterator that gave nothing
    yet begins where that one would have begun.

    Args:
        url: ``s3://bucket/prefix``, ``file://`` or a path of a data set made by
            ``streamloader convert`` or ``DatasetWriter``. Several are mixed:
            ``{"s3://a": 0.7, "s3://b": 0.3}`` draws by weight, ``["s3://a", "s3://b"]`` as often
            as each has samples, a list of :class:`~streamloader.Source` with a split and storage
            options for each. Batches then have ``source``, the number of a sample's data set.
        batch_size: rows per batch on this rank.
        transform: a spec such as ``RandomResizedCrop(224, flip=0.5)``; None gives every field
            as stored, pictures as bytes.
        shuffle: True or ``"window"`` (samples of a few blocks of 256 lanes are mixed),
            ``"global"`` (any sample anywhere, one read each), False (stored order).
        seed: of the shuffle and of random transforms.
        subset: a share such as 0.1 (the first samples as stored), sample numbers, or keys.
        sampler_weights: samples are drawn with repeats: a weight for each sample of the data
            set, ``{class name: weight}``, or ``"balanced"`` for as many of each label. Every
            sample is then read alone.
        epoch_size: samples of an epoch, over all ranks; epochs follow one another through full
            passes over the data, so each sample still comes once per pass. By default one pass,
            and for a mixture as many samples as its data sets have together.
        split: for data sets with splits, such as ``"val"``.
        device: ``"cpu"``, ``"cuda"``, ``"cuda:1"``; by default the GPU of the local rank if
            there is one, else the CPU.
        devices: several devices in this process, such as ``["cuda:0", "cuda:1"]``: each step is
            then a tuple of batches, one a device in this order, each on a rank of its own.
        decode_device: where JPEGs are decoded for a CUDA device: ``"cuda"`` on the GPU's JPEG
            engines (``pip install 'streamloader[gpu]'``), ``"cpu"``, or ``"auto"``: the engines
            where they can be used. What they cannot decode, the CPU does.
        gpu_decode_share: share of those JPEGs that the engines decode, from 0 to 1; the decode
            threads do the rest. By default all of them, 1.0, or what a loaded state says.
        static_buffers: every batch at the same addresses of the CUDA device, for CUDA graphs: it
            is then valid until the next ``next``, which overwrites it.
        feed: ``"thread"`` reads and decodes in threads of this process, ``"process"`` in a child
            process over shared memory: a training loop then shares no interpreter lock with it.
            ``map``, ``collate`` and ``batch_map`` run there and must stand in a module.
            ``"auto"`` is a process for a CUDA device where that can be, else threads.
        output: ``"uint8"``, ``"float16"``, ``"bfloat16"`` or ``"float32"``; a float type is
            (x / 255 - mean) / std.
        mean, std: three numbers on the 0-1 scale, for float outputs.
        last_batch: ``"pad"`` (default; repeats with ``valid`` False, so that all ranks and all
            batches are equal), ``"drop"`` or ``"partial"``; ``drop_last=True`` means "drop".
        num_workers: decode threads of the whole node, shared by its ranks; by default each
            rank's part of the allowed CPUs, less one.
        pin_workers: ``"node"`` keeps the threads on the NUMA node of the rank's GPU, where there
            are several nodes; ``"core"`` gives each decode thread one CPU; ``"off"`` binds none.
        prefetch_batches: batches decoded ahead.
        memory_limit: bytes, or ``"1gib"``, for blocks, shard tails and slots together.
        map, batch_map, collate: your own Python, per sample, per batch, and to make a batch of
            samples; run in the decode threads, holding the GIL. They get numpy arrays and
            return mappings.
        pack: variable fields that come as one flat tensor and ``<name>.offsets`` (int64
            [B + 1]) instead of a list.
        deterministic: True: seed and epoch alone decide what each batch holds. False: a batch is
            made of the next samples that have come, so that a stalled read delays no batch which
            others can fill; each sample still comes once per epoch, with the same crop, and each
            rank saves a state of its own (see :meth:`load_state_dict`).
        on_error: ``"raise"`` or ``"skip"``, for samples whose content is damaged.
        max_bad_fraction: with ``"skip"``, the share of this rank's samples of an epoch above
            which the run stops.
        stall_timeout_s: seconds without a batch after which waiting raises TimeoutError.
        cache_dir: folder of this machine that keeps the blocks for later epochs and runs;
            processes and data sets may share one.
        cache_limit: bytes, or ``"200gb"``, of that folder; by default the disk's.
        storage_options: ``endpoint_url``, ``region``, ``profile``, ``anonymous``, ….
        download_retry, download_timeout: attempts, and seconds for a whole read.
        max_pixels, max_scans: pictures that claim more pixels, and JPEGs of more scans, each a
            pass over the picture, are damaged samples, before memory for their pixels is taken.
        rank, world_size, local_rank, local_world_size: by default from torch.distributed if
            it is initialised, else from the environment of the launcher.

    Raises:
        ConfigError: arguments that cannot work, no data set at ``url``, or several that do not mix.
        StorageError: the storage refused or failed.
        ShardError: the data set is damaged.
    """

    def __new__(cls, *_: Any, devices: Sequence[Any] | None = None, **__: Any) -> Self:
        if devices is None or cls is not StreamLoader:
            return super().__new__(cls)
        from streamloader._device_group import DeviceGroup

        return cast(Self, super().__new__(DeviceGroup))

    def __init__(
        self,
        url: DataSets,
        *,
        batch_size: int,
        transform: Transform | None = None,
        shuffle: bool | str = False,
        seed: int = 0,
        subset: Subset | None = None,
        sampler_weights: SamplerWeights | None = None,
        epoch_size: int | None = None,
        split: str | None = None,
        device: Any = None,
        devices: Sequence[Any] | None = None,
        decode_device: DecodeDevice = "auto",
        gpu_decode_share: float | None = None,
        static_buffers: bool = False,
        feed: Feed = "auto",
        output: str = "uint8",
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        last_batch: LastBatch | None = None,
        drop_last: bool | None = None,
        num_workers: int | None = None,
        pin_workers: PinWorkers = "node",
        prefetch_batches: int = 3,
        memory_limit: int | str = "1gib",
        map: SampleFunction | None = None,  # noqa: A002 - the name that users know
        batch_map: BatchFunction | None = None,
        collate: CollateFunction | None = None,
        pack: Sequence[str] = (),
        deterministic: bool = True,
        on_error: OnError = "raise",
        max_bad_fraction: float = 0.01,
        stall_timeout_s: float = 120.0,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_limit: int | str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        download_retry: int = 8,
        download_timeout: float = 60.0,
        max_pixels: int = MAX_PIXELS,
        max_scans: int = MAX_SCANS,
        rank: int | None = None,
        world_size: int | None = None,
        local_rank: int | None = None,
        local_world_size: int | None = None,
    ) -> None:
        if devices is not None:
            raise ConfigError("a subclass of StreamLoader has one device: give device=")
        settings = Settings(
            sources=list_sources(url, split),
            mixed=is_mixture(url),
            batch_size=batch_size,
            transform=transform,
            shuffle=shuffle,
            seed=seed,
            subset=subset,
            sampler_weights=sampler_weights,
            epoch_size=epoch_size,
            last_batch=choose_last_batch(last_batch, drop_last),
            num_workers=num_workers,
            pin_workers=pin_workers,
            prefetch_batches=prefetch_batches,
            memory_limit_bytes=parse_size(memory_limit, "memory_limit"),
            limits=PictureLimits(max_pixels, max_scans),
            user_code=UserCode(map, collate, batch_map),
            pack=(pack,) if isinstance(pack, str) else tuple(pack),
            pixels=PixelFormat(output, mean, std),  # type: ignore[arg-type]  # it validates
            deterministic=deterministic,
            on_error=on_error,
            max_bad_fraction=max_bad_fraction,
            stall_timeout_s=stall_timeout_s,
            gpu_decode_share=gpu_decode_share,
            feed=feed,
            cache=CacheOptions.of(cache_dir, cache_limit),
            storage_options={
                "download_retry": download_retry,
                "download_timeout": download_timeout,
                **(storage_options or {}),
            },
        )
        self._set_world(rank, world_size, local_rank, local_world_size)
        self._delivery = open_delivery(
            device,
            self._world.local_rank,
            settings.pixels,
            transform=transform,
            on_host=bool(settings.user_code),
            decode_device=decode_device,
            static_buffers=static_buffers,
        )
        settings = choose_feed(settings, self._delivery.gpu)
        engine_class = FeedEngine if settings.feed == "process" else Engine
        self._engine: Engine | FeedEngine = engine_class(settings, self._world, self._delivery)
        close_at_exit.watch(self._engine)
        self._finalizer = weakref.finalize(self, outside_own_threads, self._engine.close)
        self._finalizer.atexit = False  # close_at_exit runs before the threads are joined
        self._lock = threading.RLock()
        self._iterator: weakref.ref[EpochIterator] | None = None
        self._following: Run | None = None
        self._cursor = self._blank_state()
        self._fresh = True
        self._closed = False

    def _set_world(
        self,
        rank: int | None,
        world_size: int | None,
        local_rank: int | None,
        local_world_size: int | None,
    ) -> None:
        self._world_arguments = {
            "rank": rank,
            "world_size": world_size,
            "local_rank": local_rank,
            "local_world_size": local_world_size,
        }
        self._world = detect_world(**self._world_arguments, environ=None)

    @property
    def classes(self) -> list[str]:
        """Names of the classes; the label of a sample is a place in this list."""
        return list(self._engine.classes)

    @property
    def num_samples(self) -> int:
        """Samples of one epoch, over all ranks."""
        return self._engine.choice.num_samples

    def __len__(self) -> int:
        """Batches of a full epoch on this rank."""
        return self._plan(self._blank_state()).num_batches

    def __iter__(self) -> Iterator[Batch]:
        return self._new_iterator()

    def _new_iterator(self) -> EpochIterator:
        with self._lock:
            self._check_open()
            self._check_world()
            self._end_iterator()
            if not self._fresh or (self._cursor.position and not self._left_over()):
                self._cursor = self._blank_state(self._cursor.epoch + 1)
            self._fresh = True
            iterator = EpochIterator(self, self._take_following() or self._start_run(self._cursor))
            self._iterator = weakref.ref(iterator)
            return iterator

    def __aiter__(self) -> AsyncIterator[Batch]:
        """As ``iter``, for ``async for``; waiting never blocks the caller's event loop."""
        return self._new_iterator()

    def _start_run(self, cursor: LoaderState) -> Run:
        digest = _parse_digest(cursor.skipped_digest)
        run = self._engine.new_run(cursor, self._world, self._delivery, digest)
        run.start()
        return run

    def _start_following(self, run: Run) -> None:
        """Starts to fetch the next epoch; all that ``run`` still needs has room in memory."""
        with self._lock:
            if self._following is None and not self._closed and run in self._engine.runs:
                self._following = self._start_run(self._blank_state(run.epoch + 1))

    def _take_following(self) -> Run | None:
        """The run that was begun early, if it is what the cursor asks for; ends any other."""
        run, self._following = self._following, None
        if run is None or self._cursor == self._blank_state(run.epoch):
            return run
        run.stop()
        return None

    def _end_iterator(self) -> None:
        iterator = self._iterator() if self._iterator is not None else None
        if iterator is not None:
            iterator.end()
        self._iterator = None
        for run in tuple(self._engine.runs):
            if run is not self._following:
                run.stop()  # its iterator is gone, and another thread is still ending it

    def set_epoch(self, epoch: int) -> None:
        """The next ``iter`` is this epoch; the loaded epoch keeps its cursor."""
        with self._lock:
            if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
                raise ConfigError(f"epoch must be a whole number from 0 up, got {epoch!r}")
            if not (self._fresh and epoch == self._cursor.epoch):
                self._end_iterator()
                self._cursor = self._blank_state(epoch)
            self._fresh = True

    def state_dict(self) -> dict[str, Any]:
        """Where the consumer stands: JSON-able and small.

        The same on every rank, but for counts of skipped samples; with ``deterministic=False`` in
        mid-epoch it is this rank's own.
        """
        with self._lock:
            return self._stamped(self._cursor)

    def _stamped(self, state: LoaderState) -> dict[str, Any]:
        """The state, and what decodes the pictures."""
        return state.to_dict() | self._engine.decode_state.to_dict()

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Continues the global sequence of ``state`` at the next ``iter``.

        Ranks, batch size and workers may differ from those that saved it. What several ranks saved
        with ``deterministic=False`` in mid-epoch goes on rank by rank, each with its own state and
        on as many ranks, or from a list of all ranks' states on any number of ranks, also with
        ``deterministic=True``.

        Args:
            state: of ``state_dict``, or a list with that of every rank.

        Raises:
            StateMismatch: the state belongs to another data set, seed, rule version or rank; the
                message says what differs.
            ConfigError: it is not a state of a loader.
        """
        with self._lock:
            loaded = choose_state(state, self._blank_state(), self._engine.choice, self._world)
            _parse_digest(loaded.skipped_digest)
            decoding = DecodeState.parse(state if isinstance(state, Mapping) else state[0])
            self._end_iterator()
            self._cursor = loaded
            if self._engine.continue_decoding(decoding) and self._following is not None:
                self._following.stop()  # it divides pictures as before
                self._following = None
            self._fresh = True

    def stats(self) -> dict[str, Any]:
        """Counters, times per stage in milliseconds, and bytes by room."""
        return {
            **self._engine.account(),
            "feed": self._engine.settings.feed,
            "workers": self._engine.num_workers,
            "decoder": self._engine.decode_state.path,
            **self._delivery.stats(),
        }

    def stage_time(self, stage: str) -> TimeSummary:
        """Times of one stage of ``stats()["times_ms"]``; all zero if it has not run."""
        return self._engine.stage_time(stage)

    def close(self) -> None:
        """Ends every thread of the loader; batches that are held stay valid."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._end_iterator()
        self._finalizer()

    def __enter__(self) -> StreamLoader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _plan(self, cursor: LoaderState) -> RankPlan | ArrivalPlan:
        engine, world = self._engine, self._world
        return plan_of(
            engine.choice, engine.settings, cursor, rank=world.rank, world_size=world.world_size
        )

    def _left_over(self) -> int:
        return self._plan(self._cursor).num_batches

    def _blank_state(self, epoch: int = 0) -> LoaderState:
        engine = self._engine
        choice = engine.choice
        return LoaderState(
            fingerprint=engine.fingerprint,
            epoch=epoch,
            position=0,
            seed=choice.spec.seed,
            lanes=choice.spec.lanes,
            window=choice.spec.window,
            shuffle=choice.spec.shuffle,
            subset=choice.subset,
            epoch_size=choice.epoch_size,
            last_batch=engine.settings.last_batch,
            split=None if choice.mixed else engine.settings.sources[0].split,
            mixture=choice.mixed,
            mode="deterministic" if engine.settings.deterministic else "arrival",
        )

    def _check_open(self) -> None:
        if self._closed:
            raise ConfigError("this loader is closed: make a new one")
        self._engine.refuse_fork()

    def _check_world(self) -> None:
        now = detect_world(**self._world_arguments, environ=None)
        if (now.rank, now.world_size) != (self._world.rank, self._world.world_size):
            raise ConfigError(
                f"rank and world size were {_of(self._world)} when the loader was made and are"
                f" {_of(now)} now: make it after torch.distributed is initialised, or pass"
                " rank= and world_size="
            )


def _parse_digest(digest: str) -> int:
    try:
        return int(digest or "0", 16)
    except ValueError:
        raise ConfigError(f"state field 'skipped_digest' must be hex, got {digest!r}") from None


def _of(world: World) -> str:
    return f"{world.rank} of {world.world_size}"

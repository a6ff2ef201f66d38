"""Random access to a data set: any sample by its number, and the fixed fields as arrays."""

from __future__ import annotations

import operator
import threading
import weakref
from collections.abc import Coroutine, Iterator, Mapping
from typing import Any, TypeVar

import numpy.typing as npt

from storage_backends import Store, open_store
from streamloader._closing import close_at_exit, outside_own_threads
from streamloader._own_process import OwnProcess
from streamloader.dts import Schema
from streamloader.fetch import Catalog, LoopThread
from streamloader.monitor import Counters

T = TypeVar("T")


class Dataset:
    """A data set opened by :func:`open_dataset`; ``ds[i]`` reads one sample, verified.

    Close it, or use it in a ``with`` statement: it owns a thread and connections. It may be the
    data set of a torch ``DataLoader``, whose worker processes, forked or started anew, each open
    it for themselves when they first read.
    """

    def __init__(self, url: str, split: str | None, storage_options: Mapping[str, Any]) -> None:
        self._source = (url, split, dict(storage_options))
        self._lock = threading.Lock()
        self._opened = self._open()

    def _open(self) -> _Reader:
        self.counters = Counters()
        reader = _Reader(*self._source, self.counters)
        close_at_exit.watch(reader)
        self._finalizer = weakref.finalize(self, outside_own_threads, reader.close)
        self._finalizer.atexit = False  # close_at_exit runs before the threads are joined
        return reader

    @property
    def _reader(self) -> _Reader:
        """This process's reader: a fork has none of the threads of its parent's."""
        if self._opened.is_left_behind:
            with self._lock:
                if self._opened.is_left_behind:
                    self._opened = self._open()
        return self._opened

    def __reduce__(self) -> tuple[Any, ...]:
        return Dataset, self._source

    @property
    def url(self) -> str:
        return self._reader.catalog.url

    @property
    def schema(self) -> Schema:
        """The fields of a sample."""
        return self._reader.catalog.manifest.schema

    @property
    def classes(self) -> list[str]:
        """Names of the classes; a label is a place in this list."""
        return list(self._reader.catalog.manifest.classes or ())

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the manifest, in hex."""
        return self._reader.catalog.fingerprint

    def __len__(self) -> int:
        return self._reader.catalog.num_samples

    def __getitem__(self, sample: int) -> dict[str, Any]:
        """All fields of one sample; pictures and bytes as ``bytes``, as they are stored.

        Raises:
            IndexError: no such sample.
            SampleError: its content does not match its checksum.
        """
        number = operator.index(sample)
        if number < 0:
            number += len(self)
        if not 0 <= number < len(self):
            raise IndexError(f"sample {sample} of {len(self)} in {self.url}")
        return self._reader.run(self._reader.read(number))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in range(len(self)):
            yield self[number]

    def key(self, sample: int) -> str | None:
        """The key that a sample was written with, None if the data set has no keys."""
        return self._reader.run(self._reader.key(operator.index(sample)))

    def column(self, name: str) -> npt.NDArray[Any]:
        """A fixed field of every sample, [N, *shape]; no payload is read for it."""
        return self._reader.run(self._reader.catalog.column(name))

    @property
    def labels(self) -> npt.NDArray[Any]:
        """The column ``label`` of every sample, int64 [N]."""
        return self.column("label")

    def close(self) -> None:
        self._finalizer()

    def __enter__(self) -> Dataset:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class _Reader(OwnProcess):
    """The loop thread, the store and the catalog behind a :class:`Dataset`."""

    def __init__(
        self,
        url: str,
        split: str | None,
        storage_options: Mapping[str, Any],
        counters: Counters,
    ) -> None:
        super().__init__()
        self._loop_thread = LoopThread("dataset").start()
        self._store: Store | None = None
        self._closed = False
        try:
            self.run(self._open(url, split, storage_options, counters))
        except BaseException:
            self.close()
            raise

    async def _open(
        self,
        url: str,
        split: str | None,
        storage_options: Mapping[str, Any],
        counters: Counters,
    ) -> None:
        store = open_store(url, counters=counters, **storage_options)
        self._store = await store.__aenter__()
        self.catalog = await Catalog.open(store, split)

    @property
    def is_left_behind(self) -> bool:
        """Whether its thread lives on in the process that this one was forked from."""
        return self.is_forked and not self._closed

    def run(self, coro: Coroutine[Any, Any, T]) -> T:
        return self._loop_thread.run(coro)

    async def read(self, sample: int) -> dict[str, Any]:
        catalog = self.catalog
        span = catalog.blocks.locate(sample, 1)[0]
        index = await catalog.shard_index(span.shard)
        start, end = int(index.offsets[span.first]), int(index.offsets[span.first + 1])
        data = bytearray(end - start)
        name = catalog.manifest.entry(span.shard).name
        await catalog.store.read_into(name, start, memoryview(data))
        faults = index.verify_records(span.first, 1, memoryview(data), start)
        if faults:
            raise await catalog.sample_error(sample, faults[0].reason)
        schema = catalog.manifest.schema
        return index.read_record(span.first, memoryview(data), start, schema)

    async def key(self, sample: int) -> str | None:
        span = self.catalog.blocks.locate(sample, 1)[0]
        index = await self.catalog.shard_index(span.shard)
        return index.key(span.first)

    def close(self) -> None:
        """Ends the thread; in a forked process nothing, since the thread is the parent's."""
        if self._closed or self.is_forked:
            return
        self._closed = True
        if self._store is not None:
            self._loop_thread.run(self._store.close())
        self._loop_thread.close()


def open_dataset(
    url: str, *, split: str | None = None, storage_options: Mapping[str, Any] | None = None
) -> Dataset:
    """Opens a data set for random access.

    Args:
        url: ``s3://bucket/prefix``, ``file://`` or a path.
        split: for a data set with splits.
        storage_options: as of ``StreamLoader``.

    Raises:
        ConfigError: no data set there, or no such split.
        StorageError: the storage refused or failed.
        ShardError: the data set is damaged.
    """
    return Dataset(str(url), split, storage_options or {})

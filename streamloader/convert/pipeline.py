"""Reads, checks, hashes and stores pictures, all at the same time.

A shard is a coroutine. Its samples go through a pool of threads in runs of a few MiB, several
runs ahead, and come back in the planned order, whatever thread was first; so the bytes of a
shard never depend on the number of threads. File reads, Pillow's decoding and the upload all
release the GIL, hence threads and not processes. Memory is bounded by the runs that are ahead.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from storage_backends import Store
from streamloader.convert.folder import PictureFile
from streamloader.convert.parallel import for_each
from streamloader.convert.picture_file import read_picture
from streamloader.convert.plan import ShardPlan
from streamloader.convert.report import Progress, Rejected, RejectedError, utf8_name
from streamloader.convert.upload import ShardUpload, StoredShard
from streamloader.dts import Schema

SHARDS_IN_FLIGHT = 3
RUN_BYTES = 2 << 20
RUN_SAMPLES = 64
_RUNS_AHEAD_PER_THREAD = 2

ProgressCallback = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class _Sample:
    """A picture on its way: its file, its label, and its content or why it has none."""

    picture: PictureFile
    label: int | None
    content: bytes | Rejected


_Listed = tuple[PictureFile, int | None]


@dataclass(frozen=True, slots=True)
class Threads:
    """Threads of a conversion, in two pools: an append must not queue behind minutes of decoding.

    Args:
        readers: read and decode.
        appenders: hash and append, one per shard under way.
        num_readers: threads of ``readers``.
    """

    readers: ThreadPoolExecutor
    appenders: ThreadPoolExecutor
    num_readers: int


@contextmanager
def conversion_threads(num_readers: int) -> Iterator[Threads]:
    """Own the threads of one conversion; all of them are joined at the end."""
    with (
        ThreadPoolExecutor(num_readers, "streamloader-convert-read") as readers,
        ThreadPoolExecutor(SHARDS_IN_FLIGHT, "streamloader-convert-append") as appenders,
    ):
        yield Threads(readers, appenders, num_readers)


class Pipeline:
    """Stores planned shards, once.

    Args:
        store: where to; already entered.
        root: folder that the pictures' paths are relative to.
        schema: fields ``image`` and, for sources with classes, ``label``.
        threads: who reads, decodes and appends.
        zstd_level: of fields with codec ``zstd``.
        decode_check: decode every picture fully.
        max_rejects: bad pictures that are tolerated; None for any number.
        rejects: bad files met already.
        progress: called from the pipeline's thread after every run of samples.
    """

    def __init__(
        self,
        store: Store,
        root: Path,
        schema: Schema,
        *,
        threads: Threads,
        zstd_level: int,
        decode_check: bool,
        max_rejects: int | None,
        rejects: Sequence[Rejected] = (),
        progress: ProgressCallback | None = None,
    ) -> None:
        self._store = store
        self._root = root
        self._schema = schema
        self._threads = threads
        self._zstd_level = zstd_level
        self._window_bytes = threads.num_readers * _RUNS_AHEAD_PER_THREAD * RUN_BYTES
        self._decode_check = decode_check
        self._max_rejects = max_rejects
        self._progress = progress
        self._abort = threading.Event()
        self._done = Progress(0, 0, 0, 0)
        self.rejects: list[Rejected] = list(rejects)
        self.bytes_in = 0

    async def run(self, plans: Sequence[ShardPlan]) -> list[StoredShard]:
        """Store all shards, a few at a time; those without a sound sample are left out.

        Raises:
            RejectedError: more bad files than ``max_rejects``.
        """
        total = sum(len(plan.order) for plan in plans)
        total_bytes = sum(p.size for plan in plans for p, _ in plan.samples())
        self._done = Progress(0, total, 0, total_bytes)
        self._check_rejects()
        stored: list[StoredShard | None] = [None] * len(plans)

        async def store(numbered: tuple[int, ShardPlan]) -> None:
            place, plan = numbered
            stored[place] = await self._store_shard(plan)

        try:
            await for_each(enumerate(plans), store, at_once=SHARDS_IN_FLIGHT)
        finally:
            self._abort.set()
        return [shard for shard in stored if shard is not None]

    async def _store_shard(self, plan: ShardPlan) -> StoredShard | None:
        loop = asyncio.get_running_loop()
        uuid = await loop.run_in_executor(self._threads.appenders, plan.uuid)
        upload = ShardUpload(
            self._store, plan.name, plan.split.name, self._schema, uuid, zstd_level=self._zstd_level
        )
        async with upload, aclosing(self._read_ahead(plan)) as runs:
            async for samples in runs:
                await loop.run_in_executor(self._threads.appenders, _add_sound, upload, samples)
                self._count(samples)
                await upload.flush()
            return await upload.finish()

    async def _read_ahead(self, plan: ShardPlan) -> AsyncGenerator[list[_Sample], None]:
        """Yield the runs of a shard in order, while later ones are read, up to the window."""
        loop = asyncio.get_running_loop()
        ahead: deque[tuple[asyncio.Future[list[_Sample]], int]] = deque()
        ahead_bytes = 0
        try:
            for listed, run_bytes in _runs(plan):
                while ahead and ahead_bytes + run_bytes > self._window_bytes:
                    oldest, oldest_bytes = ahead.popleft()
                    ahead_bytes -= oldest_bytes
                    yield await oldest
                reading = loop.run_in_executor(self._threads.readers, self._read_run, listed)
                ahead.append((reading, run_bytes))
                ahead_bytes += run_bytes
            while ahead:
                yield await ahead.popleft()[0]
        finally:
            for future, _ in ahead:
                future.cancel()

    def _read_run(self, listed: list[_Listed]) -> list[_Sample]:
        samples = []
        for picture, label in listed:
            if self._abort.is_set():
                break
            content = read_picture(self._root, picture, decode=self._decode_check)
            samples.append(_Sample(picture, label, content))
        return samples

    def _count(self, samples: list[_Sample]) -> None:
        sound = [s for s in samples if isinstance(s.content, bytes)]
        self.bytes_in += sum(s.picture.size for s in sound)
        self.rejects.extend(s.content for s in samples if isinstance(s.content, Rejected))
        self._check_rejects()
        self._done = Progress(
            self._done.samples + len(samples),
            self._done.total_samples,
            self._done.bytes_in + sum(s.picture.size for s in samples),
            self._done.total_bytes,
        )
        if self._progress is not None:
            self._progress(self._done)

    def _check_rejects(self) -> None:
        if self._max_rejects is not None and len(self.rejects) > self._max_rejects:
            last = self.rejects[-1]
            raise RejectedError(
                f"more than {self._max_rejects} bad files, nothing was published; the last was"
                f" {utf8_name(last.path)}: {last.reason}",
                self.rejects,
            )


def _add_sound(upload: ShardUpload, samples: list[_Sample]) -> None:
    for sample in samples:
        if isinstance(sample.content, Rejected):
            continue
        record: dict[str, object] = {"image": sample.content}
        if sample.label is not None:
            record["label"] = sample.label
        upload.add(record, sample.picture.path)


def _runs(plan: ShardPlan) -> Iterator[tuple[list[_Listed], int]]:
    """Cut a shard's samples into runs of a few MiB, with the bytes of each."""
    run: list[_Listed] = []
    run_bytes = 0
    for picture, label in plan.samples():
        if run and (run_bytes + picture.size > RUN_BYTES or len(run) == RUN_SAMPLES):
            yield run, run_bytes
            run, run_bytes = [], 0
        run.append((picture, label))
        run_bytes += picture.size
    if run:
        yield run, run_bytes

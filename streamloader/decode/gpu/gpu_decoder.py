"""From compressed pictures in host memory to rows of a batch on the GPU."""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager
from itertools import cycle
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from streamloader.decode.gpu.fused import RowMaker
from streamloader.decode.gpu.route import EngineBatch
from streamloader.monitor import Counters

SLAB_BYTES: Final = 192 << 20
"""Decoded pixels in one slab: 350 pictures of 500 x 375."""

_NUM_SLABS: Final = 2
# A line that an engine's kernel writes in whole vectors may end a little behind the picture.
_SLACK_BYTES: Final = 4096


class JpegEngine(Protocol):
    """What decodes; see ``Nvjpeg``."""

    def decode(
        self,
        addresses: npt.NDArray[np.uint64],
        lengths: npt.NDArray[np.uint64],
        images: npt.NDArray[np.void],
        stream: int,
    ) -> None: ...

    def close(self) -> None: ...


class DecodeDevice(Protocol):
    """The device whose engine decodes; see ``transfer.DeviceBackend``."""

    def new_stream(self) -> Any: ...

    def allocate(self, nbytes: int, stream: Any) -> Any: ...

    def record_event(self, stream: Any) -> Any: ...

    def stream_wait(self, stream: Any, event: Any) -> None: ...

    def synchronize(self, event: Any) -> None: ...

    def on(self, stream: Any) -> AbstractContextManager[Any]: ...

    def handle(self, stream: Any) -> int: ...


class _Slab:
    """Memory for the decoded pictures of one chunk.

    Attributes:
        read: behind the kernel that reads it last; None while it is free on the host's knowledge.
    """

    __slots__ = ("memory", "read")

    def __init__(self, memory: Any) -> None:
        self.memory = memory
        self.read: Any = None


class GpuDecoder:
    """Decodes on the GPU's JPEG engines, and makes rows of what they give.

    The engines do not keep the order of streams: they write as soon as they are called, whatever
    is enqueued before. So a slab is given to them only when the host has seen the kernel end that
    read it last; with two slabs that kernel runs while the engines fill the other one.

    Threads take turns, a batch each: the runs of two epochs overlap for a moment.

    Args:
        engine: decodes chunks.
        device: where.
        maker: makes rows.
        counters: told the time of each chunk in the engine as ``decode.engine_s``, the number of
            pictures as ``decode.pictures`` and ``decode.pictures_by_engine``.
        slab_bytes: decoded pixels of a chunk.
    """

    def __init__(
        self,
        engine: JpegEngine,
        device: DecodeDevice,
        maker: RowMaker,
        counters: Counters,
        *,
        slab_bytes: int = SLAB_BYTES,
    ) -> None:
        self.maker = maker
        self._engine = engine
        self._device = device
        self._counters = counters
        self._turn = threading.Lock()
        self._stream = device.new_stream()
        self._started_s = 0.0
        self._slabs = [
            _Slab(device.allocate(slab_bytes + _SLACK_BYTES, self._stream))
            for _ in range(_NUM_SLABS)
        ]
        self._next_slab = cycle(self._slabs)

    def fill(
        self,
        batch: EngineBatch,
        data_address: int,
        table: Any,
        staged: Any,
        out: Any,
        stream: Any,
    ) -> None:
        """Decodes the pictures of ``batch`` and enqueues the rows of ``out`` on ``stream``.

        Returns once the compressed bytes are no longer read; waits on the host for the engines.

        Args:
            batch: pictures for the engines, perhaps none.
            data_address: of the host memory that the offsets of ``batch`` count from.
            table, staged, out: as of ``RowMaker.make``, to be read and written by work on
                ``stream``.

        Raises:
            NvjpegError: the engine refused a chunk; rows may be missing.
        """
        if not batch.num_chunks:
            with self._device.on(stream):
                self.maker.make(table, staged, self._slabs[0].memory, out, 0)
            return
        with self._turn:
            for number, pictures in batch.chunks():
                slab = next(self._next_slab)
                decoded = self._decode(batch, pictures, data_address, slab)
                try:
                    # The rows are enqueued while the engines finish the last pictures.
                    self._device.stream_wait(stream, decoded)
                    with self._device.on(stream):
                        self.maker.make(table, staged, slab.memory, out, number)
                    slab.read = self._device.record_event(stream)
                finally:
                    self._await_engines(decoded)

    def _decode(self, batch: EngineBatch, pictures: slice, data_address: int, slab: _Slab) -> Any:
        """Starts a chunk; returns an event behind it."""
        if slab.read is not None:
            self._wait_until_free(slab)
        images = batch.images[pictures].copy()
        images["channel"][:, 0] += np.uint64(slab.memory.data_ptr())
        addresses = (batch.offsets[pictures] + data_address).astype(np.uint64)
        lengths = np.ascontiguousarray(batch.lengths[pictures])
        self._started_s = time.perf_counter()
        with self._device.on(self._stream):
            try:
                self._engine.decode(addresses, lengths, images, self._device.handle(self._stream))
            except BaseException:
                self._await_engines(self._device.record_event(self._stream))
                raise
            decoded = self._device.record_event(self._stream)
        self._counters.add("decode.pictures", len(images))
        self._counters.add("decode.pictures_by_engine", len(images))
        return decoded

    def _await_engines(self, decoded: Any) -> None:
        """Waits on the host: at the next call nothing may be pending on the engines' stream.

        Also after a refusal.
        """
        self._device.synchronize(decoded)
        self._counters.observe("decode.engine_s", time.perf_counter() - self._started_s)

    def _wait_until_free(self, slab: _Slab) -> None:
        self._device.synchronize(slab.read)
        slab.read = None

    def close(self) -> None:
        """Frees the engine. May be called twice."""
        with self._device.on(self._stream):  # its memory belongs to this device's context
            self._engine.close()

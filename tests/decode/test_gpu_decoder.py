"""When slabs are free, and what the binding to nvJPEG says and does where things are missing."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from streamloader.decode import CropPlan
from streamloader.decode.gpu import (
    ROW_DTYPE,
    GpuDecoder,
    Nvjpeg,
    NvjpegError,
    nvjpeg,
    plan_engine_batch,
)
from streamloader.decode.gpu.nvjpeg import IMAGE_DTYPE
from streamloader.errors import ConfigError
from streamloader.monitor import Counters


class Slab:
    def __init__(self, address: int) -> None:
        self.address = address

    def data_ptr(self) -> int:
        return self.address


class Recorder:
    """A device, an engine and a row maker that write down what they are asked, in order."""

    def __init__(self) -> None:
        self.log: list[tuple[object, ...]] = []
        self.refuse = False
        self._streams = 0
        self._events = 0
        self._slabs = 0

    def new_stream(self) -> str:
        self._streams += 1
        return f"stream {self._streams}"

    def allocate(self, nbytes: int, stream: object) -> Slab:
        self._slabs += 1
        return Slab(self._slabs * 1_000_000)

    def record_event(self, stream: object) -> tuple[object, int]:
        self._events += 1
        return (stream, self._events)

    def stream_wait(self, stream: object, event: tuple[object, int]) -> None:
        self.log.append(("stream waits", stream, *event))

    def synchronize(self, event: tuple[object, int]) -> None:
        self.log.append(("host waits", *event))

    def on(self, stream: object):
        return nullcontext()

    def handle(self, stream: object) -> int:
        return 7

    def decode(self, addresses, lengths, images, stream: int) -> None:
        self.log.append(("decode", int(images["channel"][0, 0]) // 1_000_000))
        if self.refuse:
            raise NvjpegError("nvjpegDecodeBatched", 3)

    def close(self) -> None:
        self.log.append(("close",))

    def make(self, table, staged, slab: Slab, out, chunk: int) -> None:
        self.log.append(("make", slab.address // 1_000_000, chunk))


def batch_of(count: int, slab_bytes: int):
    rows = np.arange(count)
    sides = np.full(count, 100)
    crops = CropPlan(np.tile([0.0, 0.0, 9.0, 9.0], (count, 1)), np.zeros(count, bool), 32, 32)
    table = np.zeros(count, ROW_DTYPE)
    return plan_engine_batch(table, rows, rows, rows, sides, sides, crops, slab_bytes=slab_bytes)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def decoder(recorder: Recorder) -> GpuDecoder:
    return GpuDecoder(recorder, recorder, recorder, Counters(), slab_bytes=100_000)


def test_a_slab_is_decoded_into_only_after_the_host_saw_its_last_reader_end(
    decoder: GpuDecoder, recorder: Recorder
) -> None:
    batch = batch_of(9, 100_000)
    assert batch.num_chunks == 3
    decoder.fill(batch, 0, None, None, None, "copies")
    first_read, engine = ("copies", 2), "stream 1"
    assert recorder.log == [
        ("decode", 1),
        ("stream waits", "copies", engine, 1),
        ("make", 1, 0),
        ("host waits", engine, 1),
        ("decode", 2),
        ("stream waits", "copies", engine, 3),
        ("make", 2, 1),
        ("host waits", engine, 3),
        ("host waits", *first_read),
        ("decode", 1),
        ("stream waits", "copies", engine, 5),
        ("make", 1, 2),
        ("host waits", engine, 5),
    ]


def test_after_a_refusal_nothing_is_pending_on_the_engines_stream(
    decoder: GpuDecoder, recorder: Recorder
) -> None:
    recorder.refuse = True
    with pytest.raises(NvjpegError, match="bad JPEG"):
        decoder.fill(batch_of(1, 100_000), 0, None, None, None, "copies")
    assert recorder.log == [("decode", 1), ("host waits", "stream 1", 1)]


def test_after_rows_that_cannot_be_made_nothing_is_pending_either(
    decoder: GpuDecoder, recorder: Recorder, monkeypatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(recorder, "make", fail)
    with pytest.raises(MemoryError):
        decoder.fill(batch_of(1, 100_000), 0, None, None, None, "copies")
    assert recorder.log[-1] == ("host waits", "stream 1", 1)


def test_a_batch_without_pictures_for_the_engine_is_made_at_once(
    decoder: GpuDecoder, recorder: Recorder
) -> None:
    decoder.fill(batch_of(0, 100_000), 0, None, None, None, "copies")
    assert recorder.log == [("make", 1, 0)]


class Library:
    """nvJPEG as far as the binding calls it."""

    def __init__(self, *, create: int = 0, engines: int = 7) -> None:
        self.create = create
        self.engines = engines
        self.calls: list[str] = []
        self.decoded = 0

    def nvjpegCreateEx(self, backend, device_allocator, pinned_allocator, flags, handle) -> int:
        return self.create

    def nvjpegGetHardwareDecoderInfo(self, handle, engines, cores) -> int:
        engines[0] = self.engines
        return 0

    def nvjpegJpegStateCreate(self, handle, state) -> int:
        return 0

    def nvjpegDecodeBatchedInitialize(self, handle, state, count, threads, output) -> int:
        self.calls.append(f"initialize {count}")
        return 0

    def nvjpegDecodeBatched(self, handle, state, data, lengths, images, stream) -> int:
        self.calls.append("decode")
        return self.decoded

    def nvjpegJpegStateDestroy(self, state) -> int:
        self.calls.append("state destroyed")
        return 0

    def nvjpegDestroy(self, handle) -> int:
        self.calls.append("destroyed")
        return 0


@pytest.fixture
def install(monkeypatch):
    def install(library: Library) -> Library:
        real = nvjpeg.ffi
        stub = SimpleNamespace(
            dlopen=lambda name: library, new=real.new, cast=real.cast, NULL=real.NULL
        )
        monkeypatch.setattr(nvjpeg, "ffi", stub)
        return library

    return install


def test_without_the_library_one_sentence_says_how_to_get_it(monkeypatch) -> None:
    monkeypatch.setattr(nvjpeg, "_candidates", lambda: iter(["libnvjpeg.so.not-there"]))
    with pytest.raises(ConfigError, match=r"not installed \(pip install 'streamloader\[gpu\]'\)"):
        Nvjpeg()


def test_a_driver_older_than_the_library_is_told(install) -> None:
    install(Library(create=7))
    with pytest.raises(ConfigError, match=r"libnvjpeg.so.13: .*status 7.*driver is older"):
        Nvjpeg()


def test_a_gpu_without_engines_is_told_and_the_library_let_go(install) -> None:
    library = install(Library(engines=0))
    with pytest.raises(ConfigError, match="no JPEG engines"):
        Nvjpeg()
    assert library.calls == ["destroyed"]


def call(engine: Nvjpeg, count: int) -> None:
    numbers = np.ones(count, np.uint64)
    engine.decode(numbers, numbers, np.zeros(count, IMAGE_DTYPE), 0)


def test_batches_are_initialised_when_their_size_changes_and_after_a_failure(install) -> None:
    library = install(Library())
    engine = Nvjpeg()
    call(engine, 4)
    call(engine, 4)
    call(engine, 5)
    library.decoded = 3
    with pytest.raises(NvjpegError, match="status 3"):
        call(engine, 5)
    library.decoded = 0
    call(engine, 5)
    engine.close()
    engine.close()
    assert library.calls == [
        "initialize 4", "decode", "decode", "initialize 5", "decode", "decode", "initialize 5",
        "decode", "state destroyed", "destroyed",
    ]  # fmt: skip


def test_arrays_that_nvjpeg_would_misread_are_refused(install) -> None:
    install(Library())
    engine = Nvjpeg()
    numbers = np.ones(4, np.uint64)
    with pytest.raises(ValueError, match="contiguous"):
        engine.decode(numbers.astype(np.int32), numbers, np.zeros(4, IMAGE_DTYPE), 0)
    with pytest.raises(ValueError, match="contiguous"):
        engine.decode(np.ones(8, np.uint64)[::2], numbers, np.zeros(4, IMAGE_DTYPE), 0)
    engine.close()

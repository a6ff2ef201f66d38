"""The transfer station on a CUDA device, with consumers that never wait on the host."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from queue import SimpleQueue

import numpy as np
import pytest

from streamloader.errors import ConfigError
from streamloader.topology import pages_by_node, read_machine
from streamloader.transfer import (
    CudaBackend,
    FieldSpec,
    HostMemory,
    PinningError,
    SlotLayout,
    SlotRing,
    TransferStation,
)

torch = pytest.importorskip("torch")

WAIT_S = 60.0
BATCHES = 40
SLEEP_CYCLES = 4_000_000
"""About 2 ms of GPU time, ten copies of a batch of this layout."""

LAYOUT = SlotLayout.build(
    [
        FieldSpec("image", "uint8", (224, 224, 3)),
        FieldSpec("label", "int64"),
        FieldSpec("valid", "bool"),
        FieldSpec("feature", "uint16", (8,), torch_dtype="bfloat16"),
    ],
    batch_size=64,
)

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
pytestmark = [pytest.mark.gpu, needs_cuda]


class ForgetsHostWait(CudaBackend):
    def synchronize(self, event: object) -> None:
        pass


class ForgetsDeviceWait(CudaBackend):
    def new_stream(self) -> object:
        self.copies = super().new_stream()
        return self.copies

    def stream_wait(self, stream: object, event: object) -> None:
        if stream is not self.copies:
            super().stream_wait(stream, event)


class CopiesLate(CudaBackend):
    def copy_to_device(self, host, memory, nbytes: int, stream) -> None:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(SLEEP_CYCLES)
        super().copy_to_device(host, memory, nbytes, stream)


class ForgetsConsumerWait(CopiesLate):
    def new_stream(self) -> object:
        self.copies = super().new_stream()
        return self.copies

    def stream_wait(self, stream: object, event: object) -> None:
        if stream is self.copies:
            super().stream_wait(stream, event)


class Feed:
    """A producer thread that fills batch ``n`` with ``n % 251``, and the station behind it."""

    def __init__(self, backend: CudaBackend, batches: int = BATCHES, **options: object) -> None:
        freed: SimpleQueue[None] = SimpleQueue()
        self.ring = SlotRing(
            LAYOUT,
            slots=3,
            max_slots=3,
            memory_factory=partial(HostMemory, pin=backend),
            on_free=lambda: freed.put(None),
        )
        self.station = TransferStation(str(backend.device), LAYOUT, backend, **options)
        self.batches = batches

        def produce() -> None:
            for number in range(batches):
                while (slot := self.ring.try_acquire()) is None:
                    freed.get(timeout=WAIT_S)
                for name, array in slot.views.items():
                    array[...] = np.bool_(number % 2) if name == "valid" else number % 251
                slot.mark_filled()
                self.station.send(slot, number)

        self._producer = threading.Thread(target=produce)
        self._producer.start()

    def close(self) -> None:
        self._producer.join(WAIT_S)
        self.station.close()
        self.ring.close()


@pytest.fixture
def feed() -> Iterator[Callable[..., Feed]]:
    feeds: list[Feed] = []

    def make(backend: CudaBackend, **options: object) -> Feed:
        feeds.append(Feed(backend, **options))
        return feeds[-1]

    yield make
    for made in feeds:
        made.close()


def wrong_batches(feed: Feed, stream: object, sleep_cycles: int = SLEEP_CYCLES) -> int:
    """Reads each batch late on ``stream``, drops it at once, waits on the host only at the end."""
    good = []
    with torch.cuda.stream(stream):
        for number in range(feed.batches):
            tag, batch = feed.station.receive(WAIT_S)
            assert tag == number
            torch.cuda._sleep(sleep_cycles)
            image, label = batch.tensors["image"], batch.tensors["label"]
            good.append((image == number % 251).all() & (label == number % 251).all())
            del image, label, batch
        return int((~torch.stack(good)).sum())


@pytest.mark.parametrize("own_stream", [True, False])
@pytest.mark.parametrize("backend_type", [CudaBackend, CopiesLate])
def test_a_slow_consumer_that_never_synchronises_reads_the_right_bytes(
    feed, backend_type, own_stream: bool
) -> None:
    stream = torch.cuda.Stream() if own_stream else torch.cuda.default_stream()
    assert wrong_batches(feed(backend_type()), stream) == 0


@pytest.mark.parametrize(
    ("backend_type", "sleep_cycles"),
    [(ForgetsHostWait, SLEEP_CYCLES), (ForgetsDeviceWait, SLEEP_CYCLES), (ForgetsConsumerWait, 1)],
)
def test_without_any_one_of_the_three_guards_wrong_bytes_are_seen(
    feed, backend_type, sleep_cycles: int
) -> None:
    assert wrong_batches(feed(backend_type()), torch.cuda.Stream(), sleep_cycles) > 0


def test_held_batches_do_not_change_under_later_copies(feed) -> None:
    made = feed(CudaBackend(), batches=12, max_device_slots=8)
    held = [made.station.receive(WAIT_S)[1].tensors["image"][-1:] for _ in range(5)]
    for _ in range(7):
        made.station.receive(WAIT_S)
    assert [int(image.min()) for image in held] == list(range(5))
    assert [int(image.max()) for image in held] == list(range(5))


def test_tensors_have_the_fields_dtypes_shapes_and_device(feed) -> None:
    made = feed(CudaBackend(), batches=2)
    made.station.receive(WAIT_S)
    tensors = made.station.receive(WAIT_S)[1].tensors
    assert {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()} == {
        "image": (torch.uint8, (64, 224, 224, 3)),
        "label": (torch.int64, (64,)),
        "valid": (torch.bool, (64,)),
        "feature": (torch.bfloat16, (64, 8)),
    }
    assert {str(tensor.device) for tensor in tensors.values()} == {"cuda:0"}
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors.values()}) == 1
    assert bool(tensors["valid"].all())


def test_a_batch_outlives_its_station_and_then_frees_the_device_memory(feed) -> None:
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    made = feed(CudaBackend(), batches=1)
    image = made.station.receive(WAIT_S)[1].tensors["image"][1:]
    made.close()
    assert before < torch.cuda.memory_allocated() <= before + LAYOUT.nbytes + 2**21
    assert int(image.max()) == 0
    del image
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before


def test_a_cuda_graph_replays_over_static_buffers(feed) -> None:
    made = feed(CudaBackend(), static_buffers=True)
    stream = torch.cuda.Stream()
    sums = []
    with torch.cuda.stream(stream):
        _, batch = made.station.receive(WAIT_S)
        image = batch.tensors["image"]
        total = image.sum(dtype=torch.int64)
        sums.append(total.clone())
        graph = torch.cuda.CUDAGraph()
    # In the default mode CUDA may refuse what the station's threads call meanwhile.
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        total.copy_(image.sum(dtype=torch.int64))
    with torch.cuda.stream(stream):
        for _ in range(1, BATCHES):
            made.station.receive(WAIT_S)
            torch.cuda._sleep(SLEEP_CYCLES)
            graph.replay()
            sums.append(total.clone())
        stream.synchronize()
    per_batch = 64 * 224 * 224 * 3
    assert [int(value) for value in sums] == [n % 251 * per_batch for n in range(BATCHES)]


def test_registered_memory_is_pinned_for_torch_and_can_be_registered_again() -> None:
    backend = CudaBackend()
    for _ in range(3):
        memory = HostMemory(1 << 20, pin=backend)
        assert memory.pinned
        assert torch.from_numpy(memory.array).is_pinned()
        memory.close()


def test_registered_memory_stays_on_the_node_where_it_was_touched() -> None:
    node = next((node for node in read_machine().nodes if node.cpus), None)
    memory = HostMemory(16 << 20, pin=CudaBackend(), node=node)
    if node is None or not (pages := pages_by_node([memory.address])):
        pytest.skip("this machine does not tell its nodes")
    assert memory.pinned
    assert memory.node_refusal is None
    assert pages.keys() == {node.index}
    assert pages[node.index] >= memory.nbytes // 4096
    memory.close()


def test_a_refusal_leaves_no_error_behind_for_the_next_kernel() -> None:
    backend = CudaBackend()
    memory = HostMemory(1 << 20, pin=backend)
    with pytest.raises(PinningError, match="refused to pin 1048576 bytes"):
        backend.register(memory.address, memory.nbytes)
    assert int((torch.ones(4, device="cuda") + 1).sum()) == 8
    memory.close()
    with pytest.raises(RuntimeError, match="refused to unpin"):
        backend.unregister(memory.address)
    assert int((torch.ones(4, device="cuda") + 1).sum()) == 8


def test_a_device_that_is_not_there_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="none is 'cuda:99'"):
        CudaBackend("cuda:99")


EXIT_SCRIPT = """
from functools import partial
import torch
from streamloader.transfer import *

layout = SlotLayout.build([FieldSpec("image", "uint8", (224, 224, 3))], 64)
backend = CudaBackend()
ring = SlotRing(layout, slots=3, max_slots=3, memory_factory=partial(HostMemory, pin=backend),
                on_free=lambda: None)
station = TransferStation("cuda:0", layout, backend)
for number in range(3):
    slot = ring.try_acquire()
    slot.mark_filled()
    station.send(slot, number)
held = station.receive(60)
torch.cuda._sleep(200_000_000)
print("done")
"""


def test_an_interpreter_that_exits_without_close_ends_quietly() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", EXIT_SCRIPT],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (ended.returncode, ended.stdout.strip(), ended.stderr) == (0, "done", "")


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_a_second_device_is_used_alone_and_on_its_own_stream(feed) -> None:
    made = feed(CudaBackend("cuda:1"))
    stream = torch.cuda.Stream("cuda:1")
    assert wrong_batches(made, stream) == 0
    assert torch.cuda.memory_allocated("cuda:1") >= 2 * LAYOUT.nbytes

"""Leases: whatever still looks into a batch keeps it, wherever and however it goes."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue

import numpy as np
import pytest

from streamloader.transfer import HostMemory, Lease, SlotRing, SlotState, lease_arrays

WAIT_S = 10.0


def _torch():
    return pytest.importorskip("torch")


KEEPERS: dict[str, Callable[[np.ndarray], object]] = {
    "the array": lambda array: array,
    "a slice": lambda array: array[1:2],
    "a slice of a slice": lambda array: array[1:][:, 2:3],
    "a view of another dtype": lambda array: array.reshape(-1)[16:32].view(np.uint32),
    "a transposed view": lambda array: array.transpose(0, 3, 1, 2),
    "a memoryview": lambda array: memoryview(array),
    "an iterator": lambda array: iter(array),
    "a tensor": lambda array: _torch().from_numpy(array),
    "a slice of a tensor": lambda array: _torch().from_numpy(array)[1:],
    "a tensor of a slice": lambda array: _torch().from_numpy(array[1:]),
    "a permuted tensor": lambda array: _torch().from_numpy(array).permute(0, 3, 1, 2),
    "a storage": lambda array: _torch().from_numpy(array).untyped_storage(),
    "a detached tensor": lambda array: _torch().from_numpy(array).detach(),
    "DLPack": lambda array: _torch().from_dlpack(array),
    "numpy of a tensor": lambda array: _torch().from_numpy(array).numpy(),
}


def root(array: np.ndarray) -> object:
    base: object = array
    while getattr(base, "base", None) is not None:
        base = base.base
    return base


@pytest.mark.parametrize("keeper", list(KEEPERS))
def test_a_slot_stays_leased_exactly_as_long_as_something_looks_into_it(
    make_ring, fill, is_batch, keeper: str
) -> None:
    ring = make_ring(1)
    arrays = lease_arrays(fill(ring, 7))
    kept = KEEPERS[keeper](arrays["image"])
    memory = arrays["image"].copy()
    del arrays
    gc.collect()
    assert ring.stats().states == {SlotState.READABLE: 1}
    assert ring.try_acquire() is None
    assert is_batch({"image": memory}, 7)
    del kept
    assert ring.stats().states == {SlotState.WRITABLE: 1}


def test_the_base_of_every_array_is_the_lease(make_ring, fill) -> None:
    arrays = lease_arrays(fill(make_ring(1), 1))
    leases = {id(root(array)) for array in arrays.values()}
    assert len(leases) == 1
    assert isinstance(root(arrays["image"]), Lease)
    assert arrays["image"].flags.writeable


def test_a_copy_does_not_keep_the_slot(make_ring, fill, is_batch) -> None:
    ring = make_ring(1)
    copy = lease_arrays(fill(ring, 5))["image"].copy()
    assert fill(ring, 6) is not None
    assert is_batch({"image": copy}, 5)


def test_bytes_stay_the_same_while_every_other_slot_is_rewritten(make_ring, fill, is_batch) -> None:
    ring = make_ring(2, 3)
    held = lease_arrays(fill(ring, 1))
    for number in range(2, 40):
        assert lease_arrays(fill(ring, number)) is not None
    assert is_batch(held, 1)


def test_a_lease_dropped_in_another_thread_comes_back(make_ring, fill) -> None:
    freed: SimpleQueue[str] = SimpleQueue()
    ring = make_ring(1, on_free=lambda: freed.put(threading.current_thread().name))
    box = [lease_arrays(fill(ring, 1))]
    thread = threading.Thread(target=box.clear, name="dropper")
    thread.start()
    assert freed.get(timeout=WAIT_S) == "dropper"
    thread.join()
    assert ring.try_acquire() is not None


def test_a_tensor_freed_by_a_torch_thread_comes_back(make_ring, fill) -> None:
    torch = _torch()
    freed: SimpleQueue[None] = SimpleQueue()
    ring = make_ring(1, on_free=lambda: freed.put(None))
    images = torch.from_numpy(lease_arrays(fill(ring, 1))["image"])
    weight = torch.ones((), requires_grad=True)
    # The graph holds the batch for its backward pass.
    loss = (images.float() * weight + images * weight).sum()
    del images
    loss.backward()
    del loss
    gc.collect()
    freed.get(timeout=WAIT_S)
    assert ring.try_acquire() is not None


def test_a_lease_in_an_unreachable_cycle_comes_back_at_collection(make_ring, fill) -> None:
    ring = make_ring(1)
    cycle: list[object] = [lease_arrays(fill(ring, 1))]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert ring.try_acquire() is not None


def test_a_collection_inside_the_rings_own_lock_does_not_block(make_ring, fill) -> None:
    ring = make_ring(1)
    cycle: list[object] = [lease_arrays(fill(ring, 1))]
    cycle.append(cycle)
    del cycle
    done = threading.Event()

    def collect() -> None:
        with ring.lock:
            gc.collect()
        done.set()

    threading.Thread(target=collect, daemon=True).start()
    assert done.wait(WAIT_S)
    assert ring.try_acquire() is not None


def test_a_slot_that_is_not_filled_makes_no_lease(make_ring) -> None:
    ring = make_ring(1)
    slot = ring.try_acquire()
    with pytest.raises(RuntimeError, match="is filling and cannot become readable"):
        lease_arrays(slot)
    assert slot.state is SlotState.FILLING


class _Pinner:
    def __init__(self) -> None:
        self.registered: set[int] = set()

    def register(self, address: int, nbytes: int) -> None:
        self.registered.add(address)

    def unregister(self, address: int) -> None:
        self.registered.remove(address)


def test_a_lease_outlives_its_ring_and_then_frees_the_memory(make_ring, fill, is_batch) -> None:
    pinner = _Pinner()
    ring: SlotRing = make_ring(2, memory_factory=partial(HostMemory, pin=pinner))
    first, second = lease_arrays(fill(ring, 1)), lease_arrays(fill(ring, 2))
    ring.close()
    assert is_batch(first, 1)
    assert is_batch(second, 2)
    assert len(pinner.registered) == 2
    del first
    assert len(pinner.registered) == 1
    assert is_batch(second, 2)
    del second
    assert pinner.registered == set()


def test_a_lease_survives_even_memory_closed_by_hand(make_ring, fill, is_batch) -> None:
    slot = fill(make_ring(1), 3)
    arrays = lease_arrays(slot)
    slot.memory.close()
    assert is_batch(arrays, 3)


EXIT_SCRIPT = """
import threading
from streamloader.transfer import FieldSpec, SlotLayout, SlotRing, lease_arrays
{extra_import}

layout = SlotLayout.build([FieldSpec("image", "uint8", (8,))], 4)
ring = SlotRing(layout, slots=4, max_slots=4, on_free=threading.get_ident)


def take():
    slot = ring.try_acquire()
    slot.mark_filled()
    return {make}(lease_arrays(slot)["image"])


in_a_global = take()
cycle = [take()]
cycle.append(cycle)
in_a_thread = threading.local()
in_a_thread.batch = take()


class AtTheVeryEnd:
    def __init__(self):
        self.batch = take()

    def __del__(self):
        del self.batch


at_the_very_end = AtTheVeryEnd()
print("done")
"""


@pytest.mark.parametrize(("extra_import", "make"), [("", ""), ("import torch", "torch.from_numpy")])
def test_an_interpreter_that_exits_with_leases_alive_ends_quietly(
    extra_import: str, make: str
) -> None:
    if make:
        _torch()
    script = textwrap.dedent(EXIT_SCRIPT).format(extra_import=extra_import, make=make)
    ended = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout.strip(), ended.stderr) == (0, "done", "")


def test_cpu_use_of_the_room_does_not_import_torch() -> None:
    script = textwrap.dedent(EXIT_SCRIPT).format(extra_import="import sys", make="")
    script += "\nassert 'torch' not in sys.modules\n"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60, capture_output=True)

"""Host memory: mapped, touched, pinned if the driver agrees, and unpinned before it is unmapped."""

from __future__ import annotations

import gc
import os
import weakref
from functools import partial

import numpy as np
import pytest

from streamloader.errors import ConfigError
from streamloader.transfer import HostMemory, PinningError


class FakePinner:
    """Remembers what is registered, and that it was still mapped when it was unregistered."""

    def __init__(self, refuses: bool = False) -> None:
        self.refuses = refuses
        self.registered: dict[int, int] = {}
        self.asked = 0

    def register(self, address: int, nbytes: int) -> None:
        self.asked += 1
        if self.refuses:
            raise PinningError("memlock limit of 64 KiB")
        self.registered[address] = nbytes

    def unregister(self, address: int) -> None:
        assert is_mapped(address)
        del self.registered[address]


def is_mapped(address: int) -> bool:
    with open("/proc/self/maps") as maps:
        for line in maps:
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            if start <= address < end:
                return True
    return False


def resident_bytes(address: int, nbytes: int) -> int:
    """Bytes of the mapping that have a page behind them."""
    present = 0
    with open("/proc/self/pagemap", "rb") as pagemap:
        for page in range(address // 4096, (address + nbytes) // 4096):
            pagemap.seek(8 * page)
            present += int.from_bytes(pagemap.read(8), "little") >> 63
    return 4096 * present


def test_memory_is_page_aligned_zeroed_and_touched() -> None:
    memory = HostMemory(20 * 4096)
    assert memory.address % 4096 == 0
    assert resident_bytes(memory.address, memory.nbytes) == memory.nbytes
    assert memory.array.shape == (20 * 4096,)
    assert not memory.array.any()
    assert not memory.pinned
    assert memory.pin_refusal is None
    memory.close()


def test_pinned_memory_is_unregistered_once_and_while_it_is_still_mapped() -> None:
    pinner = FakePinner()
    memory = HostMemory(8192, pin=pinner)
    assert memory.pinned
    assert pinner.registered == {memory.address: 8192}
    memory.close()
    memory.close()
    assert pinner.registered == {}
    assert not memory.pinned


def test_memory_that_is_dropped_without_close_is_unregistered() -> None:
    pinner = FakePinner()
    memory = HostMemory(8192, pin=pinner)
    del memory
    assert pinner.registered == {}


def test_an_array_keeps_closed_memory_mapped() -> None:
    memory = HostMemory(8192)
    view = memory.array[100:200]
    memory.close()
    view[:] = 7
    assert view.sum() == 700
    with pytest.raises(RuntimeError, match="closed"):
        _ = memory.array


def test_closed_memory_is_unmapped() -> None:
    size = 64 << 20
    before = mapped_bytes()
    memory = HostMemory(size)
    assert mapped_bytes() >= before + size
    memory.close()
    assert mapped_bytes() < before + size


def mapped_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[0]) * 4096


def test_a_refusal_leaves_usable_pageable_memory_and_its_reason() -> None:
    memory = HostMemory(8192, pin=FakePinner(refuses=True))
    assert not memory.pinned
    assert memory.pin_refusal == "memlock limit of 64 KiB"
    memory.array[:] = 1
    memory.close()


def test_a_ring_warns_once_about_refusals_and_reports_them(make_ring, caplog) -> None:
    pinner = FakePinner(refuses=True)
    ring = make_ring(3, memory_factory=partial(HostMemory, pin=pinner))
    assert pinner.asked == 3
    assert [record.name for record in caplog.records] == ["streamloader.transfer"]
    assert "memlock limit of 64 KiB" in caplog.text
    assert ring.stats().pin_refusal == "memlock limit of 64 KiB"
    assert ring.stats().pinned_slots == 0


def test_a_ring_reports_pinned_slots_and_unpins_them_when_it_closes(make_ring) -> None:
    pinner = FakePinner()
    ring = make_ring(3, memory_factory=partial(HostMemory, pin=pinner))
    assert ring.stats().pinned_slots == 3
    assert sorted(pinner.registered.values()) == [ring.layout.stride_bytes] * 3
    ring.close()
    assert pinner.registered == {}


def test_another_failure_of_the_driver_is_not_taken_for_a_refusal() -> None:
    class Broken(FakePinner):
        def register(self, address: int, nbytes: int) -> None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        HostMemory(8192, pin=Broken())


def test_memory_can_be_touched_from_chosen_cpus_without_moving_the_caller() -> None:
    allowed = os.sched_getaffinity(0)
    memory = HostMemory(8192, touch_cpus={min(allowed)})
    assert os.sched_getaffinity(0) == allowed
    assert resident_bytes(memory.address, memory.nbytes) == memory.nbytes
    memory.close()


def test_cpus_that_the_process_may_not_use_are_an_error_that_names_them() -> None:
    with pytest.raises(ConfigError, match=r"CPUs \[4095\]"):
        HostMemory(8192, touch_cpus={4095})


# The child ends at once, so threads that it lacks cannot block it.
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_does_not_unregister_its_parents_memory() -> None:
    pinner = FakePinner()
    memory = HostMemory(8192, pin=pinner)
    child = os.fork()
    if child == 0:
        memory.close()
        os._exit(0 if pinner.registered else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    memory.close()


def test_a_ring_whose_memory_runs_out_frees_the_slots_it_made(layout, make_ring) -> None:
    made: list[weakref.ref[HostMemory]] = []

    def factory(nbytes: int) -> HostMemory:
        if len(made) == 2:
            raise OSError("out of memory")
        memory = HostMemory(nbytes)
        made.append(weakref.ref(memory))
        return memory

    with pytest.raises(OSError, match="out of memory") as caught:
        make_ring(3, memory_factory=factory)
    caught.value.__traceback__ = None
    gc.collect()
    assert [reference() for reference in made] == [None, None]


def test_memory_of_no_size_is_refused() -> None:
    with pytest.raises(ConfigError, match="got 0"):
        HostMemory(0)


def test_writes_stay_within_the_mapping() -> None:
    memory = HostMemory(5000)
    memory.array[:] = np.arange(5000) % 251
    assert np.array_equal(memory.array, np.arange(5000) % 251)
    memory.close()

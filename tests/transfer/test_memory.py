"""Host memory: mapped, touched, pinned if the driver agrees, and unpinned before it is unmapped."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Collection
from functools import partial

import numpy as np
import pytest

from streamloader.errors import ConfigError
from streamloader.topology import NumaNode, pages_by_node, read_machine
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
    assert ring.stats().pinned_nbytes == 0


def test_a_ring_reports_pinned_slots_and_unpins_them_when_it_closes(make_ring) -> None:
    pinner = FakePinner()
    ring = make_ring(3, memory_factory=partial(HostMemory, pin=pinner))
    assert ring.stats().pinned_slots == 3
    assert ring.stats().pinned_nbytes == 3 * ring.layout.stride_bytes
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
    memory = HostMemory(8192, node=NumaNode(0, frozenset({min(allowed)})))
    assert os.sched_getaffinity(0) == allowed
    assert memory.node_refusal is None
    assert resident_bytes(memory.address, memory.nbytes) == memory.nbytes
    memory.close()


def test_cpus_that_the_process_may_not_use_leave_usable_memory_and_the_reason() -> None:
    memory = HostMemory(8192, node=NumaNode(1, frozenset({4095})))
    assert memory.node_refusal is not None
    assert "CPUs 4095" in memory.node_refusal
    assert resident_bytes(memory.address, memory.nbytes) == memory.nbytes
    memory.close()


def test_memory_is_touched_before_it_is_pinned_and_unpinned_before_it_is_unmapped() -> None:
    class Watching(FakePinner):
        def register(self, address: int, nbytes: int) -> None:
            assert resident_bytes(address, nbytes) == nbytes
            super().register(address, nbytes)

    pinner = Watching()
    node = NumaNode(0, frozenset(os.sched_getaffinity(0)))
    memory = HostMemory(40 * 4096, pin=pinner, node=node)
    assert pinner.asked == 1
    memory.close()
    assert pinner.registered == {}


def test_pages_are_counted_where_they_were_touched(make_ring) -> None:
    """Real pages and the kernel's real count: a machine with one node has them all on it."""
    cpu = min(os.sched_getaffinity(0))
    index = node_of(cpu)
    if index is None or not pages_by_node([id(cpu)]):
        pytest.skip("this kernel does not tell nodes")
    node = NumaNode(index, frozenset({cpu}))
    ring = make_ring(3, memory_factory=partial(HostMemory, node=node))
    stats = ring.stats()
    assert stats.node == index
    assert stats.pages_by_node.keys() == {index}
    assert stats.pages_by_node[index] >= 3 * stats.slot_bytes // 4096


def node_of(cpu: int) -> int | None:
    for node in read_machine().nodes:
        if cpu in node.cpus:
            return node.index
    return None


def test_slots_on_another_node_give_one_warning_with_the_counts(make_ring, caplog) -> None:
    asked: list[list[int]] = []

    def locate(addresses: Collection[int]) -> dict[int, int]:
        asked.append(list(addresses))
        return {0: 7, 1: 41}

    node = NumaNode(1, frozenset(os.sched_getaffinity(0)))
    ring = make_ring(3, memory_factory=partial(HostMemory, node=node), locate=locate)
    assert len(asked) == 1
    assert len(set(asked[0])) == 3
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "7 pages of the slots" in caplog.text
    assert ring.stats().pages_by_node == {0: 7, 1: 41}


def test_slots_on_their_node_give_no_warning(make_ring, caplog) -> None:
    node = NumaNode(1, frozenset(os.sched_getaffinity(0)))
    factory = partial(HostMemory, node=node)
    make_ring(3, memory_factory=factory, locate=lambda addresses: {1: 48})
    make_ring(3, memory_factory=factory, locate=lambda addresses: {})
    assert caplog.records == []


def test_slots_for_no_node_are_not_looked_up(make_ring) -> None:
    def locate(addresses: Collection[int]) -> dict[int, int]:
        raise AssertionError("counting pages walks all memory of the process")

    ring = make_ring(2, locate=locate)
    assert (ring.stats().node, ring.stats().pages_by_node) == (None, {})


def test_a_refused_place_gives_one_warning_for_a_ring(make_ring, caplog) -> None:
    node = NumaNode(1, frozenset({4095}))
    make_ring(3, memory_factory=partial(HostMemory, node=node), locate=lambda addresses: {1: 9})
    assert len(caplog.records) == 1
    assert "CPUs 4095" in caplog.text


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


def test_two_mappings_of_one_file_show_the_same_bytes() -> None:
    descriptor = os.memfd_create("slot", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, 8192)
    made = HostMemory(8192, descriptor=descriptor)
    made.array[[0, 4096]] = 7
    seen = HostMemory(8192, descriptor=descriptor, touch=False)
    os.close(descriptor)
    assert seen.array[[0, 4096]].tolist() == [7, 7]
    seen.array[5] = 9
    assert made.array[5] == 9


def test_memory_of_no_size_is_refused() -> None:
    with pytest.raises(ConfigError, match="got 0"):
        HostMemory(0)


def test_writes_stay_within_the_mapping() -> None:
    memory = HostMemory(5000)
    memory.array[:] = np.arange(5000) % 251
    assert np.array_equal(memory.array, np.arange(5000) % 251)
    memory.close()

"""A loader's threads and slots on a machine with several NUMA nodes."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from streamloader import CenterCrop, StreamLoader
from streamloader._delivery import CpuDelivery
from streamloader.decode import PixelFormat
from streamloader.topology import Gpu, Machine, NumaNode
from streamloader.transfer import HostMemory, PinningError

ALLOWED = sorted(os.sched_getaffinity(0))
FIRST, LAST = ALLOWED[0], ALLOWED[-1]


def loader(dataset: Path, **options) -> StreamLoader:
    wanted = {"batch_size": 8, "transform": CenterCrop(24), "feed": "thread"}
    return StreamLoader(str(dataset), **{**wanted, **options})


def own_masks(stream: StreamLoader) -> list[set[int]]:
    engine = stream._engine
    threads = [*engine.pool._threads, engine.loop_thread._thread]
    return [os.sched_getaffinity(thread.native_id) for thread in threads]


@pytest.fixture
def two_nodes(monkeypatch: pytest.MonkeyPatch):
    """The loader sees a GPU on the second of two nodes, each with one CPU; copies stay here."""
    gpu = Gpu(0, "GPU", "0000:9d:00.0", 1)
    machine = Machine(
        allowed=frozenset({FIRST, LAST}),
        quota=None,
        own_mask=False,
        nodes=(NumaNode(0, frozenset({FIRST})), NumaNode(1, frozenset({LAST}))),
        cores=((FIRST,), (LAST,)),
        gpus=(gpu,),
    )
    monkeypatch.setattr("streamloader._engine.read_machine", lambda cuda: machine)

    def deliver_here(device, local_rank, pixels, **options):
        delivery = CpuDelivery(PixelFormat())
        delivery.gpu = 0
        return delivery

    monkeypatch.setattr("streamloader.loader.open_delivery", deliver_here)
    return machine


def test_workers_and_the_event_loop_stay_on_the_gpus_node(pictures, two_nodes):
    with loader(pictures) as stream:
        next(iter(stream))
        assert own_masks(stream) == [{LAST}, {LAST}]
        seats = stream.stats()["seats"]
    assert seats == {
        "pin_workers": "node",
        "node": 1,
        "workers": [str(LAST)],
        "unbound_because": None,
    }
    assert os.sched_getaffinity(0) == set(ALLOWED)


def test_off_binds_nobody(pictures, two_nodes):
    with loader(pictures, pin_workers="off") as stream:
        next(iter(stream))
        assert own_masks(stream) == [set(ALLOWED)] * 2
        assert stream.stats()["seats"]["workers"] == [""]


def test_a_worker_too_many_runs_anywhere(pictures, two_nodes):
    with loader(pictures, num_workers=2, pin_workers="core") as stream:
        next(iter(stream))
        assert own_masks(stream) == [{LAST}, set(ALLOWED), {LAST}]


def test_slots_that_lie_elsewhere_are_told_once_and_in_the_stats(pictures, two_nodes, caplog):
    if _only_node() != 0:
        pytest.skip("needs a kernel that counts pages by node, with all of them on node 0")
    with loader(pictures) as stream:
        list(stream)
        staging = stream.stats()["staging"]
    assert [r.levelname for r in caplog.records if "NUMA" in r.getMessage()] == ["WARNING"]
    assert staging["node"] == 1
    assert staging["pages_by_node"].keys() == {0}
    assert staging["pinned_bytes"] == 0
    assert 0 < staging["bytes"] <= staging["budget_bytes"]


def _only_node() -> int | None:
    """The node of all memory here, None if there are several or the kernel does not tell."""
    online = Path("/sys/devices/system/node/online")
    is_told = Path("/proc/self/numa_maps").exists() and online.exists()
    text = online.read_text().strip() if is_told else ""
    return int(text) if text.isdecimal() else None


def test_an_unknown_node_is_said_once(pictures, two_nodes, monkeypatch, caplog):
    gpu = Gpu(0, "GPU", "0000:9d:00.0", None, "the system does not know the node of 0000:9d:00.0")
    machine = replace(two_nodes, gpus=(gpu,))
    monkeypatch.setattr("streamloader._engine.read_machine", lambda cuda: machine)
    with loader(pictures) as stream:
        for _ in range(2):
            list(stream)
        stats = stream.stats()
    warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert "cuda:0: the system does not know the node of 0000:9d:00.0" in warnings[0]
    assert stats["seats"]["unbound_because"] == f"cuda:0: {gpu.unknown_because}"
    assert stats["staging"]["node"] is None


def test_a_loader_for_the_cpu_is_bound_to_no_node(pictures):
    with loader(pictures, device="cpu") as stream:
        next(iter(stream))
        stats = stream.stats()
        assert own_masks(stream)[0] == set(ALLOWED)
    assert stats["seats"]["node"] is None
    assert stats["staging"]["pinned_bytes"] == 0
    assert stats["staging"]["pages_by_node"] == {}


def test_ranks_of_one_machine_share_its_cpus(pictures):
    with loader(pictures, device="cpu", local_world_size=64) as stream:
        assert stream.stats()["workers"] == 1


def test_slots_that_cannot_be_pinned_are_told_once_and_in_the_stats(pictures, monkeypatch, caplog):
    class Refuses:
        def register(self, address, nbytes):
            raise PinningError("memlock limit of 64 KiB")

    def deliver_here(device, local_rank, pixels, **options):
        delivery = CpuDelivery(PixelFormat())
        delivery.memory_factory = partial(HostMemory, pin=Refuses())
        return delivery

    monkeypatch.setattr("streamloader.loader.open_delivery", deliver_here)
    with loader(pictures) as stream:
        list(stream)
        staging = stream.stats()["staging"]
    assert [r.getMessage() for r in caplog.records if "memlock" in r.getMessage()] == [
        "slots stay in pageable memory and copies to the device are slower: memlock limit of 64 KiB"
    ]
    assert staging["pinned_bytes"] == 0
    assert staging["pin_refusal"] == "memlock limit of 64 KiB"

"""Which CPUs the workers of each rank get."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamloader.topology import (
    Machine,
    NumaNode,
    format_cpu_list,
    parse_cpu_list,
    plan_seats,
    read_machine,
)

ALL = frozenset(range(224))
NODES = (parse_cpu_list("0-55,112-167"), parse_cpu_list("56-111,168-223"))
DGX = [f"0000:{bus}:00.0" for bus in ("1b", "43", "52", "61", "9d", "c3", "d1", "df")]


@pytest.fixture
def dgx(make_root, make_cuda):
    return read_machine(make_root("two_nodes_eight_gpus"), affinity=ALL, cuda=make_cuda(DGX))


def all_ranks(machine, count, **options):
    gpus = len(machine.gpus)
    return [
        plan_seats(
            machine,
            local_rank=rank,
            local_world_size=count,
            gpu=rank % gpus if gpus else None,
            **options,
        )
        for rank in range(count)
    ]


def single(seats):
    return [cpu for cpus in seats.workers for cpu in cpus]


def test_eight_ranks_stay_on_the_nodes_of_their_gpus(dgx):
    for rank, seats in enumerate(all_ranks(dgx, 8)):
        cpus = NODES[rank // 4]
        assert seats.node == NumaNode(rank // 4, cpus)
        assert seats.workers == (cpus,) * 27  # a quarter of 112 CPUs, less one
        assert seats.threads == cpus
        assert seats.unbound_because == ""


def test_single_seats_of_all_ranks_are_apart_and_leave_each_trainer_a_core(dgx):
    ranks = all_ranks(dgx, 8, pin="core")
    taken = [cpu for seats in ranks for cpu in single(seats)]
    assert len(taken) == len(set(taken))
    for rank, seats in enumerate(ranks):
        first = rank * 14
        assert set(single(seats)).isdisjoint({first, first + 112})
        assert set(single(seats)) <= NODES[rank // 4]


def test_every_core_gets_one_worker_before_any_gets_two(dgx):
    seats = plan_seats(dgx, local_rank=1, local_world_size=8, gpu=1, num_workers=8 * 20, pin="core")
    assert single(seats) == [*range(15, 28), *range(127, 134)]


def test_workers_beyond_the_cpus_get_no_seat_rather_than_a_shared_one(dgx):
    for pin, seated in (("core", 26), ("node", 27)):
        seats = plan_seats(
            dgx, local_rank=0, local_world_size=8, gpu=0, num_workers=8 * 40, pin=pin
        )
        assert len(seats.workers) == 40
        assert seats.bound_workers == seated
        assert not any(seats.workers[seated:])


def test_one_rank_alone_uses_both_nodes_and_starts_with_its_own(dgx):
    seats = plan_seats(dgx, gpu=5)
    assert len(seats.workers) == 223
    assert seats.workers[:111] == (NODES[1],) * 111
    assert not any(seats.workers[111:])


def test_the_device_counts_and_not_the_local_rank(dgx):
    seats = plan_seats(dgx, local_rank=0, local_world_size=8, gpu=6)
    assert seats.node == NumaNode(1, NODES[1])


def test_permuted_visible_devices(make_root, make_cuda):
    order = [7, 0, 5, 2]
    machine = read_machine(
        make_root("two_nodes_eight_gpus"), affinity=ALL, cuda=make_cuda([DGX[i] for i in order])
    )
    ranks = all_ranks(machine, 4, pin="core")
    assert [seats.node.index for seats in ranks] == [1, 0, 1, 0]
    taken = [cpu for seats in ranks for cpu in single(seats)]
    assert len(taken) == len(set(taken))
    assert single(ranks[2])[0] == 56 + 28 + 1  # the second half of node 1, less its first core


def test_ranks_that_see_one_gpu_each_are_spread_evenly(make_root, make_cuda):
    root = make_root("two_nodes_eight_gpus")
    taken: list[int] = []
    for rank in range(8):
        machine = read_machine(root, affinity=ALL, cuda=make_cuda([DGX[rank]]))
        seats = plan_seats(machine, local_rank=rank, local_world_size=8, gpu=0, pin="core")
        assert seats.node.index == rank // 4
        taken += single(seats)
    assert len(taken) == len(set(taken)) == 8 * 26


def test_a_machine_with_one_node_binds_nobody_unless_asked(make_root, make_cuda):
    machine = read_machine(
        make_root("one_node_smt"), affinity=range(16), cuda=make_cuda(["0000:01:00.0"])
    )
    seats = plan_seats(machine, gpu=0)
    assert seats.workers == (frozenset(),) * 15
    assert seats.threads == frozenset()
    assert seats.unbound_because == ""  # there is one node only: nothing is lost
    cores = plan_seats(machine, gpu=0, pin="core")
    assert single(cores) == [2, 4, 6, 8, 10, 12, 14, 3, 5, 7, 9, 11, 13, 15]
    assert len(cores.workers) == 15


def test_off_binds_nobody_and_still_places_the_slots(dgx):
    seats = plan_seats(dgx, gpu=0, pin="off")
    assert seats.bound_workers == 0
    assert seats.threads == frozenset()
    assert seats.node == NumaNode(0, NODES[0])


def test_an_unknown_node_among_several_is_said(make_root, make_cuda):
    root = make_root("two_nodes_eight_gpus", {"sys/bus/pci/devices/0000:1b:00.0/numa_node": "-1\n"})
    machine = read_machine(root, affinity=ALL, cuda=make_cuda(DGX))
    seats = plan_seats(machine, gpu=0)
    assert seats.node is None
    assert seats.bound_workers == 0
    assert seats.unbound_because == "cuda:0: the system does not know the node of 0000:1b:00.0"


def test_a_node_without_an_allowed_cpu_is_said(make_root, make_cuda):
    machine = read_machine(
        make_root("two_nodes_eight_gpus"), affinity=NODES[0], cuda=make_cuda(DGX)
    )
    seats = plan_seats(machine, local_rank=7, local_world_size=8, gpu=7)
    assert seats.node is None
    assert seats.bound_workers == 0
    assert seats.unbound_because == (
        "cuda:7 is on NUMA node 1, of which CPUs 0-55,112-167 are no part"
    )


def test_a_hole_in_the_cpus_gets_no_seat(make_root, make_cuda):
    machine = read_machine(
        make_root("cpu_3_offline"),
        affinity=parse_cpu_list("0-2,4-7"),
        cuda=make_cuda(["0000:81:00.0", "0000:01:00.0"]),
    )
    ranks = all_ranks(machine, 2, pin="core")
    assert [single(seats) for seats in ranks] == [[5, 6], [1, 2]]
    assert [format_cpu_list(seats.threads) for seats in ranks] == ["4-7", "0-2"]


@pytest.mark.parametrize(("cpus", "single_seats"), [({70}, [70]), ({70, 182}, [182])])
def test_cpusets_of_one_and_two_cpus_run(make_root, make_cuda, cpus, single_seats):
    machine = read_machine(
        make_root("two_nodes_eight_gpus"), affinity=cpus, cuda=make_cuda(DGX[4:])
    )
    for seats in all_ranks(machine, 8):
        assert seats.workers == (frozenset(cpus),)
    assert single(plan_seats(machine, gpu=0, pin="core")) == single_seats


def test_a_mask_of_the_ranks_own_is_not_divided_again(make_root, make_cuda):
    own = parse_cpu_list("14-27,126-139")
    machine = read_machine(
        make_root("two_nodes_eight_gpus"),
        affinity=own,
        parent_affinity=ALL,
        cuda=make_cuda(DGX),
    )
    seats = plan_seats(machine, local_rank=1, local_world_size=8, gpu=1)
    assert seats.workers == (own,) * 27


def test_a_mask_of_whole_nodes_is_divided_among_their_ranks(make_root, make_cuda):
    machine = read_machine(
        make_root("two_nodes_eight_gpus"),
        affinity=NODES[1],
        parent_affinity=ALL,
        cuda=make_cuda(DGX),
    )
    seats = plan_seats(machine, local_rank=6, local_world_size=8, gpu=6, pin="core")
    assert min(single(seats)) == 56 + 28 + 1
    assert seats.bound_workers == len(seats.workers) == 13  # 112 CPUs for 8 ranks, less one


def test_a_quota_is_divided_among_the_ranks(dgx):
    limited = replace(dgx, quota=19.5)
    assert [len(seats.workers) for seats in all_ranks(limited, 8)] == [2] * 8
    assert len(plan_seats(limited, gpu=0).workers) == 19


def test_a_container_without_sysfs_binds_nobody(make_root, make_cuda):
    machine = read_machine(make_root(), affinity=range(4), cuda=make_cuda(DGX))
    seats = plan_seats(machine, gpu=0)
    assert seats.workers == (frozenset(),) * 3
    assert seats.node is None
    assert seats.unbound_because == ""


def test_the_cpu_as_device_has_no_node(dgx):
    seats = plan_seats(dgx, local_world_size=2)
    assert (seats.node, seats.gpu, seats.bound_workers) == (None, None, 0)
    assert len(seats.workers) == 111


@st.composite
def machines(draw):
    threads = draw(st.integers(1, 3))
    cores = draw(st.integers(1, 12))
    allowed = draw(st.frozensets(st.integers(0, threads * cores - 1), min_size=1))
    split = draw(st.integers(0, cores))
    groups = [[core + cores * thread for thread in range(threads)] for core in range(cores)]
    nodes = (groups[:split], groups[split:])
    return Machine(
        allowed=allowed,
        quota=draw(st.none() | st.floats(0.1, 40)),
        own_mask=draw(st.booleans()),
        nodes=tuple(
            NumaNode(i, allowed & {cpu for group in node for cpu in group})
            for i, node in enumerate(nodes)
        ),
        cores=tuple(part for group in groups if (part := tuple(c for c in group if c in allowed))),
        gpus=tuple(
            # Only index and node count here.
            read_gpu(i, draw(st.sampled_from([0, 1, None])))
            for i in range(draw(st.integers(1, 8)))
        ),
    )


def read_gpu(index, node):
    from streamloader.topology import Gpu

    return Gpu(index, "GPU", None, node, "" if node is not None else "unknown")


@given(machines(), st.integers(1, 9), st.none() | st.integers(1, 60))
def test_on_any_machine_seats_are_allowed_and_nobody_is_stacked(machine, ranks, num_workers):
    for pin in ("node", "core", "off"):
        for seats in all_ranks(machine, ranks, num_workers=num_workers, pin=pin):
            assert len(seats.workers) >= 1
            if num_workers is not None:
                assert len(seats.workers) == max(1, -(-num_workers // ranks))
            for cpus in seats.workers:
                assert cpus <= machine.allowed
                assert pin != "off" or not cpus
                if seats.node is not None:
                    assert cpus <= seats.node.cpus
            if pin == "core":
                assert max(Counter(single(seats)).values(), default=1) == 1

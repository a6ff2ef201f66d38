"""What is read from recorded machines."""

from __future__ import annotations

import pytest

from streamloader.topology import NumaNode, format_cpu_list, parse_cpu_list, read_machine

ALL = frozenset(range(224))
CPUSET = "sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/cpuset.cpus.effective"
CPU_MAX = "sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/cpu.max"


def test_one_node(make_root):
    machine = read_machine(make_root("one_node"), affinity={0, 1})
    assert machine.nodes == (NumaNode(0, frozenset({0, 1})),)
    assert machine.cores == ((0,), (1,))
    assert machine.quota is None
    assert machine.usable_cpus == 2
    assert machine.gpus == ()


def test_two_nodes_with_hardware_threads(make_root):
    machine = read_machine(make_root("two_nodes_eight_gpus"), affinity=ALL)
    lists = [format_cpu_list(node.cpus) for node in machine.nodes]
    assert lists == ["0-55,112-167", "56-111,168-223"]
    assert machine.cores[:2] == ((0, 112), (1, 113))
    assert len(machine.cores) == 112


def test_hardware_threads_beside_one_another(make_root):
    machine = read_machine(make_root("one_node_smt"), affinity=range(16))
    assert machine.cores == tuple((cpu, cpu + 1) for cpu in range(0, 16, 2))


def test_the_siblings_file_of_older_kernels_is_read_too(make_root):
    files = {f"sys/devices/system/cpu/cpu{c}/topology/thread_siblings_list": "0-1" for c in (0, 1)}
    machine = read_machine(make_root(files=files), affinity={0, 1})
    assert machine.cores == ((0, 1),)


def test_a_cpu_that_is_switched_off_is_nowhere(make_root):
    machine = read_machine(make_root("cpu_3_offline"), affinity=parse_cpu_list("0-2,4-7"))
    assert [format_cpu_list(node.cpus) for node in machine.nodes] == ["0-2", "4-7"]
    assert machine.cores == ((0,), (1,), (2,), (4,), (5,), (6,), (7,))


@pytest.mark.parametrize("cpus", [{70}, {70, 182}])
def test_a_cpuset_of_few_cpus_is_what_the_mask_says(make_root, cpus):
    root = make_root("two_nodes_eight_gpus", {CPUSET: format_cpu_list(cpus)})
    machine = read_machine(root, affinity=cpus, parent_affinity=ALL)
    assert machine.usable_cpus == len(cpus)
    assert machine.nodes == (NumaNode(0, frozenset()), NumaNode(1, frozenset(cpus)))
    assert machine.usable_nodes == (NumaNode(1, frozenset(cpus)),)
    assert machine.cores == (tuple(sorted(cpus)),)


def test_a_quota_lowers_the_usable_cpus_and_not_the_mask(make_root):
    root = make_root("two_nodes_eight_gpus", {CPU_MAX: "350000 100000"})
    machine = read_machine(root, affinity=ALL)
    assert machine.quota == 3.5
    assert machine.usable_cpus == 4
    assert machine.allowed == ALL


def test_a_container_without_sysfs_still_has_its_cpus(make_root, make_cuda):
    machine = read_machine(make_root(), affinity={2, 5}, cuda=make_cuda(["0000:1b:00.0"]))
    assert machine.nodes == ()
    assert machine.cores == ((2,), (5,))
    assert machine.usable_cpus == 2
    assert machine.gpus[0].node is None


@pytest.mark.parametrize(
    ("mask", "parent", "cpuset", "own"),
    [
        ("0-223", "0-223", "0-223", False),  # nobody bound anything
        ("0-7", "0-7", "0-223", False),  # taskset around the launcher
        ("0-7", "0-223", "0-223", True),  # the launcher gave each rank its cores
        ("0-55,112-167", "0-223", "0-223", False),  # the launcher bound ranks to their nodes
        ("0-31", "0-223", "0-31", False),  # the batch system confined the whole job
        ("0-7", "0-223", "0-31", True),  # it did, and gave each rank its cores
        ("0-31,56-60", "0-223", "0-31,56-60", False),
    ],
)
def test_a_mask_is_the_ranks_own_only_if_it_was_narrowed_for_it(
    make_root, mask, parent, cpuset, own
):
    machine = read_machine(
        make_root("two_nodes_eight_gpus", {CPUSET: cpuset}),
        affinity=parse_cpu_list(mask),
        parent_affinity=parse_cpu_list(parent),
    )
    assert machine.own_mask is own


def test_the_live_machine_can_be_read():
    machine = read_machine()
    assert machine.usable_cpus >= 1
    assert {cpu for core in machine.cores for cpu in core} == machine.allowed

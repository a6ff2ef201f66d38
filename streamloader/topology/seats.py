"""Which CPUs each decode worker of a rank gets. Arithmetic only: nothing is looked up here.

Ranks of one NUMA node share its CPUs by local rank, whole cores where there are enough. Every rank
keeps one core, or at least one CPU, free of seats: its trainer's thread and its event loop run
there. A worker too many for the CPUs gets no seat instead of sharing one: it runs wherever the
scheduler finds room.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Literal

from streamloader.topology.cpu_list import format_cpu_list
from streamloader.topology.machine import Machine, NumaNode

PinWorkers = Literal["node", "core", "off"]
PIN_WORKERS: tuple[PinWorkers, ...] = ("node", "core", "off")

Core = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Seats:
    """Where the threads and slots of one rank belong.

    Attributes:
        local_rank: the rank's number on its machine.
        gpu: its GPU's number for CUDA, None for the CPU.
        node: the GPU's node, with the allowed CPUs of it: the place for the rank's slots. None
            where it makes no difference or cannot be.
        threads: CPUs for the rank's other threads, the event loop's say; empty leaves them.
        workers: CPUs of each worker; empty leaves it where the process may run.
        unbound_because: what keeps the rank from its GPU's node, else empty.
    """

    local_rank: int
    gpu: int | None
    node: NumaNode | None
    threads: frozenset[int]
    workers: tuple[frozenset[int], ...]
    unbound_because: str = ""

    @property
    def bound_workers(self) -> int:
        """Workers that have CPUs of their own."""
        return sum(bool(cpus) for cpus in self.workers)


def plan_seats(
    machine: Machine,
    *,
    local_rank: int = 0,
    local_world_size: int = 1,
    gpu: int | None = None,
    num_workers: int | None = None,
    pin: PinWorkers = "node",
) -> Seats:
    """Gives each worker of one rank its CPUs.

    Args:
        machine: the machine as the rank sees it, with its GPUs if ``gpu`` is given.
        local_rank, local_world_size: which of how many ranks of this machine.
        gpu: number of the rank's GPU; the other ranks are taken to use
            ``local_rank % number of GPUs``.
        num_workers: of all local ranks together; None: one less than the rank's CPUs.
        pin: ``"node"``: a worker may use every CPU of its GPU's node; nobody is bound on a machine
            with one node. ``"core"``: one CPU each, first a thread of every core, then their
            siblings. ``"off"``: nobody is bound.
    """
    place = local_rank % local_world_size
    node, unbound_because = _gpu_node(machine, gpu)
    count = _num_workers(machine, local_world_size, num_workers)
    sharers = _sharers(machine, node, place, local_world_size)
    own_cores = _share(_cores_of(machine, node), sharers.index(place), len(sharers))
    seats: list[frozenset[int]] = []
    if pin == "core":
        seats = [frozenset({cpu}) for cpu in _single_seats(own_cores)]
    elif pin == "node" and node is not None:
        cpus = sum(len(core) for core in own_cores)
        seats = [node.cpus] * max(1, cpus - 1)
    unseated = [frozenset[int]()] * max(0, count - len(seats))
    return Seats(
        local_rank=local_rank,
        gpu=gpu,
        node=node,
        threads=frozenset() if node is None or pin == "off" else node.cpus,
        workers=tuple(seats[:count] + unseated),
        unbound_because=unbound_because,
    )


def _gpu_node(machine: Machine, gpu: int | None) -> tuple[NumaNode | None, str]:
    """The node that the rank belongs to, and why there is none although there might be."""
    if gpu is None or len(machine.nodes) < 2:
        return None, ""
    found = machine.gpus[gpu]
    if found.node is None:
        return None, f"cuda:{gpu}: {found.unknown_because}"
    for node in machine.usable_nodes:
        if node.index == found.node:
            return node, ""
    allowed = format_cpu_list(machine.allowed)
    return None, f"cuda:{gpu} is on NUMA node {found.node}, of which CPUs {allowed} are no part"


def _num_workers(machine: Machine, local_world_size: int, node_total: int | None) -> int:
    if node_total is not None:
        return max(1, -(-node_total // local_world_size))
    # The quota is the group's, hence everybody's, also where each rank has CPUs of its own.
    sharing = 1 if machine.own_mask else local_world_size
    cpus = len(machine.allowed) // sharing
    if machine.quota is not None:
        cpus = min(cpus, -int(-machine.quota // local_world_size))
    return max(1, cpus - 1)


def _sharers(
    machine: Machine, node: NumaNode | None, place: int, local_world_size: int
) -> list[int]:
    """The local ranks that share this rank's CPUs, itself among them."""
    if machine.own_mask:
        return [place]
    if node is None:
        return list(range(local_world_size))
    if len(machine.gpus) == 1:
        # Each rank is shown its own GPU only. Nodes have equally many of them, as a rule.
        count = -(-local_world_size // len(machine.usable_nodes))
        first = place - place % count
        return list(range(first, first + count))
    nodes = [machine.gpus[rank % len(machine.gpus)].node for rank in range(local_world_size)]
    return [rank for rank, at in enumerate(nodes) if rank == place or at == node.index]


def _cores_of(machine: Machine, node: NumaNode | None) -> list[Core]:
    if node is None:
        return list(machine.cores)
    parts = (tuple(cpu for cpu in core if cpu in node.cpus) for core in machine.cores)
    return [core for core in parts if core]


def _share(cores: list[Core], place: int, sharers: int) -> list[Core]:
    """The cores of one of several sharers; sharers of fewer cores meet on one."""
    first = place * len(cores) // sharers
    end = (place + 1) * len(cores) // sharers
    return cores[first : max(end, first + 1)]


def _single_seats(cores: list[Core]) -> list[int]:
    """CPUs for one worker each, in the order of use: cores first, then their siblings.

    The first core gets no seat. If it is the only one, its first CPU gets none, unless that is the
    only one too.
    """
    if len(cores) == 1:
        return list(cores[0][1:] or cores[0])
    by_thread = zip_longest(*cores[1:])
    return [cpu for cpu in chain.from_iterable(by_thread) if cpu is not None]

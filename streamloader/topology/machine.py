"""The CPUs, NUMA nodes and GPUs of this process.

``os.cpu_count`` counts what the machine has; a container, a batch system, a launcher or
``taskset`` usually allows less. The affinity mask says which CPUs, the quota of the control group
how much time on them.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streamloader.topology.control_group import cpu_quota, cpuset
from streamloader.topology.cpu_list import read_cpu_list
from streamloader.topology.gpus import Gpu, read_gpus

ROOT = Path("/")


@dataclass(frozen=True, slots=True)
class NumaNode:
    """One NUMA node.

    Attributes:
        index: its number.
        cpus: those of its CPUs that this process may use; may be none.
    """

    index: int
    cpus: frozenset[int]


@dataclass(frozen=True, slots=True)
class Machine:
    """What one process sees of the machine.

    Attributes:
        allowed: CPUs that the process may run on.
        quota: CPU time per time that its control group grants, in CPUs; None without a limit.
        own_mask: ``allowed`` was narrowed for this process alone, so it shares it with no other
            local rank.
        nodes: NUMA nodes by number; empty where the system does not tell.
        cores: the allowed CPUs by physical core, in order of the lowest; the CPUs of one core are
            its hardware threads.
        gpus: GPUs in CUDA's order; empty unless asked for.
    """

    allowed: frozenset[int]
    quota: float | None
    own_mask: bool
    nodes: tuple[NumaNode, ...]
    cores: tuple[tuple[int, ...], ...]
    gpus: tuple[Gpu, ...]

    @property
    def usable_cpus(self) -> int:
        """How many CPUs the process may keep busy: allowed, and within the quota rounded up."""
        return _usable(len(self.allowed), self.quota)

    @property
    def usable_nodes(self) -> tuple[NumaNode, ...]:
        """The nodes with CPUs that the process may use."""
        return tuple(node for node in self.nodes if node.cpus)


def allowed_cpus(root: Path = ROOT) -> int:
    """The number of CPUs this process may keep busy, at least 1.

    Args:
        root: folder that stands for ``/`` when control group files are read.
    """
    return _usable(len(_affinity(0)), cpu_quota(root))


def read_machine(
    root: Path = ROOT,
    *,
    affinity: Collection[int] | None = None,
    parent_affinity: Collection[int] | None = None,
    cuda: Any | None = None,
) -> Machine:
    """Looks at the machine. Whatever cannot be read is taken for absent.

    Args:
        root: folder that stands for ``/``.
        affinity: CPUs that the process may run on; by default those of the calling thread, which
            new threads inherit.
        parent_affinity: the same of the process that started this one; by default as it is.
        cuda: ``torch.cuda``, to look at GPUs.
    """
    allowed = frozenset(_affinity(0) if affinity is None else affinity)
    if parent_affinity is None:
        parent_affinity = _parent_affinity(allowed) if affinity is None else allowed
    whole_nodes = _read_nodes(root)
    granted = cpuset(root) or _online(root) or allowed
    return Machine(
        allowed=allowed,
        quota=cpu_quota(root),
        own_mask=_is_own(allowed, frozenset(parent_affinity), granted, whole_nodes),
        nodes=tuple(NumaNode(i, cpus & allowed) for i, cpus in sorted(whole_nodes.items())),
        cores=_read_cores(root, allowed),
        gpus=() if cuda is None else read_gpus(root, cuda),
    )


def _usable(cpus: int, quota: float | None) -> int:
    return max(1, cpus if quota is None else min(cpus, math.ceil(quota)))


def _affinity(pid: int) -> set[int]:
    if sys.platform != "linux":
        # No masks there, so the machine's count is the allowed one.
        return set(range(os.cpu_count() or 1))
    return os.sched_getaffinity(pid)


def _parent_affinity(own: frozenset[int]) -> Collection[int]:
    """The parent's mask; the own one if the parent is gone or outside the container."""
    try:
        return _affinity(os.getppid())
    except OSError:
        return own


def _is_own(
    allowed: frozenset[int],
    parent: frozenset[int],
    granted: frozenset[int],
    nodes: dict[int, frozenset[int]],
) -> bool:
    """Whether a launcher bound this process apart from the other ranks.

    A mask that came with the parent, or that is all the control group has, is everybody's. So is
    one of whole nodes: launchers bind all ranks of a node to it.
    """
    if allowed == parent or allowed >= granted:
        return False
    touched = [cpus & granted for cpus in nodes.values() if cpus & allowed]
    return not touched or allowed != frozenset().union(*touched)


def _online(root: Path) -> frozenset[int] | None:
    return read_cpu_list(root / "sys/devices/system/cpu/online")


def _read_nodes(root: Path) -> dict[int, frozenset[int]]:
    """CPUs by node, allowed or not."""
    folder = root / "sys/devices/system/node"
    online = read_cpu_list(folder / "online") or frozenset()
    lists = {node: read_cpu_list(folder / f"node{node}" / "cpulist") for node in online}
    return {node: cpus for node, cpus in lists.items() if cpus is not None}


def _read_cores(root: Path, allowed: frozenset[int]) -> tuple[tuple[int, ...], ...]:
    """The allowed CPUs by core; a CPU whose siblings cannot be read is a core of its own."""
    cores: list[tuple[int, ...]] = []
    left = set(allowed)
    for cpu in sorted(allowed):
        if cpu not in left:
            continue
        folder = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        siblings = read_cpu_list(folder / "core_cpus_list") or read_cpu_list(
            folder / "thread_siblings_list"
        )
        core = {cpu} | (left & (siblings or frozenset()))
        left -= core
        cores.append(tuple(sorted(core)))
    return tuple(cores)

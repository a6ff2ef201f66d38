"""What this process may use of the machine, and where its threads and memory belong.

``read_machine`` looks: CPUs, quota, NUMA nodes, GPUs. ``plan_seats`` decides, without looking
anywhere. ``bind_thread`` and ``pages_by_node`` do it and check it. Everything is read below a root
folder, so a recorded tree stands for any machine. Importing it does not import torch.
"""

from __future__ import annotations

from streamloader.topology.binding import bind_thread, lower_priority
from streamloader.topology.cpu_list import format_cpu_list, parse_cpu_list
from streamloader.topology.gpus import Gpu, visible_cuda
from streamloader.topology.machine import Machine, NumaNode, allowed_cpus, read_machine
from streamloader.topology.numa_maps import pages_by_node
from streamloader.topology.seats import PIN_WORKERS, PinWorkers, Seats, plan_seats

__all__ = [
    "PIN_WORKERS",
    "Gpu",
    "Machine",
    "NumaNode",
    "PinWorkers",
    "Seats",
    "allowed_cpus",
    "bind_thread",
    "format_cpu_list",
    "lower_priority",
    "pages_by_node",
    "parse_cpu_list",
    "plan_seats",
    "read_machine",
    "visible_cuda",
]

"""Where a thread runs, and before whom."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Collection

from streamloader.topology.cpu_list import format_cpu_list

_NICEST = 19


def bind_thread(cpus: Collection[int]) -> str | None:
    """Keeps the calling thread, and threads that it starts from now on, on ``cpus``.

    A place is a matter of speed alone, so a refusal is no error: the thread stays where it was.

    Returns:
        None, or why the system refused.
    """
    if sys.platform != "linux":
        return "this system cannot bind threads to CPUs"
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as error:
        return f"the system refused CPUs {format_cpu_list(cpus)}: {error.strerror or error}"
    return None


def lower_priority(by: int) -> str | None:
    """Lets the calling thread, and threads that it starts from now on, yield to others.

    It still gets whatever time of a CPU nobody else wants.

    Args:
        by: steps of niceness, of which there are 19 at most.

    Returns:
        None, or why the system refused.
    """
    if sys.platform != "linux":
        return "this system has no priorities of single threads"
    thread = threading.get_native_id()
    try:
        now = os.getpriority(os.PRIO_PROCESS, thread)
        os.setpriority(os.PRIO_PROCESS, thread, min(_NICEST, now + by))
    except OSError as error:
        return f"the system refused a lower priority: {error.strerror or error}"
    return None

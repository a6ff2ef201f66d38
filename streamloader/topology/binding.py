"""Keeping a thread on some CPUs."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection

from streamloader.topology.cpu_list import format_cpu_list


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

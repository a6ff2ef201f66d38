"""What this process may use of the machine.

``os.cpu_count`` counts what the machine has; a container, a batch system or ``taskset``
usually allows less. The allowed number is the smaller of the scheduler's affinity mask and
the quota of the control group, rounded up.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

_SYS = Path("/")


def allowed_cpus(root: Path = _SYS) -> int:
    """The number of CPUs this process may keep busy, at least 1.

    Args:
        root: folder that stands for ``/`` when control group files are read.
    """
    count = len(os.sched_getaffinity(0))
    quota = _cgroup_quota(root)
    if quota is not None:
        count = min(count, math.ceil(quota))
    return max(1, count)


def _cgroup_quota(root: Path) -> float | None:
    """CPU quota in CPUs of the control group (version 2, else 1), None if unlimited."""
    v2 = _read_words(root / "sys/fs/cgroup/cpu.max")
    if len(v2) == 2 and v2[0] != "max":
        return _ratio(v2[0], v2[1])
    v1 = root / "sys/fs/cgroup/cpu"
    quota = _read_words(v1 / "cpu.cfs_quota_us")
    period = _read_words(v1 / "cpu.cfs_period_us")
    if quota and period and not quota[0].startswith("-"):
        return _ratio(quota[0], period[0])
    return None


def _read_words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def _ratio(quota_us: str, period_us: str) -> float | None:
    try:
        return int(quota_us) / int(period_us)
    except (ValueError, ZeroDivisionError):
        return None

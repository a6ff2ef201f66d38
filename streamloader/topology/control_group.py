"""What the control group of this process grants, in version 1 and 2 of their file system.

Groups are nested and each may set a limit, so every one from the process's own up to the root that
it can see counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from streamloader.topology.cpu_list import read_cpu_list

_MOUNT = "sys/fs/cgroup"
_UNIFIED = ""


def cpu_quota(root: Path) -> float | None:
    """CPU time per time, in CPUs; the least of the nested groups, None if none is set."""
    quotas = (_quota_in(folder) for folder in _own_folders(root, "cpu"))
    return min((quota for quota in quotas if quota is not None), default=None)


def cpuset(root: Path) -> frozenset[int] | None:
    """CPUs that the innermost group with such a list may use, None if there is none.

    The affinity of a process never leaves this set, but may be smaller.
    """
    for folder in _own_folders(root, "cpuset"):
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"):
            cpus = read_cpu_list(folder / name)
            if cpus:
                return cpus
    return None


def _own_folders(root: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's groups that may limit ``controller``, innermost first.

    Some do not exist: a container may see its own group at the mount point and be told a path that
    only the host has.
    """
    groups = _own_groups(root)
    yield from _upwards(root / _MOUNT, groups.get(_UNIFIED, "/"))
    mounts = {controller: "/"}
    for names, path in groups.items():
        if controller in names.split(","):
            mounts = {controller: path, names: path}
    for mount, path in mounts.items():
        yield from _upwards(root / _MOUNT / mount, path)


def _own_groups(root: Path) -> dict[str, str]:
    """Path of the process's group by the controllers of its hierarchy; "" is version 2."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return {}
    fields = (line.split(":", 2) for line in lines)
    return {field[1]: field[2] for field in fields if len(field) == 3}


def _upwards(mount: Path, group: str) -> Iterator[Path]:
    names = PurePosixPath(group).parts[1:]
    # A path such as /../.. leads out of the group namespace, where nothing can be seen.
    inside = () if ".." in names else names
    for depth in range(len(inside), -1, -1):
        yield mount.joinpath(*inside[:depth])


def _quota_in(folder: Path) -> float | None:
    limit = _read_words(folder / "cpu.max")
    if len(limit) == 2:
        return _ratio(*limit)
    quota = _read_words(folder / "cpu.cfs_quota_us")
    period = _read_words(folder / "cpu.cfs_period_us")
    return _ratio(quota[0], period[0]) if quota and period else None


def _read_words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except (OSError, UnicodeDecodeError):
        return []


def _ratio(quota_us: str, period_us: str) -> float | None:
    """None for "max", for -1, and for what is no number."""
    try:
        quota = int(quota_us) / int(period_us)
    except (ValueError, ZeroDivisionError):
        return None
    return quota if quota > 0 else None

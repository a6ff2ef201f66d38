"""The kernel's way to write sets of CPUs and nodes: ``0-3,8``."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path


def parse_cpu_list(text: str) -> frozenset[int]:
    """The numbers of a list such as ``0-3,8``; an empty text is the empty set.

    Raises:
        ValueError: another syntax.
    """
    numbers: set[int] = set()
    for part in text.strip().split(","):
        if not part:
            continue
        first, dash, last = part.partition("-")
        numbers.update(range(int(first), int(last if dash else first) + 1))
    return frozenset(numbers)


def format_cpu_list(cpus: Collection[int]) -> str:
    """The shortest list that :func:`parse_cpu_list` reads as ``cpus``."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def read_cpu_list(path: Path) -> frozenset[int] | None:
    """The list in a file of ``/sys``; None where there is no such file or no list in it."""
    try:
        return parse_cpu_list(path.read_text())
    except (OSError, ValueError):
        return None

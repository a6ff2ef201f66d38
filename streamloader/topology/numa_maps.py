"""On which NUMA nodes the pages of a mapping really lie, as the kernel counts them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from pathlib import Path

from streamloader.topology.machine import ROOT

_PAGES_ON_NODE = re.compile(r"N(\d+)=(\d+)")


def pages_by_node(addresses: Collection[int], root: Path = ROOT) -> dict[int, int]:
    """Pages by node of the mappings of this process that hold ``addresses``.

    The kernel counts by mapping and joins neighbours of one kind, so a mapping counts once however
    many of the addresses it holds, and whole. It walks every page of the process: this takes
    about a second where hundreds of gigabytes are mapped.

    Returns:
        Node -> pages; empty if the system does not tell.
    """
    wanted = sorted(addresses)
    held: dict[int, str] = {}
    try:
        with (root / "proc/self/numa_maps").open() as lines:
            previous = ""
            for line in lines:
                start = int(line.split(maxsplit=1)[0], 16)
                while wanted and wanted[0] < start:
                    held[wanted.pop(0)] = previous
                previous = line
                if not wanted:
                    break
            held.update(dict.fromkeys(wanted, previous))
    except OSError:
        return {}
    pages: Counter[int] = Counter()
    for line in set(held.values()):
        pages.update({int(node): int(count) for node, count in _PAGES_ON_NODE.findall(line)})
    return dict(sorted(pages.items()))

"""Which NUMA node each visible GPU hangs on: by its PCI address, never by its number.

CUDA numbers the devices that ``CUDA_VISIBLE_DEVICES`` names, in that order; only the PCI address
is the same for CUDA and for the kernel.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU that CUDA shows to this process.

    Attributes:
        index: its number for CUDA, as in ``cuda:1``.
        name: of the product.
        pci: its address as sysfs writes it, ``0000:1b:00.0``; None if torch does not tell.
        node: its NUMA node, None if unknown.
        unknown_because: why ``node`` is None, else empty.
    """

    index: int
    name: str
    pci: str | None
    node: int | None
    unknown_because: str = ""


def visible_cuda() -> Any | None:
    """``torch.cuda`` where torch is installed and sees a device, else None. Imports torch."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    return torch.cuda if torch.cuda.device_count() else None


def read_gpus(root: Path, cuda: Any) -> tuple[Gpu, ...]:
    """The GPUs of ``cuda`` (``torch.cuda``), in its order, with the nodes that ``root`` knows."""
    gpus = []
    for index in range(cuda.device_count()):
        properties = cuda.get_device_properties(index)
        pci = _pci_address(properties)
        node, reason = _node_of(root, pci)
        gpus.append(Gpu(index, properties.name, pci, node, reason))
    return tuple(gpus)


def _pci_address(properties: Any) -> str | None:
    names = ("pci_domain_id", "pci_bus_id", "pci_device_id")
    if not all(hasattr(properties, name) for name in names):
        return None
    domain, bus, device = (getattr(properties, name) for name in names)
    # A GPU is function 0 of its slot; its sound device and its USB port are the others.
    return f"{domain:04x}:{bus:02x}:{device:02x}.0"


def _node_of(root: Path, pci: str | None) -> tuple[int | None, str]:
    if pci is None:
        return None, "this version of torch does not tell its PCI address"
    try:
        node = int((root / "sys/bus/pci/devices" / pci / "numa_node").read_text())
    except (OSError, ValueError):
        return None, f"/sys/bus/pci/devices/{pci}/numa_node cannot be read"
    if node < 0:
        return None, f"the system does not know the node of {pci}"
    return node, ""

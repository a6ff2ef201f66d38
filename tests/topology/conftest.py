"""Machines as ``machines/*.txt`` record them: a line for each line that ``grep . FILES`` prints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

MACHINES = Path(__file__).parent / "machines"


class FakeCuda:
    """``torch.cuda`` with the GPUs at these PCI addresses, in this order."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses

    def device_count(self) -> int:
        return len(self._addresses)

    def get_device_properties(self, index: int) -> SimpleNamespace:
        domain, bus, device = self._addresses[index].partition(".")[0].split(":")
        return SimpleNamespace(
            name="GPU",
            pci_domain_id=int(domain, 16),
            pci_bus_id=int(bus, 16),
            pci_device_id=int(device, 16),
        )


@pytest.fixture
def make_cuda() -> type[FakeCuda]:
    return FakeCuda


@pytest.fixture
def make_root(tmp_path: Path) -> Callable[..., Path]:
    """Writes a recorded machine, "" for one that shows nothing; more files replace its own."""

    def write(machine: str = "", files: Mapping[str, str] | None = None) -> Path:
        recorded: dict[str, str] = {}
        if machine:
            for line in (MACHINES / f"{machine}.txt").read_text().splitlines():
                # Only a PCI address has a colon in a path, and a node's number has none.
                is_pci = line.startswith("/sys/bus/pci")
                path, _, text = line.rpartition(":") if is_pci else line.partition(":")
                recorded[path] = recorded.get(path, "") + text + "\n"
        for path, text in {**recorded, **(files or {})}.items():
            file = tmp_path / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return tmp_path

    return write

"""What torch and sysfs say of real GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from streamloader.topology import read_machine, visible_cuda

torch = pytest.importorskip("torch")

DEVICES = Path("/sys/bus/pci/devices")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]

SCRIPT = """
import json
from streamloader.topology import read_machine, visible_cuda
print(json.dumps([[gpu.pci, gpu.node] for gpu in read_machine(cuda=visible_cuda()).gpus]))
"""


def test_every_gpu_has_an_address_and_the_node_that_sysfs_gives_it():
    gpus = read_machine(cuda=visible_cuda()).gpus
    assert len(gpus) == torch.cuda.device_count()
    assert len({gpu.pci for gpu in gpus}) == len(gpus)
    for gpu in gpus:
        assert gpu.pci is not None
        if not (DEVICES / gpu.pci).exists():
            assert "cannot be read" in gpu.unknown_because
            continue
        node = int((DEVICES / gpu.pci / "numa_node").read_text())
        assert gpu.node == (node if node >= 0 else None)
        assert (DEVICES / gpu.pci / "vendor").read_text().strip() == "0x10de"


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_permuted_visible_devices_are_found_at_their_addresses():
    def seen(visible: str) -> list[list[object]]:
        result = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": visible},
            capture_output=True,
            text=True,
            timeout=100,
            check=True,
        )
        found: list[list[object]] = json.loads(result.stdout)
        return found

    assert seen("1,0") == seen("0,1")[::-1]
    assert seen("1") == seen("0,1")[1:]

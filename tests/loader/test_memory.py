"""What the process really takes, against ``memory_limit``."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from streamloader import DatasetWriter

RECORD_BYTES = 100_000
NUM_RECORDS = 1_500
MIB = 1 << 20


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """150 MB of records in blocks of about 1 MiB."""
    path = tmp_path_factory.mktemp("large") / "set"
    rng = np.random.default_rng(0)
    with DatasetWriter(path, {"data": ("uint8", (RECORD_BYTES,))}, shard_bytes="16mib") as writer:
        for _ in range(NUM_RECORDS):
            writer.write({"data": rng.integers(0, 256, RECORD_BYTES, dtype=np.uint8)})
    return path


def run(path: Path, memory_limit: int, epochs: int) -> dict[str, int]:
    """Iterates in a fresh process; returns what it took and what the loader says it took."""
    script = f"""
        import json, torch
        from streamloader import StreamLoader

        def resident(field):
            with open("/proc/self/status") as status:
                return next(int(l.split()[1]) * 1024 for l in status if l.startswith(field))

        def peak_of(epochs):
            loader = StreamLoader({str(path)!r}, batch_size=16, shuffle=True, device="cpu",
                                  memory_limit={memory_limit}, num_workers=2)
            with loader:
                samples = sum(int(b["valid"].sum()) for _ in range(epochs) for b in loader)
                return samples, loader.stats()["memory_bytes"]

        torch.zeros(1)
        with open("/proc/self/clear_refs", "w") as refs:
            refs.write("5")                      # the peak starts anew
        before = resident("VmRSS")
        samples, account = peak_of({epochs})
        used = account["used"]
        print(json.dumps(dict(samples=samples, grown=resident("VmHWM") - before,
                              told=used["blocks_peak"] + used["tails"] + used["slots"])))
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    told: dict[str, int] = json.loads(result.stdout)
    return told


@pytest.mark.parametrize("limit_mib", [76, pytest.param(110, marks=pytest.mark.slow)])
def test_the_process_grows_by_no_more_than_the_limit_and_its_own_code(large, limit_mib):
    took = run(large, limit_mib * MIB, epochs=3)
    assert took["samples"] == 3 * NUM_RECORDS
    assert took["told"] <= limit_mib * MIB
    # Threads, libraries that are loaded on first use, and read buffers of the store.
    assert took["grown"] <= took["told"] + 40 * MIB

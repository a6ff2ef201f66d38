"""Scripts as torchrun runs them: a process for each rank of this machine, with a gloo group."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Ended:
    """What the ranks left: the JSON that each wrote to ``rank-<n>.json``, and all their logs."""

    reports: list[dict[str, Any]]
    log: str


def run_ranks(script: str, dataset: Path, folder: Path, processes: int) -> Ended:
    """Runs ``script`` with the data set and the folder for reports as its arguments.

    Raises:
        AssertionError: a rank failed; with the end of what it said.
    """
    path = folder / "train.py"
    path.write_text(textwrap.dedent(script))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={processes}", str(path), str(dataset), str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    reports = [folder / f"rank-{rank}.json" for rank in range(processes)]
    return Ended([json.loads(report.read_text()) for report in reports], ended.stderr)

"""Ranks for real: processes under torchrun, with a gloo group that the loader leaves alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from picture_sets import NUM_PICTURES, write_pictures

from streamloader import CenterCrop, StreamLoader

BATCH_SIZE = 4

TRAIN = """
    import json, sys
    from pathlib import Path
    import torch.distributed as dist
    from streamloader import CenterCrop, StreamLoader

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    with StreamLoader(sys.argv[1], batch_size=4, transform=CenterCrop(8), shuffle=True,
                      device="cpu", num_workers=2) as stream:
        epochs, states = [], []
        for _ in range(2):
            epoch = []
            for batch in stream:
                epoch.append(batch["index"][batch["valid"]].tolist())
                dist.barrier()  # one rank with a step more would hang here
            epochs.append(epoch)
            states.append(stream.state_dict())
        counts = stream.stats()["counters"]
    report = {"epochs": epochs, "states": states, "workers": stream.stats()["workers"],
              "read": counts["fetch.bytes"]}
    Path(sys.argv[2], f"rank-{rank}.json").write_text(json.dumps(report))
    dist.destroy_process_group()
"""


def train(dataset: Path, folder: Path, processes: int) -> list[dict]:
    script = folder / "train.py"
    script.write_text(textwrap.dedent(TRAIN))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={processes}", str(script), str(dataset), str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=110, check=False
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    reports = [folder / f"rank-{rank}.json" for rank in range(processes)]
    return [json.loads(report.read_text()) for report in reports]


def check(dataset: Path, reports: list[dict]) -> None:
    with StreamLoader(
        str(dataset), batch_size=BATCH_SIZE, transform=CenterCrop(8), shuffle=True, device="cpu"
    ) as stream:
        alone = [[n for b in stream for n in b["index"][b["valid"]].tolist()] for _ in range(2)]
        for epoch in range(2):
            steps = [len(report["epochs"][epoch]) for report in reports]
            assert len(set(steps)) == 1
            per_step = zip(*(report["epochs"][epoch] for report in reports), strict=True)
            global_batches = [sorted(n for part in parts for n in part) for parts in per_step]
            size = BATCH_SIZE * len(reports)
            whole = alone[epoch]
            # The same global order for any number of ranks, cut into global batches.
            wanted = [sorted(whole[at : at + size]) for at in range(0, len(whole), size)]
            assert global_batches == wanted
            assert all(report["states"][epoch] == reports[0]["states"][epoch] for report in reports)


@pytest.mark.parametrize(
    "processes",
    [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 4, 8))],
)
def test_ranks_share_an_epoch_in_step_and_without_overlap(pictures, tmp_path, processes):
    reports = train(pictures, tmp_path, processes)
    check(pictures, reports)
    samples = [n for report in reports for step in report["epochs"][0] for n in step]
    assert sorted(samples) == list(range(NUM_PICTURES))
    assert all(report["workers"] == max(1, -(-2 // processes)) for report in reports)


@pytest.mark.slow
@pytest.mark.parametrize("samples", [1, 3, 9])
def test_more_ranks_than_samples_or_shards_stay_in_step(tmp_path, samples):
    dataset = tmp_path / "set"
    write_pictures(dataset, samples)
    check(dataset, train(dataset, tmp_path, 4))

"""Ranks for real: processes under torchrun, with a gloo group that the loader leaves alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from picture_sets import NUM_PICTURES, write_pictures
from torchrun import run_ranks

from streamloader import CenterCrop, DatasetWriter, StreamLoader

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
    return run_ranks(TRAIN, dataset, folder, processes).reports


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


@pytest.mark.timeout(300)
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
@pytest.mark.timeout(300)
@pytest.mark.parametrize("samples", [1, 3, 9])
def test_more_ranks_than_samples_or_shards_stay_in_step(tmp_path, samples):
    dataset = tmp_path / "set"
    write_pictures(dataset, samples)
    check(dataset, train(dataset, tmp_path, 4))


SKIP = """
    import json, sys
    from pathlib import Path
    import torch.distributed as dist
    from streamloader import CenterCrop, StreamLoader

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    with StreamLoader(sys.argv[1], batch_size=8, transform=CenterCrop(8), shuffle=True,
                      device="cpu", on_error="skip", max_bad_fraction=0.2) as stream:
        steps = []
        for batch in stream:
            steps.append(batch["index"][batch["valid"]].tolist())
            dist.barrier()
        state = stream.state_dict()
    report = {"steps": steps, "position": state["position"], "skipped": state["skipped"]}
    Path(sys.argv[2], f"rank-{rank}.json").write_text(json.dumps(report))
    dist.destroy_process_group()
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("processes", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_damaged_samples_of_one_rank_are_named_and_all_ranks_finish_in_step(
    tmp_path, damage, processes
):
    dataset, count, unlucky = tmp_path / "set", 100 * processes, processes - 1
    write_pictures(dataset, count)
    options = {"batch_size": 8, "transform": CenterCrop(8), "shuffle": True, "device": "cpu"}
    with StreamLoader(
        str(dataset), **options, rank=unlucky, world_size=processes, local_world_size=processes
    ) as stream:
        share = [n for batch in stream for n in batch["index"][batch["valid"]].tolist()]
    bad = sorted(share[:: len(share) // processes][:processes])  # 1 % of the data set
    for sample in bad:
        damage(dataset, sample)

    ended = run_ranks(SKIP, dataset, tmp_path, processes)
    assert len({len(report["steps"]) for report in ended.reports}) == 1
    assert {report["position"] for report in ended.reports} == {count}
    skipped = [report["skipped"] for report in ended.reports]
    assert skipped == [len(bad) if rank == unlucky else 0 for rank in range(processes)]
    delivered = [n for report in ended.reports for step in report["steps"] for n in step]
    assert sorted(delivered) == [n for n in range(count) if n not in bad]
    assert all(f"p/{sample}.jpg" in ended.log for sample in bad)


READ = """
    import json, sys
    from pathlib import Path
    import torch.distributed as dist
    from streamloader import StreamLoader

    # What is read ahead for the next epoch is not this epoch's.
    StreamLoader._start_following = lambda self, run: None
    dist.init_process_group("gloo")
    with StreamLoader(sys.argv[1], batch_size=64, shuffle=True, device="cpu") as stream:
        samples = 0
        for batch in stream:
            samples += int(batch["valid"].sum())
            dist.barrier()
        counts = stream.stats()["counters"]
    report = {"samples": samples, "bytes": counts["storage.bytes_read"]}
    Path(sys.argv[2], f"rank-{dist.get_rank()}.json").write_text(json.dumps(report))
    dist.destroy_process_group()
"""
RECORD_BYTES = 10_000
NUM_RECORDS = 12_000


@pytest.fixture(scope="module")
def records(tmp_path_factory) -> Path:
    """120 MB in blocks of 8 records."""
    path = tmp_path_factory.mktemp("records") / "set"
    rng = np.random.default_rng(0)
    fields = {"data": ("uint8", (RECORD_BYTES,))}
    with DatasetWriter(path, fields, shard_bytes="8mib", block_samples=8) as writer:
        for _ in range(NUM_RECORDS):
            writer.write({"data": rng.integers(0, 256, RECORD_BYTES, dtype=np.uint8)})
    return path


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("processes", [2, 3, 4, 8])
def test_each_rank_reads_its_share_of_the_bytes(records, tmp_path, processes):
    reports = run_ranks(READ, records, tmp_path, processes).reports
    assert sum(report["samples"] for report in reports) == NUM_RECORDS
    share = NUM_RECORDS * RECORD_BYTES / processes
    # Manifest and tails of the shards too.
    assert max(report["bytes"] for report in reports) <= 1.05 * share

"""The examples of other trainers, run as a user runs them: stopped, and gone on with exactly."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from picture_sets import NUM_PICTURES, picture

from streamloader import RandomResizedCrop, StreamLoader
from streamloader.convert import convert

EXAMPLES = Path(__file__).parents[2] / "examples"
BATCH_SIZE = 8
STEPS_OF_AN_EPOCH = -(-NUM_PICTURES // BATCH_SIZE)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for number in range(NUM_PICTURES):
        path = folder / "pictures" / ("cat", "dog")[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(number))
    convert(str(folder / "pictures"), str(folder / "set"))
    return folder / "set"


@pytest.fixture(params=["lightning", "accelerate", "transformers"])
def trainer(request: pytest.FixtureRequest) -> str:
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed: pip install 'streamloader[trainers]'")
    return request.param


def train(trainer: str, photos: Path, folder: Path, steps: int, save_every: int, ranks: int) -> str:
    """Runs an example up to a step of the whole training; returns what it printed."""
    command = [sys.executable]
    if ranks > 1 and trainer != "lightning":
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command += [str(EXAMPLES / f"train_{trainer}.py"), str(photos), str(folder / "run")]
    command += [f"--validation={photos}", f"--steps={steps}", f"--save-every={save_every}"]
    command += [f"--batch-size={BATCH_SIZE}", f"--devices={ranks}"]
    ended = subprocess.run(
        [*command, f"--trace={folder / 'trace'}"],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(EXAMPLES.parent)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout


def trained_on(folder: Path) -> list[tuple[int, int, list[int]]]:
    lines = [json.loads(line) for line in (folder / "trace").read_text().splitlines()]
    return sorted((line["step"], line["rank"], line["samples"]) for line in lines)


def without_a_trainer(photos: Path, steps: int, ranks: int) -> list[tuple[int, int, list[int]]]:
    """The batches of a plain loop that is never stopped."""
    found = []
    for rank in range(ranks):
        with StreamLoader(
            str(photos),
            batch_size=BATCH_SIZE,
            transform=RandomResizedCrop(32, flip=0.5),
            shuffle=True,
            device="cpu",
            rank=rank,
            world_size=ranks,
            local_world_size=ranks,
        ) as loader:
            batches = [batch for _ in range(4) for batch in loader][:steps]
        found += [
            (step, rank, batch["index"][batch["valid"]].tolist())
            for step, batch in enumerate(batches)
        ]
    return sorted(found)


@pytest.mark.parametrize(
    "stop",
    [
        pytest.param(5, id="in mid-epoch"),
        pytest.param(STEPS_OF_AN_EPOCH, id="at its end", marks=pytest.mark.slow),
    ],
)
@pytest.mark.timeout(400)
def test_a_stopped_run_goes_on_at_the_next_batch_beside_forked_workers(
    trainer, photos, tmp_path, stop
):
    train(trainer, photos, tmp_path, stop, stop, 1)
    # Between two steps it validates with torch's DataLoader, whose workers are forked.
    assert "accuracy" in train(trainer, photos, tmp_path, 3 * stop, stop, 1)
    assert trained_on(tmp_path) == without_a_trainer(photos, 3 * stop, 1)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_processes_share_the_epoch_and_go_on_in_step(trainer, photos, tmp_path):
    for steps in (3, 9):
        train(trainer, photos, tmp_path, steps, 3, 2)
    assert trained_on(tmp_path) == without_a_trainer(photos, 9, 2)

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the demo trains with torch")

from streamloader.cli.demo.train import TrainReport, train_with_restart  # noqa: E402 - after skip

SAMPLES, CLASSES, BATCH = 240, 4, 16


class ArrayBatches:
    """Batches from memory, with the state of a loader; classes differ in colour.

    Args:
        shift: positions added to a loaded state: what a loader with a faulty resume does.
        random_labels: labels that the pictures say nothing of.
    """

    def __init__(self, *, shift: int = 0, random_labels: bool = False) -> None:
        draw = torch.Generator().manual_seed(7)
        self.labels = torch.arange(SAMPLES) % CLASSES
        tint = torch.tensor([[200, 40, 40], [40, 200, 40], [40, 40, 200], [180, 180, 60]])
        noise = torch.randint(-30, 30, (SAMPLES, 3, 24, 24), generator=draw)
        self.images = (tint[self.labels][:, :, None, None] + noise).clamp(0, 255).to(torch.uint8)
        if random_labels:
            self.labels = torch.randint(0, CLASSES, (SAMPLES,), generator=draw)
        self.shift = shift
        self.epoch, self.position, self.closed = 0, 0, False

    def __len__(self) -> int:
        return -(-SAMPLES // BATCH)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        assert not self.closed
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(self.epoch))
        while self.position < SAMPLES:
            index = order[self.position : self.position + BATCH]
            self.position += len(index)
            # A padded row, as a loader's last batch has.
            index = torch.cat([index, order[:1]])
            valid = torch.arange(len(index)) < len(index) - 1
            yield {
                "image": self.images[index],
                "label": self.labels[index],
                "index": index,
                "valid": valid,
            }
        self.epoch, self.position = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.position = state["epoch"], state["position"] + self.shift

    def stats(self) -> dict[str, Any]:
        return {"epoch": self.epoch}

    def close(self) -> None:
        self.closed = True


def _train(tmp_path: Path, opened: list[ArrayBatches], **faults: Any) -> TrainReport:
    def open_loader() -> ArrayBatches:
        loader = ArrayBatches(**faults)
        opened.append(loader)
        return loader

    return train_with_restart(
        open_loader,
        samples=SAMPLES,
        num_classes=CLASSES,
        epochs=4,
        checkpoint=tmp_path / "checkpoint.pt",
    )


def test_learns_across_a_restart_that_loses_nothing(tmp_path: Path) -> None:
    opened: list[ArrayBatches] = []
    report = _train(tmp_path, opened)
    assert report.learned
    assert report.exactly_once
    assert len(report.losses) == 4 * 15
    assert report.restart_step == 7
    assert report.trained == 4 * SAMPLES
    assert len(report.first_batch_s) == 2
    assert report.crops is not None
    assert report.crops.shape == (16, 24, 24, 3)
    assert [loader.closed for loader in opened] == [True, True]
    assert report.samples_per_s > 0


def test_restart_continues_model_and_optimizer_from_the_checkpoint(tmp_path: Path) -> None:
    """The second half starts from other weights, so without the load the loss would jump back."""
    report = _train(tmp_path, [])
    before = report.losses[report.restart_step - 1]
    after = report.losses[report.restart_step]
    assert after < (report.losses[0] + before) / 2


@pytest.mark.parametrize(
    ("shift", "lost", "repeated"), [(BATCH, BATCH, 0), (-BATCH, 0, BATCH)], ids=["skip", "replay"]
)
def test_a_faulty_resume_is_found_and_counted(
    tmp_path: Path, shift: int, lost: int, repeated: int
) -> None:
    report = _train(tmp_path, [], shift=shift)
    assert not report.exactly_once
    assert report.lost_and_repeated() == (lost, repeated)


def test_labels_that_cannot_be_learned_fail_the_loss_gate(tmp_path: Path) -> None:
    assert not _train(tmp_path, [], random_labels=True).learned


def test_loaders_are_closed_when_training_fails(tmp_path: Path) -> None:
    opened: list[ArrayBatches] = []

    def stepped(step: int, _loss: float) -> None:
        if step == 9:
            raise KeyboardInterrupt

    def open_loader() -> ArrayBatches:
        opened.append(ArrayBatches())
        return opened[-1]

    with pytest.raises(KeyboardInterrupt):
        train_with_restart(
            open_loader,
            samples=SAMPLES,
            num_classes=CLASSES,
            epochs=2,
            checkpoint=tmp_path / "checkpoint.pt",
            stepped=stepped,
        )
    assert [loader.closed for loader in opened] == [True, True]


def test_loss_windows_of_a_short_run_do_not_overlap() -> None:
    report = TrainReport(8, losses=[4.0, 3.0, 2.0, 1.0, 0.5])
    assert report.window_steps == 2
    assert (report.loss_first, report.loss_last) == (3.5, 0.75)

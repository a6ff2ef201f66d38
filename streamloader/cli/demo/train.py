"""A small training run with a checkpoint in mid-epoch, a fresh start from it, and a proof.

The run is cut in two on purpose. Half-way through the first epoch model, optimizer and loader are
saved to one file and thrown away; the second half builds everything anew from that file. Every
sample number of that epoch must then have been seen exactly once, before or after the cut.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

LEARNING_RATE = 2e-3
LOSS_WINDOW_STEPS = 10
LOSS_RATIO_LIMIT = 0.5
SHEET_PICTURES = 24


class BatchSource(Protocol):
    """The part of ``StreamLoader`` that a training loop uses."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Mapping[str, Any]]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...
    def stats(self) -> dict[str, Any]: ...
    def close(self) -> None: ...


@dataclass(slots=True)
class TrainReport:
    """What a run showed.

    Args:
        samples: number of samples in the data set.
        losses: mean cross-entropy of every step, in order.
        restart_step: steps done when the checkpoint was taken.
        first_batch_s: seconds from making a loader to its first batch: at the start, and again
            after the restart.
        loop_s: seconds inside the training loops, waits included.
        trained: samples trained on, all epochs together.
        seen_first_epoch: sample numbers of the first epoch in the order they came, across the cut.
        stats: ``loader.stats()`` of the loader before and of the one after the cut.
        crops: uint8 [n, H, W, 3], the first pictures that came.
    """

    samples: int
    losses: list[float] = field(default_factory=list)
    restart_step: int = 0
    first_batch_s: list[float] = field(default_factory=list)
    loop_s: float = 0.0
    trained: int = 0
    seen_first_epoch: list[int] = field(default_factory=list)
    stats: list[dict[str, Any]] = field(default_factory=list)
    crops: npt.NDArray[np.uint8] | None = None

    @property
    def samples_per_s(self) -> float:
        return self.trained / self.loop_s

    @property
    def window_steps(self) -> int:
        """Steps averaged at each end: 10, or half of a shorter run."""
        return min(LOSS_WINDOW_STEPS, max(1, len(self.losses) // 2))

    @property
    def loss_first(self) -> float:
        return float(np.mean(self.losses[: self.window_steps]))

    @property
    def loss_last(self) -> float:
        return float(np.mean(self.losses[-self.window_steps :]))

    @property
    def learned(self) -> bool:
        """Whether the mean loss of the last steps is at most half of the first ones'."""
        return self.loss_last <= LOSS_RATIO_LIMIT * self.loss_first

    @property
    def exactly_once(self) -> bool:
        """Whether the first epoch, cut by the restart, had every sample once and only once."""
        return sorted(self.seen_first_epoch) == list(range(self.samples))

    def lost_and_repeated(self) -> tuple[int, int]:
        """Samples of the first epoch that never came, and arrivals beyond a sample's first."""
        distinct = len(set(self.seen_first_epoch))
        return self.samples - distinct, len(self.seen_first_epoch) - distinct


class Trainer:
    """Model and optimizer of one run, which save to and load from one checkpoint file."""

    def __init__(self, num_classes: int, *, seed: int, device: str) -> None:
        torch.manual_seed(seed)
        self.device = device
        self.model = _small_cnn(num_classes).to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=LEARNING_RATE)

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> float:
        """One optimizer step on uint8 [n, 3, H, W] pictures; returns the mean cross-entropy."""
        pixels = images.to(torch.float32).div_(127.5).sub_(1.0)
        loss = nn.functional.cross_entropy(self.model(pixels), labels)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.optimizer.step()
        return loss.item()

    def save(self, path: Path, loader: BatchSource) -> None:
        """Write model, optimizer and the loader's place in the data to one file."""
        parts = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "loader": loader.state_dict(),
        }
        torch.save(parts, path)

    def load(self, path: Path, loader: BatchSource) -> None:
        """Continue from a file of :meth:`save`; nothing but plain values is unpickled."""
        parts = torch.load(path, map_location=self.device, weights_only=True)
        self.model.load_state_dict(parts["model"])
        self.optimizer.load_state_dict(parts["optimizer"])
        loader.load_state_dict(parts["loader"])


def _small_cnn(num_classes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels_in, channels_out in ((3, 16), (16, 32), (32, 64)):
        layers += [
            nn.Conv2d(channels_in, channels_out, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
            nn.ReLU(inplace=True),
        ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, num_classes))


def train_with_restart(
    open_loader: Callable[[], BatchSource],
    *,
    samples: int,
    num_classes: int,
    epochs: int,
    checkpoint: Path,
    seed: int = 0,
    device: str = "cpu",
    stepped: Callable[[int, float], None] | None = None,
) -> TrainReport:
    """Train for ``epochs`` epochs, restarting from a checkpoint in the middle of the first.

    Args:
        open_loader: makes a new loader over the data set; called twice.
        samples: number of samples in the data set.
        num_classes: labels are 0 to ``num_classes - 1``.
        epochs: at least 1.
        checkpoint: file that the checkpoint is written to.
        seed: of the model's first weights.
        device: where the model lives; the loader's batches must be there too.
        stepped: called after every step with the number of steps done and the loss.
    """
    report = TrainReport(samples)

    def tell(step: int) -> None:
        if stepped is not None:
            stepped(step, report.losses[-1])

    with _one_torch_thread():
        trainer = Trainer(num_classes, seed=seed, device=device)
        opened = time.perf_counter()
        with closing(open_loader()) as loader:
            report.restart_step = max(1, len(loader) // 2)
            for step in _steps(loader, trainer, report, opened=opened):
                tell(step)
                if step == report.restart_step:
                    trainer.save(checkpoint, loader)
                    break
            report.stats.append(loader.stats())

        trainer = Trainer(num_classes, seed=seed + 1, device=device)
        opened = time.perf_counter()
        with closing(open_loader()) as loader:
            trainer.load(checkpoint, loader)
            for epoch in range(epochs):
                for step in _steps(loader, trainer, report, opened=None if epoch else opened):
                    tell(step)
            report.stats.append(loader.stats())
    return report


@contextmanager
def _one_torch_thread() -> Iterator[None]:
    """Leave the other cores to decoding: threads of a small model mostly wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _steps(
    loader: BatchSource, trainer: Trainer, report: TrainReport, *, opened: float | None
) -> Iterator[int]:
    """Train on what is left of the loader's epoch; yields the number of steps done so far.

    ``opened`` is when the loader was made, in a part of the first epoch, and None in later ones.
    """
    started = time.perf_counter()
    for place, batch in enumerate(loader):
        if place == 0 and opened is not None:
            report.first_batch_s.append(time.perf_counter() - opened)
        valid = batch["valid"]
        images, labels = batch["image"][valid], batch["label"][valid]
        report.losses.append(trainer.step(images, labels))
        report.trained += len(labels)
        if opened is not None:
            report.seen_first_epoch += batch["index"][valid].tolist()
        if report.crops is None:
            report.crops = images[:SHEET_PICTURES].permute(0, 2, 3, 1).cpu().numpy().copy()
        report.loop_s += time.perf_counter() - started
        yield len(report.losses)
        started = time.perf_counter()

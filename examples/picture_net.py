"""What the examples of other trainers share: a small network, validation data, and options."""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from streamloader import open_dataset

SIZE = 32


class PictureNet(nn.Module):
    """Classifies pictures of 32 by 32; gives logits and, with labels, the loss.

    Rows that are not valid, the padding of the last batch, take no part in the loss.
    """

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(32, num_classes),
        )

    def forward(
        self,
        image: torch.Tensor,
        label: torch.Tensor | None = None,
        valid: torch.Tensor | None = None,
        index: torch.Tensor | None = None,  # a field of each batch, of no use to a network
    ) -> dict[str, torch.Tensor]:
        logits = self.layers(image.float() / 127.5 - 1)
        if label is None:
            return {"logits": logits}
        losses = nn.functional.cross_entropy(logits, label, reduction="none")
        counts = torch.ones_like(losses) if valid is None else valid.to(losses.dtype)
        # At least one, so that a rank whose last batch is all padding gives zero.
        return {"loss": (losses * counts).sum() / counts.sum().clamp(min=1), "logits": logits}


class ValidationPictures(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Pictures of a data set one by one, for torch's own ``DataLoader`` and its workers."""

    def __init__(self, url: str) -> None:
        self.samples = open_dataset(url)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        sample = self.samples[number]
        with Image.open(io.BytesIO(sample["image"])) as opened:
            picture = opened.convert("RGB").resize((SIZE, SIZE))
        pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1)
        return {"image": pixels, "label": torch.tensor(sample["label"])}


def num_classes(url: str) -> int:
    """Classes of the data set at ``url``."""
    with open_dataset(url) as dataset:
        return len(dataset.classes)


def parse_arguments(description: str | None) -> argparse.Namespace:
    """The options of these examples."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url", help="data set made by streamloader convert")
    parser.add_argument("folder", type=Path, help="where checkpoints are")
    parser.add_argument("--validation", help="data set to validate with")
    parser.add_argument("--steps", type=int, default=200, help="of the whole training")
    parser.add_argument("--save-every", type=int, default=50, help="steps")
    parser.add_argument("--batch-size", type=int, default=32, help="per process")
    parser.add_argument("--devices", type=int, default=1, help="processes; of Lightning only")
    parser.add_argument("--trace", type=Path, help="file for the samples of each step")
    return parser.parse_args()


def trace(file: Path | None, step: int, batch: Mapping[str, Any], rank: int = 0) -> None:
    """Appends the numbers of a batch's samples, to see that a restart repeats and loses none."""
    if file is None:
        return
    samples = batch["index"][batch["valid"]].tolist()
    with file.open("a") as lines:
        lines.write(json.dumps({"step": step, "rank": rank, "samples": samples}) + "\n")

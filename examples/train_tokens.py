"""Trains a small next-token model on records of tokens, with a checkpoint that resumes exactly.

    python examples/train_tokens.py /tmp/tokens --steps 200

The first run writes a data set of made-up text there; a second run continues where the first
one stopped, at the very next record.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import nn

from streamloader import DatasetWriter, StreamLoader

VOCABULARY, LENGTH = 256, 65


def write_text(path: Path, records: int) -> None:
    """Records of 65 tokens each: a walk in which the next token depends on the last."""
    rng = np.random.default_rng(0)
    with DatasetWriter(path, {"tokens": ("int32", (LENGTH,))}) as writer:
        for number in range(records):
            steps = rng.choice([1, 2, 7], LENGTH, p=[0.7, 0.2, 0.1])
            tokens = (number + np.cumsum(steps)) % VOCABULARY
            writer.write({"tokens": tokens.astype(np.int32)})


class NextToken(nn.Module):
    """Predicts each token from the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 64)
        self.head = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, VOCABULARY))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(tokens))


def train(path: Path, checkpoint: Path, steps: int) -> None:
    model = NextToken()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    with StreamLoader(str(path), batch_size=64, shuffle=True, seed=0, device="cpu") as loader:
        step = 0
        if checkpoint.exists():
            saved = torch.load(checkpoint, weights_only=True)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            loader.load_state_dict(saved["loader"])
            step = saved["step"]
            print(f"continuing at step {step}")
        end = step + steps
        while step < end:
            for batch in loader:
                tokens = batch["tokens"].long()
                logits = model(tokens[:, :-1])
                loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
                if step % 50 == 0:
                    print(f"step {step}: loss {loss.item():.3f}")
                if step == end:
                    break
        saved = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "loader": loader.state_dict(),
            "step": step,
        }
        torch.save(saved, checkpoint)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--records", type=int, default=20_000)
    arguments = parser.parse_args()
    dataset = arguments.folder / "set"
    if not dataset.exists():
        write_text(dataset, arguments.records)
    train(dataset, arguments.folder / "checkpoint.pt", arguments.steps)


if __name__ == "__main__":
    main()

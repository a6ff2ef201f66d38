"""Trains a loop of one's own with Accelerate; a second run goes on where the first one saved.

    pip install 'streamloader[torch,trainers]'
    accelerate launch examples/train_accelerate.py s3://bucket/photos runs/one --steps 1000

``prepare`` leaves the loader as it is: it has this process's part already, and gives batches on
its device. ``register_for_checkpointing`` puts its state into what ``save_state`` saves.
"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from picture_net import (
    SIZE,
    PictureNet,
    ValidationPictures,
    num_classes,
    parse_arguments,
    trace,
)
from torch.utils.data import DataLoader

from streamloader import RandomResizedCrop, StreamLoader


class Progress:
    """Steps done, saved with the rest."""

    def __init__(self) -> None:
        self.step = 0

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step = state["step"]


def validate(accelerator: Accelerator, model: torch.nn.Module, batches: DataLoader) -> float:
    model.eval()
    right = torch.zeros(2, device=accelerator.device)
    with torch.no_grad():
        for batch in batches:
            guesses = model(batch["image"])["logits"].argmax(1)
            guesses, labels = accelerator.gather_for_metrics((guesses, batch["label"]))
            right += torch.stack([(guesses == labels).sum(), torch.tensor(len(labels))])
    model.train()
    return float(right[0] / right[1])


def main() -> None:
    arguments = parse_arguments(__doc__)
    # First, since the loader takes its rank from it. Without cpu=True a launch of several
    # processes on a machine without GPUs is none.
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    model = PictureNet(num_classes(arguments.url))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = StreamLoader(
        arguments.url,
        batch_size=arguments.batch_size,
        transform=RandomResizedCrop(SIZE, flip=0.5),
        shuffle=True,
        device=accelerator.device,
        rank=accelerator.process_index,
        world_size=accelerator.num_processes,
    )
    progress = Progress()
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    accelerator.register_for_checkpointing(loader, progress)
    validation = None
    if arguments.validation:
        pictures = ValidationPictures(arguments.validation)
        validation = accelerator.prepare(
            DataLoader(
                pictures, arguments.batch_size, num_workers=2, multiprocessing_context="fork"
            )
        )
    saved = arguments.folder / "state"
    if saved.exists():
        accelerator.load_state(str(saved))
        accelerator.print(f"goes on behind step {progress.step}")

    with loader:
        while progress.step < arguments.steps:
            for batch in loader:
                trace(arguments.trace, progress.step, batch, accelerator.process_index)
                loss = model(**batch)["loss"]
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                progress.step += 1
                if progress.step % arguments.save_every == 0:
                    accelerator.save_state(str(saved))
                    accuracy = validate(accelerator, model, validation) if validation else None
                    accelerator.print(f"step {progress.step}: loss {loss:.3f}, accuracy {accuracy}")
                if progress.step == arguments.steps:
                    break
    accelerator.end_training()


if __name__ == "__main__":
    main()

"""Trains with Lightning's Trainer; a second run goes on at the batch after the last checkpoint.

    pip install 'streamloader[torch,trainers]'
    python examples/train_lightning.py s3://bucket/photos runs/one --steps 1000
    python examples/train_lightning.py s3://bucket/photos runs/one --steps 2000

Lightning saves the loader's state in its checkpoints by itself, since the loader has
``state_dict`` and ``load_state_dict``.
"""

from __future__ import annotations

from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from picture_net import (
    SIZE,
    PictureNet,
    ValidationPictures,
    num_classes,
    parse_arguments,
    trace,
)
from torch.utils.data import DataLoader

from streamloader import Batch, RandomResizedCrop, StreamLoader


class Photos(lightning.LightningDataModule):
    """Makes the loaders when the trainer asks, for by then each process knows its rank."""

    def __init__(self, url: str, validation: str | None, batch_size: int) -> None:
        super().__init__()
        self.url, self.validation, self.batch_size = url, validation, batch_size
        self.loader: StreamLoader | None = None

    def train_dataloader(self) -> StreamLoader:
        trainer = self.trainer
        self.loader = StreamLoader(
            self.url,
            batch_size=self.batch_size,
            transform=RandomResizedCrop(SIZE, flip=0.5),
            shuffle=True,
            device=trainer.strategy.root_device,
            rank=trainer.global_rank,
            world_size=trainer.world_size,
            local_rank=trainer.local_rank,
            local_world_size=trainer.num_devices,
        )
        return self.loader

    def val_dataloader(self) -> DataLoader | list:
        if self.validation is None:
            return []
        pictures = ValidationPictures(self.validation)
        return DataLoader(pictures, self.batch_size, num_workers=2, multiprocessing_context="fork")

    def teardown(self, stage: str) -> None:
        if self.loader is not None:
            self.loader.close()


class Classifier(lightning.LightningModule):
    def __init__(self, classes: int, traced: Path | None) -> None:
        super().__init__()
        self.net = PictureNet(classes)
        self.traced = traced

    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
        trace(self.traced, self.global_step, batch, self.global_rank)
        return self.net(**batch)["loss"]

    def validation_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> None:
        right = self.net(batch["image"])["logits"].argmax(1) == batch["label"]
        self.log("accuracy", right.float().mean(), batch_size=len(right), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def main() -> None:
    arguments = parse_arguments(__doc__)
    saving = ModelCheckpoint(
        arguments.folder, every_n_train_steps=arguments.save_every, save_last=True
    )
    trainer = lightning.Trainer(
        max_steps=arguments.steps,
        devices=arguments.devices,
        strategy="ddp" if arguments.devices > 1 else "auto",
        accelerator="gpu" if torch.cuda.is_available() else "cpu",
        callbacks=[saving],
        default_root_dir=arguments.folder,
        logger=False,
        enable_progress_bar=False,
    )
    data = Photos(arguments.url, arguments.validation, arguments.batch_size)
    last = arguments.folder / "last.ckpt"
    trainer.fit(
        Classifier(num_classes(arguments.url), arguments.trace),
        datamodule=data,
        ckpt_path=last if last.exists() else None,
    )
    if trainer.is_global_zero:
        results = {name: round(float(value), 3) for name, value in trainer.logged_metrics.items()}
        print(f"step {trainer.global_step}: {results}")


if __name__ == "__main__":
    main()

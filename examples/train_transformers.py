"""Trains with Hugging Face's Trainer; a second run goes on at the batch after its checkpoint.

    pip install 'streamloader[torch,trainers]'
    torchrun --nproc-per-node=2 examples/train_transformers.py s3://bucket/photos runs/one

The Trainer asks ``get_train_dataloader`` for its batches. Each checkpoint folder gets the loader's
state beside the Trainer's own, and ``ignore_data_skip`` says that the Trainer need not read and
drop what was trained on before.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from picture_net import (
    SIZE,
    PictureNet,
    ValidationPictures,
    num_classes,
    parse_arguments,
    trace,
)
from torch.utils.data import default_collate
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import EvalPrediction, get_last_checkpoint

from streamloader import RandomResizedCrop, StreamLoader

STATE_NAME = "streamloader.json"


class SaveLoader(TrainerCallback):
    """Puts the loader's state, which is the same on all ranks, into each checkpoint."""

    def __init__(self, loader: StreamLoader) -> None:
        self.loader = loader

    def on_save(self, args: TrainingArguments, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            folder = Path(args.output_dir, f"checkpoint-{state.global_step}")
            (folder / STATE_NAME).write_text(json.dumps(self.loader.state_dict()))


class PictureTrainer(Trainer):
    """A Trainer that takes its training batches from ``loader``."""

    def __init__(self, loader: StreamLoader, traced: Path | None, **options: Any) -> None:
        super().__init__(callbacks=[SaveLoader(loader)], **options)
        self.loader, self.traced = loader, traced

    def get_train_dataloader(self) -> StreamLoader:  # type: ignore[override]
        return self.loader

    def training_step(self, model: Any, inputs: Any, *rest: Any, **options: Any) -> torch.Tensor:
        trace(self.traced, self.state.global_step, inputs, self.args.process_index)
        return super().training_step(model, inputs, *rest, **options)


def accuracy(prediction: EvalPrediction) -> dict[str, float]:
    right = prediction.predictions.argmax(1) == prediction.label_ids
    return {"accuracy": float(right.mean())}


def main() -> None:
    arguments = parse_arguments(__doc__)
    validation = ValidationPictures(arguments.validation) if arguments.validation else None
    options = TrainingArguments(
        output_dir=str(arguments.folder),
        max_steps=arguments.steps,
        per_device_train_batch_size=arguments.batch_size,
        save_steps=arguments.save_every,
        eval_strategy="no" if validation is None else "steps",
        eval_steps=arguments.save_every,
        dataloader_num_workers=2,  # of validation
        dataloader_pin_memory=torch.cuda.is_available(),
        label_names=["label"],
        ignore_data_skip=True,
        ddp_find_unused_parameters=False,
        learning_rate=1e-3,
        use_cpu=not torch.cuda.is_available(),
        report_to="none",
        disable_tqdm=True,
    )
    with StreamLoader(
        arguments.url,
        batch_size=arguments.batch_size,
        transform=RandomResizedCrop(SIZE, flip=0.5),
        shuffle=True,
        device=options.device,
        rank=options.process_index,
        world_size=options.world_size,
    ) as loader:
        trainer = PictureTrainer(
            loader,
            arguments.trace,
            model=PictureNet(num_classes(arguments.url)),
            args=options,
            eval_dataset=validation,
            data_collator=default_collate,  # the Trainer's own renames "label"
            compute_metrics=accuracy,
        )
        last = get_last_checkpoint(options.output_dir) if arguments.folder.exists() else None
        if last is not None:
            loader.load_state_dict(json.loads(Path(last, STATE_NAME).read_text()))
        trainer.train(resume_from_checkpoint=last)


if __name__ == "__main__":
    main()

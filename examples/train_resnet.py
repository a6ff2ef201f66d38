"""Train a ResNet-18 from a data set, with a checkpoint after every hundredth step.

    pip install torchvision
    streamloader convert photos/ s3://bucket/photos
    python examples/train_resnet.py s3://bucket/photos run.pt

Run it again after an interrupt and it goes on at the next sample.
"""

import sys
from pathlib import Path

import torch
from torchvision.models import resnet18

from streamloader import RandomResizedCrop, StreamLoader

EPOCHS = 10
STEPS_PER_CHECKPOINT = 100


def main(url: str, checkpoint: Path) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with StreamLoader(
        url,
        batch_size=64,
        transform=RandomResizedCrop(224, flip=0.5),
        shuffle=True,
        device=device,
    ) as loader:
        model = resnet18(num_classes=len(loader.classes)).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        first_epoch = 0
        if checkpoint.exists():
            saved = torch.load(checkpoint, map_location=device, weights_only=True)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            loader.load_state_dict(saved["loader"])
            first_epoch = saved["epoch"]

        for epoch in range(first_epoch, EPOCHS):
            for step, batch in enumerate(loader, start=1):
                valid = batch["valid"]
                pixels = batch["image"][valid].float() / 127.5 - 1
                loss = torch.nn.functional.cross_entropy(model(pixels), batch["label"][valid])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if step % STEPS_PER_CHECKPOINT == 0:
                    print(f"epoch {epoch} step {step} loss {loss.item():.3f}", flush=True)
                    save(checkpoint, epoch, model, optimizer, loader)
            save(checkpoint, epoch + 1, model, optimizer, loader)


def save(
    checkpoint: Path,
    epoch: int,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: StreamLoader,
) -> None:
    """Replace the checkpoint at once, so that an interrupt never leaves half of one."""
    parts = {
        "epoch": epoch,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "loader": loader.state_dict(),
    }
    partial = checkpoint.with_suffix(".partial")
    torch.save(parts, partial)
    partial.replace(checkpoint)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))

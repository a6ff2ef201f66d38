"""A picture with its mask under one crop: the native decoder beside Pillow's, on one core.

    python benchmarks/joint.py /tmp/photographs [--rounds 7] [--pictures 200]

Masks are made up: a palette PNG of the picture's size, its grey values in eight classes. Rounds
are interleaved; read the ratio.
"""

from __future__ import annotations

import argparse
import io
import statistics
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from streamloader.decode import (
    AppliedCrops,
    Decoder,
    Joint,
    MaskDecoder,
    NativeDecoder,
    PillowDecoder,
    RandomResizedCrop,
    Share,
    decode_jointly,
)

SIDE = 224
SPEC = Joint(RandomResizedCrop(SIDE, flip=0.5), masks=("mask",))
DECODERS: dict[str, Decoder] = {"native": NativeDecoder(SPEC), "pillow": PillowDecoder(SPEC)}


def mask_of(picture: bytes) -> bytes:
    classes = np.asarray(Image.open(io.BytesIO(picture)).convert("L")) // 32
    image = Image.fromarray(classes)
    image.putpalette(list(range(24)))
    data = io.BytesIO()
    image.save(data, "PNG")
    return data.getvalue()


def share_of(files: list[bytes], out: npt.NDArray[np.uint8]) -> Share:
    lengths = np.array([len(data) for data in files], np.int64)
    numbers = np.arange(len(files), dtype=np.int64)
    data = memoryview(b"".join(files))
    return Share(data, np.cumsum(lengths) - lengths, lengths, numbers, numbers, out, 0, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="of benchmarks/cut_photographs.py")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--pictures", type=int, default=200)
    arguments = parser.parse_args()
    files = sorted(arguments.folder.rglob("*.jpg"))
    files = files[:: max(1, len(files) // arguments.pictures)][: arguments.pictures]
    pictures = [path.read_bytes() for path in files]
    count = len(pictures)
    image = share_of(pictures, np.zeros((count, SIDE, SIDE, 3), np.uint8))
    mask = share_of(list(map(mask_of, pictures)), np.zeros((count, SIDE, SIDE), np.uint8))
    masks: dict[str, dict[str, Share]] = {"picture": {}, "picture and mask": {"mask": mask}}
    for what, mask_shares in masks.items():
        seen: dict[str, list[float]] = {name: [] for name in DECODERS}
        for number in range(arguments.rounds + 1):
            for name, decoder in DECODERS.items():
                start_s = time.process_time()
                faults = decode_jointly(
                    {"image": image},
                    mask_shares,
                    AppliedCrops.empty(count),
                    picture_decoder=decoder,
                    mask_decoder=MaskDecoder(SIDE, SIDE),
                )
                spent_s = time.process_time() - start_s
                if faults:
                    raise SystemExit(f"the benchmark's pictures must all be sound, got {faults}")
                if number:  # the first round touches memory and fills caches
                    seen[name].append(count / spent_s)
        rates = ", ".join(f"{name} {statistics.median(rate):.0f}" for name, rate in seen.items())
        ratio = statistics.median(a / b for a, b in zip(*seen.values(), strict=True))
        print(f"{what}: {rates} per CPU second, native x{ratio:.2f}")


if __name__ == "__main__":
    main()

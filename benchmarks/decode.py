"""Decode and crop to 224 on one core, beside its peers, as pictures per second of CPU time.

    apt-get install gcc libjpeg-dev
    pip install simplejpeg opencv-python-headless ffcv      # any of them may be missing
    python benchmarks/decode.py /tmp/photographs [--rounds 7] [--pictures 200] [--json]

Rounds are interleaved: each contender decodes the same bytes once a round, and medians of the
rounds are printed, so that a busy machine shifts all of them alike. Read the ratios.
"""

from __future__ import annotations

import argparse
import ctypes
import io
import json
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL
from PIL import Image

from streamloader.decode import (
    CenterCrop,
    Compose,
    CropPlan,
    Decoder,
    NativeDecoder,
    PillowDecoder,
    RandomResizedCrop,
    Resize,
    Share,
    Transform,
    native_kernel,
    plan_crops,
)

SIDE = 224
TRANSFORMS: dict[str, Transform] = {
    "RandomResizedCrop(224)": RandomResizedCrop(SIDE, flip=0.5),
    "Resize(256), CenterCrop(224)": Compose([Resize(256), CenterCrop(SIDE)]),
}
# An epoch of a loader has a price of its own; so many passes over the pictures share it.
FFCV_PASSES = 6
# Decodes every picture once, or as many times as it returns.
Contender = Callable[[], int | None]


def share_of(pictures: list[bytes], out: npt.NDArray[np.uint8]) -> Share:
    lengths = np.array([len(picture) for picture in pictures], np.int64)
    numbers = np.arange(len(pictures), dtype=np.int64)
    data = memoryview(b"".join(pictures))
    return Share(data, np.cumsum(lengths) - lengths, lengths, numbers, numbers, out, 0, 0)


def decoding(decoder: Decoder, share: Share) -> Contender:
    def run() -> None:
        if decoder.decode(share):
            raise SystemExit("the benchmark's pictures must all be sound")

    return run


def entropy_only(pictures: list[bytes], folder: Path) -> Contender:
    library = folder / "entropy_only.so"
    source = Path(__file__).with_name("entropy_only.c")
    subprocess.run(
        ["cc", "-O2", "-shared", "-fPIC", str(source), "-o", str(library), "-ljpeg"], check=True
    )
    decode = ctypes.CDLL(str(library)).entropy_only
    decode.argtypes = [ctypes.c_char_p, ctypes.c_ulong]

    def run() -> None:
        for picture in pictures:
            decode(picture, len(picture))

    return run


def pillow_plain(pictures: list[bytes], plan: CropPlan, out: npt.NDArray[np.uint8]) -> Contender:
    def run() -> None:
        for row, picture in enumerate(pictures):
            image = Image.open(io.BytesIO(picture)).convert("RGB")
            box = tuple(plan.boxes[row])
            image = image.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box)
            if plan.flips[row]:
                image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            out[row] = np.asarray(image)

    return run


def simplejpeg_opencv(
    pictures: list[bytes], plan: CropPlan, out: npt.NDArray[np.uint8]
) -> Contender | None:
    try:
        import cv2
        import simplejpeg
    except ImportError:
        return None
    cv2.setNumThreads(1)

    def run() -> None:
        for row, picture in enumerate(pictures):
            x0, y0, x1, y1 = np.rint(plan.boxes[row]).astype(int)
            part = simplejpeg.decode_jpeg(picture)[y0:y1, x0:x1]
            small = cv2.resize(part, (SIDE, SIDE), interpolation=cv2.INTER_LINEAR)
            out[row] = cv2.flip(small, 1) if plan.flips[row] else small

    return run


def ffcv_loader(pictures: list[bytes], transform: Transform, folder: Path) -> Contender | None:
    try:
        from ffcv.fields import IntField, RGBImageField, rgb_image
        from ffcv.fields.rgb_image import (
            CenterCropRGBImageDecoder,
            RandomResizedCropRGBImageDecoder,
        )
        from ffcv.loader import Loader, OrderOption
        from ffcv.transforms import RandomHorizontalFlip, ToTensor
        from ffcv.writer import DatasetWriter
    except ImportError:
        return None
    path = folder / f"{abs(hash(str(transform)))}.beton"
    arrays = [np.asarray(Image.open(io.BytesIO(data)).convert("RGB")) for data in pictures]
    stored = {array.tobytes(): data for array, data in zip(arrays, pictures, strict=True)}
    # The writer would encode anew: it is given the very bytes that the others decode.
    rgb_image.encode_jpeg = lambda image, _quality: np.frombuffer(stored[image.tobytes()], np.uint8)
    fields = {"image": RGBImageField(write_mode="jpg"), "label": IntField()}
    writer = DatasetWriter(str(path), fields, num_workers=1)
    writer.from_indexed_dataset([(array, 0) for array in arrays] * FFCV_PASSES)
    size = (SIDE, SIDE)
    if isinstance(transform, RandomResizedCrop):
        pipeline: list[Any] = [RandomResizedCropRGBImageDecoder(size), RandomHorizontalFlip()]
    else:
        pipeline = [CenterCropRGBImageDecoder(size, SIDE / 256)]
    loader = Loader(
        str(path),
        batch_size=len(arrays),
        drop_last=False,
        num_workers=1,
        order=OrderOption.SEQUENTIAL,
        os_cache=True,
        pipelines={"image": [*pipeline, ToTensor()], "label": None},
    )

    def run() -> int:
        for _ in loader:
            pass
        return FFCV_PASSES

    return run


def contenders(pictures: list[bytes], transform: Transform, folder: Path) -> dict[str, Contender]:
    """The kernel first; peers that are not installed are left out."""
    out = np.zeros((len(pictures), SIDE, SIDE, 3), np.uint8)
    share = share_of(pictures, out)
    sizes = np.array([Image.open(io.BytesIO(data)).size for data in pictures])
    plan = plan_crops(transform, sizes[:, 0], sizes[:, 1], seed=0, epoch=0, samples=share.samples)
    native, pillow = NativeDecoder(transform), PillowDecoder(transform)
    found: dict[str, Contender | None] = {
        "kernel": decoding(native, share),
        "entropy decoding only": entropy_only(pictures, folder),
        "Pillow": pillow_plain(pictures, plan, out),
        "PillowDecoder (the fallback)": decoding(pillow, share),
        "simplejpeg + OpenCV linear": simplejpeg_opencv(pictures, plan, out),
        "FFCV": ffcv_loader(pictures, transform, folder),
    }
    return {name: run for name, run in found.items() if run is not None}


def rates(running: dict[str, Contender], count: int, rounds: int) -> dict[str, list[float]]:
    """Pictures per second of CPU time of the whole process, one number a round."""
    seen: dict[str, list[float]] = {name: [] for name in running}
    for run in running.values():
        run()  # compiles, touches memory, fills caches
    for _ in range(rounds):
        for name, run in running.items():
            start_s = time.process_time()
            passes = run() or 1
            seen[name].append(passes * count / (time.process_time() - start_s))
    return seen


def difference(pictures: list[bytes], transform: Transform) -> dict[str, float]:
    """How far the kernel's pixels are from Pillow's, of 255."""
    outs = []
    for kind in (NativeDecoder, PillowDecoder):
        out = np.zeros((len(pictures), SIDE, SIDE, 3), np.uint8)
        kind(transform).decode(share_of(pictures, out))
        outs.append(out.astype(np.int16))
    off = np.abs(outs[0] - outs[1])
    return {
        "mean": float(off.mean()),
        "worst picture": float(off.mean(axis=(1, 2, 3)).max()),
        "share off by more than 8, worst picture": float((off > 8).mean(axis=(1, 2, 3)).max()),
    }


def enlarged(pictures: list[bytes], width: int) -> list[bytes]:
    """The same pictures at a camera's size, for the scaled decode."""
    result = []
    for picture in pictures:
        image = Image.open(io.BytesIO(picture))
        size = (width, round(image.height * width / image.width))
        data = io.BytesIO()
        image.resize(size, Image.Resampling.LANCZOS).save(data, "JPEG", quality=90)
        result.append(data.getvalue())
    return result


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    files = sorted(arguments.folder.rglob("*.jpg"))
    files = files[:: max(1, len(files) // arguments.pictures)][: arguments.pictures]
    small = [path.read_bytes() for path in files]
    sets = {"as cut": small}
    if arguments.large:
        large = sorted(arguments.large.rglob("*.jpg"))[: arguments.pictures // 4]
        sets["large"] = [path.read_bytes() for path in large]
    else:
        sets["enlarged to 1,600"] = enlarged(small[: arguments.pictures // 8], 1600)
    results = []
    for set_name, pictures in sets.items():
        for name, transform in TRANSFORMS.items():
            with tempfile.TemporaryDirectory() as folder:
                running = contenders(pictures, transform, Path(folder))
                seen = rates(running, len(pictures), arguments.rounds)
            medians = {who: statistics.median(values) for who, values in seen.items()}
            ratios = {
                who: statistics.median(
                    ours / theirs for ours, theirs in zip(seen["kernel"], values, strict=True)
                )
                for who, values in seen.items()
            }
            results.append(
                {
                    "pictures": f"{len(pictures)} {set_name}, mean "
                    f"{sum(map(len, pictures)) // len(pictures):,} bytes",
                    "transform": name,
                    "per_cpu_second": {who: round(rate) for who, rate in medians.items()},
                    "kernel_by_other": {who: round(ratio, 2) for who, ratio in ratios.items()},
                    "difference_to_pillow": difference(pictures, transform),
                }
            )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="of benchmarks/cut_photographs.py")
    parser.add_argument("--large", type=Path, help="a folder of large photographs")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--pictures", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    results = measure(arguments)
    if arguments.json:
        print(json.dumps(results, indent=2))
        return
    simd = NativeDecoder(CenterCrop(SIDE)).simd
    print(f"{platform.machine()}, {simd}, {native_kernel.libjpeg_name()}, Pillow {PIL.__version__}")
    for result in results:
        print(
            f"\n{result['pictures']}; {result['transform']}; medians of {arguments.rounds} rounds"
        )
        for who, rate in result["per_cpu_second"].items():
            print(
                f"  {who:30} {rate:6} per CPU second   kernel x{result['kernel_by_other'][who]:.2f}"
            )
        off = result["difference_to_pillow"]
        print("  kernel to Pillow, of 255:", ", ".join(f"{k} {v:.4f}" for k, v in off.items()))


if __name__ == "__main__":
    main()

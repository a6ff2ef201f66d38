"""Writes the golden sources with the libraries that they belong to.

    python tests/convert/golden/build.py

needs mosaicml-streaming, webdataset and datasets. The files in this folder were written by 0.13,
1.0.2 and 5.2.
"""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

HERE = Path(__file__).parent
SAMPLES = 6


def jpeg(seed: int) -> bytes:
    """A small JPEG."""
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 12, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="JPEG", quality=50)
    return file.getvalue()


def sample(number: int) -> dict[str, Any]:
    """What each golden source holds as its sample of this number."""
    return {
        "image": jpeg(number),
        "label": number % 3,
        "caption": f"picture {number}, \u732b",
        "weights": np.arange(number + 1, dtype=np.float32),
        "box": np.array([number, 2, 3, 4], dtype=np.int32),
        "extra": {"number": number},
    }


def build_mds(folder: Path, compression: str | None) -> None:
    """Write an MDS data set of two shards."""
    from streaming import MDSWriter

    columns = {
        "image": "jpeg",
        "label": "int",
        "caption": "str",
        "weights": "ndarray:float32",
        "box": "ndarray:int32:4",
        "extra": "json",
        "count": "str_int",
        "pixels": "pil",
        "small": "uint8",
        "raw": "bytes",
    }
    with MDSWriter(
        out=str(folder), columns=columns, compression=compression, size_limit=6000
    ) as writer:
        for number in range(SAMPLES):
            values = sample(number)
            picture = Image.open(io.BytesIO(values["image"]))
            writer.write(
                {
                    **values,
                    "image": picture,
                    "count": number,
                    "pixels": picture.convert("RGB"),
                    "small": np.uint8(number),
                    "raw": bytes([number]) * number,
                }
            )


def build_mds_lists(folder: Path) -> None:
    """Write an MDS data set whose samples have several pictures each."""
    from streaming import MDSWriter

    columns = {
        "pixels": "list[pil]",
        "frames": "list[jpeg]",
        "masks": "list[png]",
        "views": "jpeg_array",
        "label": "int",
    }
    with MDSWriter(out=str(folder), columns=columns, size_limit=6000) as writer:
        for number in range(SAMPLES):
            pictures = [Image.open(io.BytesIO(data)) for data in views(number)]
            writer.write(
                {
                    "pixels": [picture.convert("RGB") for picture in pictures[:2]],
                    "frames": pictures[:1],
                    "masks": [picture.convert("L") for picture in pictures],
                    "views": views(number),
                    "label": number % 3,
                }
            )


def views(number: int) -> list[bytes]:
    """The pictures of a sample of the lists."""
    return [jpeg(100 * number + place) for place in range(3)]


def build_webdataset(folder: Path) -> None:
    """Write two tars."""
    import webdataset

    folder.mkdir()
    with webdataset.ShardWriter(
        str(folder / "set-%04d.tar"), maxcount=SAMPLES // 2, verbose=0, mtime=0
    ) as sink:
        for number in range(SAMPLES):
            values = sample(number)
            sink.write(
                {
                    "__key__": f"deep/{number:03d}",
                    "jpg": values["image"],
                    "mask.png": Image.fromarray(np.full((4, 4), number, np.uint8)),
                    "cls": values["label"],
                    "txt": values["caption"],
                    "json": json.dumps(values["extra"]).encode(),
                    "npy": values["box"],
                }
            )


def build_hugging_face(folder: Path) -> None:
    """Write Parquet and Arrow files."""
    from datasets import ClassLabel, Dataset, Features, Sequence, Value
    from datasets import Image as ImageFeature

    features = Features(
        {
            "image": ImageFeature(),
            "label": ClassLabel(names=["ant", "bee", "cat"]),
            "caption": Value("string"),
            "weights": Sequence(Value("float32")),
        }
    )
    rows = [sample(number) for number in range(SAMPLES)]
    columns = {
        "image": [{"bytes": row["image"], "path": None} for row in rows],
        "label": [row["label"] for row in rows],
        "caption": [row["caption"] for row in rows],
        "weights": [row["weights"].tolist() for row in rows],
    }
    made = Dataset.from_dict(columns, features=features)
    folder.mkdir()
    made.to_parquet(str(folder / "train-00000-of-00001.parquet"), batch_size=4)
    made.save_to_disk(str(folder / "saved"))


if __name__ == "__main__":
    for name in ("mds", "mds-zstd", "mds-lists", "webdataset", "hugging-face"):
        shutil.rmtree(HERE / name, ignore_errors=True)
    build_hugging_face(HERE / "hugging-face")
    build_mds(HERE / "mds", None)
    build_mds(HERE / "mds-zstd", "zstd")
    build_mds_lists(HERE / "mds-lists")
    build_webdataset(HERE / "webdataset")

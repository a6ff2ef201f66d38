"""Small data sets of pictures for tests."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image

from streamloader import DatasetWriter

NUM_PICTURES = 83


def picture(number: int) -> bytes:
    """A JPEG of its own size and colours."""
    rng = np.random.default_rng(number)
    height, width = int(rng.integers(40, 90)), int(rng.integers(40, 90))
    coarse = rng.integers(0, 256, (5, 7, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    out = io.BytesIO()
    image.save(out, "JPEG", quality=90)
    return out.getvalue()


def write_pictures(dest: Any, count: int = NUM_PICTURES, **options: Any) -> None:
    """Pictures with their number as label, in blocks of 4 and shards of about 20."""
    wanted = {"shard_bytes": 40_000, "block_samples": 4, **options}
    fields = {"image": "picture", "label": "int64"}
    with DatasetWriter(dest, fields, classes=["a", "b"], **wanted) as writer:
        for number in range(count):
            writer.write({"image": picture(number), "label": number}, key=f"p/{number}.jpg")

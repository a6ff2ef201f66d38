"""Sources with flipped and missing bytes end in a sentence or in rejects, in nothing else."""

from __future__ import annotations

import io
import random
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

from streamloader.convert.report import Rejected
from streamloader.convert.sources import SourceChoice, open_source
from streamloader.convert.sources.npy import NotAnArrayError, read_npy
from streamloader.dts import Schema
from streamloader.dts.writer import ShardWriter
from streamloader.errors import ConfigError, ShardError

GOLDEN = Path(__file__).parent / "golden"
ROUNDS = 60


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Flip a few bytes near one place, write an extreme number there, or cut the end off."""
    at = rng.randrange(len(data))
    kind = rng.randrange(4)
    if kind == 0:
        return data[:at]
    changed = bytearray(data)
    if kind == 1:
        struct.pack_into("<I", changed, min(at, len(data) - 4), rng.choice([0, 2**31, 2**32 - 1]))
    else:
        for place in range(at, min(at + rng.randint(1, 4), len(data))):
            changed[place] = rng.randrange(256)
    return bytes(changed)


def read_all(folder: Path, kind: str) -> int:
    """Read a source whole, and encode what it gives; the number of samples."""
    source = open_source([str(folder)], SourceChoice(kind), {})
    writer = ShardWriter(
        Schema(source.listing.fields),
        uuid=bytes(16),
        sink=lambda data: None,
        allow_unreadable_pictures=True,
    )
    with source.reading() as read:
        for number, split in enumerate(source.listing.splits):
            for content in read(number, range(len(split.keys))):
                if not isinstance(content, Rejected):
                    writer.add(content)
    return writer.num_samples


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("mds", "mds"),
        ("mds-zstd", "mds"),
        ("mds-lists", "mds"),
        ("webdataset", "webdataset"),
        ("hugging-face", "parquet"),
        ("hugging-face", "arrow"),
    ],
)
def test_any_damage_is_a_sentence_or_a_reject(tmp_path: Path, name: str, kind: str) -> None:
    if name == "hugging-face":
        pytest.importorskip("pyarrow")
    if name == "mds-zstd":
        pytest.importorskip("zstandard")
    folder = tmp_path / "source"
    shutil.copytree(GOLDEN / name, folder)
    assert read_all(folder, kind) == 6
    endings = {"parquet": (".parquet",), "arrow": (".arrow",)}.get(
        kind, (".mds", ".json", ".tar", ".zstd")
    )
    files = [path for path in sorted(folder.rglob("*")) if path.suffix in endings]
    rng = random.Random(kind + name)
    refused = 0
    for _ in range(ROUNDS):
        path = rng.choice(files)
        whole = path.read_bytes()
        path.write_bytes(damaged(whole, rng))
        try:
            read_all(folder, kind)
        except (ConfigError, ShardError):
            refused += 1
        path.write_bytes(whole)
    assert refused > 0


def test_any_damage_to_an_array_is_named() -> None:
    file = io.BytesIO()
    np.save(file, np.arange(20, dtype=np.float32).reshape(4, 5))
    rng = random.Random(0)
    refused = 0
    for _ in range(2000):
        try:
            array = read_npy(damaged(file.getvalue(), rng))
        except NotAnArrayError:
            refused += 1
        else:
            assert array.dtype.kind in "biuf"
    assert refused > 500

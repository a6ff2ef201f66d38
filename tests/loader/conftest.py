"""Small data sets that the loader's tests read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from picture_sets import write_pictures


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pictures") / "set"
    write_pictures(path)
    return path


@pytest.fixture
def damage() -> Callable[[Path, int], str]:
    """Flips one byte in the middle of a sample's record; returns the shard's name."""
    from streamloader.dts import BlockTable, Manifest, ShardIndex, Sidecar

    def flip(dataset: Path, sample: int) -> str:
        manifest_path = next(dataset.glob("manifest-*.json"))
        manifest = Manifest.parse(manifest_path.read_bytes(), name=manifest_path.name)
        sidecar = Sidecar.parse((dataset / manifest.sidecar.name).read_bytes(), name="sidecar")
        span = BlockTable(manifest, sidecar).locate(sample, 1)[0]
        entry = manifest.entry(span.shard)
        shard = dataset / entry.name
        data = bytearray(shard.read_bytes())
        index = ShardIndex.parse(
            bytes(data[-entry.tail_bytes :]), name=entry.name, file_bytes=len(data)
        )
        offsets, lengths = index.field_ranges("image", span.first, 1)
        data[int(offsets[0] + lengths[0] // 2)] ^= 0x10
        shard.write_bytes(data)
        return entry.name

    return flip

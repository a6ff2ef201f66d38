"""Compressed fields and fields that only some shards have, through the whole loader."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from picture_sets import picture

from streamloader import CenterCrop, DatasetWriter, SampleError, StreamLoader, open_dataset
from streamloader.dts import (
    Field,
    Manifest,
    Pointer,
    Schema,
    ShardWriter,
    SidecarEntry,
    build_sidecar,
    manifest_name,
    sidecar_name,
)

pytest.importorskip("zstandard")

CODED = {
    "image": Field("image", "picture", codec="zstd"),
    "text": Field("text", "utf8", codec="zstd"),
    "grid": Field("grid", "i4", (8, 8), codec="zstd"),
    "tokens": Field("tokens", "i4", (-1,), codec="zstd"),
    "label": Field("label", "i8"),
}


def sample(number: int) -> dict[str, object]:
    return {
        "image": picture(number),
        "text": f"caption {number} " * (1 + number % 40),
        "grid": np.full((8, 8), number, np.int32),
        "tokens": np.zeros(number * 10, np.int32),
        "label": number,
    }


@pytest.fixture(scope="module")
def coded(tmp_path_factory):
    path = tmp_path_factory.mktemp("coded") / "set"
    with DatasetWriter(path, CODED, shard_bytes="40kb", block_samples=3) as writer:
        for number in range(40):
            writer.write(sample(number), key=str(number))
    return path


def test_compressed_values_come_out_as_they_were_written(coded):
    options = {"batch_size": 7, "shuffle": True, "device": "cpu"}
    seen = []
    with StreamLoader(coded, transform=CenterCrop(16), **options) as stream:
        for batch in stream:
            for row, number in enumerate(batch["index"].tolist()):
                wanted = sample(number)
                assert batch["text"][row] == wanted["text"]
                assert np.array_equal(batch["grid"][row], wanted["grid"])
                assert np.array_equal(batch["tokens"][row], wanted["tokens"])
            seen += batch["index"][batch["valid"]].tolist()
    assert sorted(seen) == list(range(40))
    with StreamLoader(coded, **options) as stream:
        batch = next(iter(stream))
        assert batch["image"][0] == picture(int(batch["index"][0]))


def test_a_frame_that_does_not_decompress_is_a_bad_sample(coded, tmp_path, damage):
    import shutil

    shutil.copytree(coded, tmp_path / "set")
    damage(tmp_path / "set", 9)
    with (
        StreamLoader(tmp_path / "set", batch_size=4, device="cpu") as stream,
        pytest.raises(SampleError) as raised,
    ):
        list(stream)
    assert raised.value.sample == 9


def test_fields_that_a_shard_lacks_have_their_defaults(tmp_path):
    old = Schema((Field("label", "i8"),))
    new = Schema(
        (
            Field("label", "i8"),
            Field("weight", "f4", default=1.5),
            Field("note", "utf8", default="none"),
            Field("big", "i4", (40,), default=7),
        )
    )
    rows = [[{"label": n} for n in range(5)]]
    rows.append(
        [
            {"label": n, "weight": 0.5, "note": f"n{n}", "big": np.full(40, n, np.int32)}
            for n in range(5, 9)
        ]
    )
    entries, offsets = [], []
    for number, (schema, samples) in enumerate(zip((old, new), rows, strict=True)):
        parts: list[bytes] = []
        name = f"{number:05d}.dts"
        writer = ShardWriter(
            schema, uuid=bytes([number]) * 16, sink=lambda d, p=parts: p.append(bytes(d)), name=name
        )
        for values in samples:
            writer.add(values)
        summary = writer.finish()
        (tmp_path / name).write_bytes(b"".join(parts))
        entries.append(summary.entry(name, schema_id=number))
        offsets.append(summary.offsets)
    sidecar, max_block_bytes = build_sidecar(offsets, 2)
    manifest = Manifest(
        dataset_uuid=bytes(16),
        rev=1,
        schemas=(old, new),
        shards=entries,
        block_samples=2,
        max_block_bytes=max_block_bytes,
        max_record_bytes=1024,
        sidecar=SidecarEntry(sidecar_name(1), sidecar.sha256),
    )
    (tmp_path / sidecar_name(1)).write_bytes(sidecar.to_bytes())
    data = manifest.to_bytes()
    (tmp_path / manifest_name(1)).write_bytes(data)
    pointer = Pointer(rev=1, manifest=manifest_name(1), sha256=hashlib.sha256(data).hexdigest())
    (tmp_path / "latest.json").write_bytes(pointer.to_bytes())
    with StreamLoader(tmp_path, batch_size=4, shuffle=True, device="cpu") as stream:
        for batch in stream:
            for row, n in enumerate(batch["index"].tolist()):
                assert batch["weight"][row] == (1.5 if n < 5 else 0.5)
                assert batch["note"][row] == ("none" if n < 5 else f"n{n}")
                assert batch["big"][row].unique().tolist() == [7 if n < 5 else n]
    with open_dataset(tmp_path) as dataset:
        assert dataset[0]["note"] == "none"
        assert dataset[8]["note"] == "n8"

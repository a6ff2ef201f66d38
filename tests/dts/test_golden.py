"""The golden data set: written byte for byte as always, and readable as always."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from streamloader.dts import BlockTable, Manifest, Pointer, Sidecar, open_shard

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(scope="module")
def build():
    spec = importlib.util.spec_from_file_location("golden_build", GOLDEN / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_writer_still_gives_the_golden_bytes(build):
    files = build.build()
    stored = {p.name for p in GOLDEN.iterdir() if p.suffix in (".dts", ".json", ".bin")}
    assert stored == set(files) | {build.COMPRESSED}
    for name, content in files.items():
        assert (GOLDEN / name).read_bytes() == content, name


def test_the_golden_data_set_reads_from_its_pointer_down(build):
    pointer = Pointer.parse((GOLDEN / "latest.json").read_bytes())
    manifest = Manifest.parse(
        (GOLDEN / pointer.manifest).read_bytes(), pointer.manifest, expected_sha256=pointer.sha256
    )
    sidecar = Sidecar.parse(
        (GOLDEN / manifest.sidecar.name).read_bytes(),
        manifest.sidecar.name,
        expected_sha256=manifest.sidecar.sha256,
        expected_blocks=manifest.num_blocks,
    )
    expected = json.loads((GOLDEN / "values.json").read_bytes())
    number = 0
    for split in ("train", "val"):
        table = BlockTable(manifest, sidecar, split)
        for span in table.locate(0, table.num_samples):
            entry = manifest.entry(span.shard)
            data = (GOLDEN / entry.name).read_bytes()
            index = open_shard(lambda o, n, data=data: data[o : o + n], len(data), "x", entry)
            assert index.verify_records(0, index.num_samples, data, 0) == []
            assert index.stats == {"shard": span.shard}
            for sample in range(span.first, span.first + span.count):
                assert index.key(sample) == f"class/{number}.jpg"
                record = index.read_record(sample, data, 0)
                record["image"] = len(record["image"])
                record["raw"] = record["raw"].hex()
                for name, value in expected[number].items():
                    np.testing.assert_equal(record[name], value)
                number += 1
    assert number == len(expected) == manifest.num_samples


def test_golden_picture_columns(build):
    data = (GOLDEN / "00000.dts").read_bytes()
    index = open_shard(lambda o, n: data[o : o + n], len(data), "x")
    assert index.column("image.width").tolist() == [48, 48, 48]
    assert index.column("image.height").tolist() == [32, 32, 32]
    assert [hex(kind) for kind in index.column("image.kind").tolist()] == [
        "0x1461",
        "0x1471",
        "0x6261",
    ]


def test_the_golden_compressed_shard_reads_as_always(build):
    for data in ((GOLDEN / build.COMPRESSED).read_bytes(), build.build_compressed()):
        index = open_shard(lambda o, n, data=data: data[o : o + n], len(data), "x")
        assert index.schema == build.COMPRESSED_SCHEMA
        assert index.dictionary("caption").id == 40_000
        assert index.verify_records(0, 6, data, 0) == []
        packed = [index.lengths(f) < index.raw_lengths(f) for f in ("caption", "image", "mask")]
        assert all(field.any() for field in packed)
        assert not all(field.all() for field in packed)
        for number in range(6):
            record = index.read_record(number, data, 0)
            np.testing.assert_equal(record, build.compressed_record(number))

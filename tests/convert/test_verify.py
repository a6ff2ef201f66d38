"""verify finds every damage, names the place, and looks at the rest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streamloader.convert import Fault, convert, read_samples, verify
from streamloader.errors import ConfigError, SampleError


@pytest.fixture
def dataset(class_tree: Path, tmp_path: Path) -> Path:
    convert(class_tree, tmp_path / "out", shard_bytes="16kb", block_samples=4)
    return tmp_path / "out"


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def faults(dataset: Path, **options: bool) -> tuple[Fault, ...]:
    report = verify(dataset, **options)
    assert report.ok == (not report.faults)
    return report.faults


def test_a_sound_data_set_is_read_whole(dataset: Path) -> None:
    report = verify(dataset, decode=True, sha256=True)
    assert report.ok
    assert report.samples == 60
    sizes = sum(path.stat().st_size for path in dataset.glob("*.dts"))
    assert report.bytes == sizes + (dataset / "offsets-000001.bin").stat().st_size


def test_a_flipped_bit_in_a_picture_names_the_sample_and_the_offset(dataset: Path) -> None:
    sample = read_samples(dataset, [33])[0]
    flip(dataset / sample.shard, sample.offset + 100)
    (fault,) = faults(dataset)
    assert (fault.shard, fault.sample, fault.offset) == (sample.shard, 33, sample.offset)
    with pytest.raises(SampleError, match="sample 33"):
        read_samples(dataset, [33])


def test_every_flipped_byte_of_a_small_shard_is_found(tmp_path: Path, jpeg: object) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "1.jpg").write_bytes(jpeg(1, 2, 2))  # type: ignore[operator]  # a fixture
    convert(tmp_path / "src", tmp_path / "out")
    shard = tmp_path / "out" / "00000.dts"
    whole = shard.read_bytes()
    for offset in range(0, len(whole), 41):
        flip(shard, offset)
        assert faults(tmp_path / "out"), f"byte {offset}"
        shard.write_bytes(whole)
    assert not faults(tmp_path / "out")


def test_a_missing_and_a_truncated_shard_are_faults_and_the_rest_is_read(dataset: Path) -> None:
    shards = sorted(dataset.glob("*.dts"))
    assert len(shards) >= 4
    shards[0].unlink()
    shards[1].write_bytes(shards[1].read_bytes()[:-10])
    report = verify(dataset)
    assert [fault.shard for fault in report.faults] == [shards[0].name, shards[1].name]
    assert "missing" in report.faults[0].reason
    assert "bytes" in report.faults[1].reason
    assert report.samples > 0


def test_a_shard_of_another_data_set_is_noticed(dataset: Path, class_tree: Path) -> None:
    other = dataset.parent / "other"
    convert(class_tree, other, shard_bytes="16kb", shuffle_seed=5)
    (dataset / "00001.dts").write_bytes((other / "00001.dts").read_bytes())
    assert {fault.shard for fault in faults(dataset)} == {"00001.dts"}


@pytest.mark.parametrize("name", ["manifest-000001.json", "offsets-000001.bin"])
def test_a_damaged_index_file_is_a_fault(dataset: Path, name: str) -> None:
    flip(dataset / name, 40)
    assert name in {fault.shard for fault in faults(dataset)}


@pytest.mark.parametrize("name", ["manifest-000001.json", "offsets-000001.bin"])
def test_a_missing_index_file_is_a_fault(dataset: Path, name: str) -> None:
    (dataset / name).unlink()
    assert name in {fault.shard for fault in faults(dataset)}


def test_the_digest_of_a_shard_is_compared_on_request(dataset: Path) -> None:
    import hashlib

    name = "manifest-000001.json"
    manifest = json.loads((dataset / name).read_bytes())
    manifest["shards"][0]["sha256"] = "0" * 64
    data = json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    (dataset / name).write_bytes(data)
    pointer = {"manifest": name, "rev": 1, "sha256": hashlib.sha256(data).hexdigest()}
    (dataset / "latest.json").write_text(json.dumps(pointer, sort_keys=True, separators=(",", ":")))
    assert not faults(dataset)
    (fault,) = faults(dataset, sha256=True)
    assert "SHA-256" in fault.reason


def test_no_data_set_is_a_refusal_and_no_fault(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no data set"):
        verify(tmp_path)

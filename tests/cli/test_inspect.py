"""``streamloader inspect``: what a data set holds, one sample, a contact sheet."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from PIL import Image

from streamloader.convert import DatasetWriter, convert

RunCli = Callable[..., Result]
JSON_KEYS = {"samples", "shards", "bytes", "fields", "classes", "fingerprint"}


@pytest.fixture
def dataset(pictures: Path, tmp_path: Path) -> Path:
    convert(pictures, tmp_path / "out", shard_bytes="4kb", shuffle_seed=None)
    return tmp_path / "out"


def test_counts_sizes_and_class_balance(dataset: Path, pictures: Path, run_cli: RunCli) -> None:
    (values,) = [json.loads(run_cli("inspect", dataset, "--json").stdout)]
    assert values.keys() >= JSON_KEYS
    assert values["samples"] == 12
    assert values["classes"] == ["cat", "dog"]
    assert values["class_counts"] == [6, 6]
    assert values["bytes"] == sum(path.stat().st_size for path in dataset.glob("*.dts"))
    assert values["pictures"]["image"]["width"] == {"min": 30, "median": 30, "max": 30}
    assert [field["name"] for field in values["fields"]] == ["image", "label"]
    text = run_cli("inspect", dataset).stdout
    assert "12 samples" in text
    assert "1 dog: 6" in text


def test_one_sample_is_shown_and_written(
    dataset: Path, pictures: Path, tmp_path: Path, run_cli: RunCli
) -> None:
    result = run_cli("inspect", dataset, "--sample", 7, "--out", tmp_path / "s", "--json")
    sample = json.loads(result.stdout)["sample"]
    assert sample["key"] == "dog/1.jpg"
    assert sample["class"] == "dog"
    assert sample["fields"]["label"] == 1
    image = sample["fields"]["image"]
    assert (image["format"], image["width"], image["height"]) == ("jpeg", 30, 20)
    written = tmp_path / "s" / "7.image.jpg"
    assert written.read_bytes() == (pictures / "dog" / "1.jpg").read_bytes()
    assert "dog/1.jpg" in run_cli("inspect", dataset, "--sample", -5).stdout


@pytest.mark.parametrize("number", [12, -13])
def test_a_sample_that_is_not_there_ends_with_two(
    dataset: Path, run_cli: RunCli, number: int
) -> None:
    result = run_cli("inspect", dataset, f"--sample={number}")
    assert result.exit_code == 2
    assert "no sample" in result.stderr


def test_a_contact_sheet_shows_the_pictures(dataset: Path, tmp_path: Path, run_cli: RunCli) -> None:
    result = run_cli("inspect", dataset, "--sheet", tmp_path / "sheet.png", "--sheet-count", 4)
    assert result.exit_code == 0
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.format == "PNG"
        assert sheet.width < sheet.height * 2
        assert len(sheet.convert("RGB").getcolors(1 << 24) or []) > 500


def test_a_sheet_of_no_pictures_is_refused(tmp_path: Path, run_cli: RunCli) -> None:
    with DatasetWriter(tmp_path / "texts", {"text": "str"}) as writer:
        writer.write({"text": "hello"})
    assert json.loads(run_cli("inspect", tmp_path / "texts", "--json").stdout)["samples"] == 1
    result = run_cli("inspect", tmp_path / "texts", "--sheet", tmp_path / "sheet.png")
    assert result.exit_code == 2
    assert "no picture field" in result.stderr


def test_a_damaged_data_set_ends_with_one(dataset: Path, run_cli: RunCli) -> None:
    manifest = dataset / "manifest-000001.json"
    manifest.write_bytes(manifest.read_bytes().replace(b"cat", b"cow"))
    result = run_cli("inspect", dataset)
    assert result.exit_code == 1
    assert "manifest-000001.json" in result.stderr

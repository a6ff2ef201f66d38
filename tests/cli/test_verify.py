"""``streamloader verify``: 0 for sound, 1 with a list for damaged, 2 for no data set."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from streamloader.convert import convert

RunCli = Callable[..., Result]


@pytest.fixture
def dataset(pictures: Path, tmp_path: Path) -> Path:
    convert(pictures, tmp_path / "out", shard_bytes="4kb")
    return tmp_path / "out"


def test_a_sound_data_set_ends_with_zero(dataset: Path, run_cli: RunCli) -> None:
    result = run_cli("verify", dataset, "--decode", "--sha256", "--jobs", 2, "--json")
    assert result.exit_code == 0
    values = json.loads(result.stdout)
    assert (values["ok"], values["samples"], values["errors"]) == (True, 12, [])
    assert "sound; 12 samples" in run_cli("verify", dataset).stdout


def test_damage_ends_with_one_and_a_list(dataset: Path, run_cli: RunCli) -> None:
    shard = dataset / "00000.dts"
    data = bytearray(shard.read_bytes())
    data[300] ^= 1
    shard.write_bytes(data)
    (dataset / "00001.dts").unlink()
    result = run_cli("verify", dataset, "--json")
    assert result.exit_code == 1
    values = json.loads(result.stdout)
    assert values["ok"] is False
    damaged, missing = values["errors"]
    assert damaged["shard"] == "00000.dts"
    assert damaged["sample"] == 0
    assert damaged.keys() == {"shard", "sample", "offset", "reason"}
    assert missing["shard"] == "00001.dts"
    text = run_cli("verify", dataset)
    assert text.exit_code == 1
    assert "00001.dts" in text.stdout


def test_no_data_set_ends_with_two(tmp_path: Path, run_cli: RunCli) -> None:
    result = run_cli("verify", tmp_path)
    assert result.exit_code == 2
    assert "no data set" in result.stderr
    assert len(result.stderr.splitlines()) == 1

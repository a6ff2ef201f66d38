"""``streamloader convert``: results, exit codes, and nothing left of what failed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from storage_backends import NotFound

RunCli = Callable[..., Result]
COMMAND = [sys.executable, "-c", "from streamloader.cli import main; main()"]
JSON_KEYS = {"samples", "shards", "bytes_in", "bytes_out", "rejected", "seconds", "classes"}


def s3_args(options: dict[str, Any]) -> list[str]:
    return [part for pair in options.items() for part in ("--storage-option", "=".join(pair))]


def test_standard_output_is_one_json_object(pictures: Path, tmp_path: Path) -> None:
    (pictures / "cat" / "bad.jpg").write_bytes(b"<html></html>")
    done = subprocess.run(
        [*COMMAND, "convert", str(pictures), str(tmp_path / "out"), "--json"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "LANG": "C", "LC_ALL": "C"},
    )
    values = json.loads(done.stdout)
    assert done.stdout.count("\n") == 1
    assert values.keys() >= JSON_KEYS
    assert values["samples"] == 12
    assert values["classes"] == ["cat", "dog"]
    (rejected,) = values["rejected"]
    assert rejected["path"] == "cat/bad.jpg"
    assert "HTML" in rejected["reason"]
    assert done.stderr == ""


def test_for_people_it_says_what_was_left_out(
    pictures: Path, tmp_path: Path, run_cli: RunCli
) -> None:
    (pictures / "cat" / "b\na\u202ed.jpg").write_bytes(b"")
    (pictures / "empty").mkdir()
    result = run_cli("convert", pictures, tmp_path / "out")
    assert result.exit_code == 0
    assert "12 samples" in result.stdout
    assert "cat/b\\na\\u202ed.jpg: " in result.stdout
    assert result.stderr.startswith("warning: ")


def test_options_reach_the_conversion(pictures: Path, tmp_path: Path, run_cli: RunCli) -> None:
    args = ["--shard-bytes", "4kb", "--block-samples", 3, "--seed", 7, "--jobs", 1, "--json"]
    result = run_cli("convert", pictures, tmp_path / "out", *args)
    assert json.loads(result.stdout)["shards"] > 1
    manifest = json.loads((tmp_path / "out" / "manifest-000001.json").read_bytes())
    assert manifest["block_samples"] == 3
    assert manifest["export_seed"] == 7
    run_cli("convert", pictures, tmp_path / "plain", "--no-shuffle")
    manifest = json.loads((tmp_path / "plain" / "manifest-000001.json").read_bytes())
    assert manifest["export_seed"] is None


def test_a_second_run_is_refused_with_two(pictures: Path, tmp_path: Path, run_cli: RunCli) -> None:
    assert run_cli("convert", pictures, tmp_path / "out").exit_code == 0
    again = run_cli("convert", pictures, tmp_path / "out")
    assert again.exit_code == 2
    assert "already holds a data set" in again.stderr


def test_an_empty_source_ends_with_two_and_leaves_nothing(tmp_path: Path, run_cli: RunCli) -> None:
    (tmp_path / "empty").mkdir()
    result = run_cli("convert", tmp_path / "empty", tmp_path / "out")
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert "wanted are class folders" in result.stderr
    assert not (tmp_path / "out").exists()


def test_too_many_rejects_end_with_one_and_are_listed(
    pictures: Path, tmp_path: Path, run_cli: RunCli
) -> None:
    (pictures / "cat" / "bad.jpg").write_bytes(b"<html></html>")
    result = run_cli("convert", pictures, tmp_path / "out", "--max-rejects", 0, "--json")
    assert result.exit_code == 1
    values = json.loads(result.stdout)
    assert values["error"]["kind"] == "RejectedError"
    assert values["rejected"][0]["path"] == "cat/bad.jpg"
    assert not (tmp_path / "out" / "latest.json").exists()
    allowed = run_cli("convert", pictures, tmp_path / "out", "--max-rejects", 1)
    assert allowed.exit_code == 0


def test_nothing_sound_ends_with_one(tmp_path: Path, run_cli: RunCli) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.jpg").write_bytes(b"")
    result = run_cli("convert", tmp_path / "src", tmp_path / "out")
    assert result.exit_code == 1
    assert "a.jpg" in result.stderr
    assert not (tmp_path / "out").exists()


def test_an_interrupted_run_ends_with_130_and_publishes_nothing(
    pictures: Path, tmp_path: Path
) -> None:
    blocked = (
        "import sys\n"
        "from streamloader.convert.runs import RunReader\n"
        "from streamloader.cli import main\n"
        "def block(self, split, places):\n"
        "    print('blocked', file=sys.stderr, flush=True)\n"
        "    self._abort.wait()\n"
        "    raise AssertionError('its result is not used')\n"
        "RunReader.read_run = block\n"
        "main()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", blocked, "convert", str(pictures), str(tmp_path / "out")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "blocked\n"
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (out, errors.strip()) == ("", "interrupted")
    assert not list(tmp_path.glob("out/*.json"))


@pytest.mark.s3
def test_a_bucket_is_used_and_never_made(
    pictures: Path, s3_bucket: Any, s3_server: Any, run_cli: RunCli
) -> None:
    args = s3_args(s3_bucket.storage_options)
    done = run_cli("convert", pictures, f"{s3_bucket.url}/set", "--json", *args)
    assert done.exit_code == 0
    assert json.loads(done.stdout)["samples"] == 12
    missing = run_cli("convert", pictures, f"{s3_bucket.url}-missing/set", "--json", *args)
    assert missing.exit_code == 2
    assert json.loads(missing.stdout)["error"]["kind"] == NotFound.__name__
    reader = s3_args(s3_server.readonly_storage_options)
    denied = run_cli("convert", pictures, f"{s3_bucket.url}/other", *reader)
    assert denied.exit_code == 2
    assert len(denied.stderr.splitlines()) == 1
    assert s3_server.readonly_secret_key not in denied.stderr


def test_codec_level_and_hash_reach_the_conversion(
    pictures: Path, tmp_path: Path, run_cli: RunCli
) -> None:
    pytest.importorskip("zstandard")
    args = ["--codec", "image=zstd", "--zstd-level", 5, "--hash", "crc32"]
    assert run_cli("convert", pictures, tmp_path / "out", *args).exit_code == 0
    shown = run_cli("inspect", tmp_path / "out")
    assert "image (picture, zstd), label (i8)" in shown.stdout
    values = json.loads(run_cli("inspect", tmp_path / "out", "--json").stdout)
    assert values["hash"] == "crc32"
    assert run_cli("verify", tmp_path / "out", "--decode").exit_code == 0


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--codec", "zstd"], "image=zstd"),
        (["--codec", "lz4"], "none, zstd"),
        (["--codec", "image=none", "--codec", "image=zstd"], "two codecs for one field"),
        (["--zstd-level", 5], "without codec 'zstd'"),
        (["--hash", "md5"], "crc32"),
    ],
    ids=str,
)
def test_an_encoding_that_cannot_be_ends_with_two_and_leaves_nothing(
    args: list[object], message: str, pictures: Path, tmp_path: Path, run_cli: RunCli
) -> None:
    pytest.importorskip("zstandard")
    result = run_cli("convert", pictures, tmp_path / "out", *args)
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert message in result.stderr
    assert not (tmp_path / "out").exists()

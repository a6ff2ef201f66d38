"""``streamloader append``, ``diff`` and ``clean``, and what ``convert`` says of going on."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

RunCli = Callable[..., Result]


def test_append_adds_a_revision(pictures: Path, tmp_path: Path, run_cli: RunCli) -> None:
    run_cli("convert", pictures, tmp_path / "out")
    result = run_cli("append", pictures, tmp_path / "out", "--json", "--seed", 3)
    assert result.exit_code == 0
    values = json.loads(result.stdout)
    assert (values["samples"], values["total_samples"], values["revision"]) == (12, 24, 2)
    shown = run_cli("append", pictures, tmp_path / "out")
    assert "revision 3, 12 samples added" in shown.stdout
    assert run_cli("verify", tmp_path / "out").exit_code == 0
    missing = run_cli("append", pictures, tmp_path / "nothing")
    assert missing.exit_code == 2
    assert len(missing.stderr.splitlines()) == 1


def test_diff_ends_with_one_where_samples_differ(
    pictures: Path, tmp_path: Path, run_cli: RunCli
) -> None:
    run_cli("convert", pictures, tmp_path / "a")
    run_cli("convert", pictures, tmp_path / "b", "--no-shuffle")
    same = run_cli("diff", tmp_path / "a", tmp_path / "b")
    assert same.exit_code == 0
    assert "the same samples" in same.stdout
    run_cli("convert", pictures, tmp_path / "c", "--keep-class", "cat")
    found = run_cli("diff", tmp_path / "a", tmp_path / "c", "--json")
    assert found.exit_code == 1
    values = json.loads(found.stdout)
    assert values["removed_total"] == 6
    assert not values["same"]
    assert run_cli("diff", tmp_path / "a", tmp_path / "nothing").exit_code == 2


def test_clean_says_what_it_removes(pictures: Path, tmp_path: Path, run_cli: RunCli) -> None:
    run_cli("convert", pictures, tmp_path / "out")
    rest = tmp_path / "out" / "unfinished.00007"
    rest.write_bytes(b"{}")
    told = run_cli("clean", tmp_path / "out", "--dry-run")
    assert told.exit_code == 0
    assert "would remove 1 things" in told.stdout
    assert rest.exists()
    values = json.loads(run_cli("clean", tmp_path / "out", "--json").stdout)
    assert (values["files"], values["uploads"]) == (1, 0)
    assert not rest.exists()
    assert run_cli("verify", tmp_path / "out").exit_code == 0


def test_convert_goes_on_only_where_it_may(pictures: Path, tmp_path: Path, run_cli: RunCli) -> None:
    first = json.loads(run_cli("convert", pictures, tmp_path / "out", "--json").stdout)
    assert run_cli("convert", pictures, tmp_path / "out").exit_code == 2
    again = run_cli("convert", pictures, tmp_path / "out", "--resume", "--json")
    assert again.exit_code == 0
    assert json.loads(again.stdout)["fingerprint"] == first["fingerprint"]
    other = run_cli("convert", pictures, tmp_path / "out", "--resume", "--seed", 1)
    assert other.exit_code == 2
    assert "other options" in other.stderr
    replaced = run_cli("convert", pictures, tmp_path / "out", "--overwrite", "--seed", 1, "--json")
    assert json.loads(replaced.stdout)["fingerprint"] != first["fingerprint"]


def test_what_is_done_to_pictures_and_what_is_kept_reach_the_conversion(
    pictures: Path, tmp_path: Path, run_cli: RunCli
) -> None:
    (tmp_path / "keys.txt").write_text("cat/0.jpg\n")
    keys = sorted(str(path.relative_to(pictures)) for path in pictures.rglob("*.jpg"))
    (tmp_path / "keys.txt").write_text("\n".join(keys[:3]) + "\n")
    (tmp_path / "t.csv").write_text("path,caption\n" + "".join(f"{k},c\n" for k in keys))
    args = ["--resize-short", 4, "--quality", 50, "--keep-keys", tmp_path / "keys.txt"]
    args += ["--labels", tmp_path / "t.csv", "--from", "folder"]
    result = run_cli("convert", pictures, tmp_path / "out", *args, "--json")
    assert json.loads(result.stdout)["samples"] == 3
    values = json.loads(run_cli("inspect", tmp_path / "out", "--json").stdout)
    sides = values["pictures"]["image"]
    assert min(sides["width"]["max"], sides["height"]["max"]) == 4
    assert {field["name"] for field in values["fields"]} == {"image", "caption"}
    wrong = run_cli("convert", pictures, tmp_path / "other", "--quality", 50)
    assert wrong.exit_code == 2
    assert len(wrong.stderr.splitlines()) == 1


def test_an_engine_whose_package_is_missing_is_named(
    pictures: Path, tmp_path: Path, run_cli: RunCli
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "ray", None)
        result = run_cli("convert", pictures, tmp_path / "out", "--engine", "ray")
    assert result.exit_code == 2
    assert "streamloader[ray]" in result.stderr
    assert not (tmp_path / "out").exists()

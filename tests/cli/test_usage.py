"""What every verb promises: exit codes, one JSON object, one sentence, no traceback."""

from __future__ import annotations

import errno
import json
import resource
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import click
import pytest
from click.testing import CliRunner

from storage_backends import AccessDenied, Changed, NotFound, Truncated, Unavailable
from streamloader.cli import VERBS, root
from streamloader.cli._options import SIZE, output_options, storage_options
from streamloader.cli._output import ExitCode, FoundWrong, Output, printable
from streamloader.errors import ConfigError, SampleError, ShardError
from streamloader.sizes import format_size, parse_size

COMMAND = [sys.executable, "-c", "from streamloader.cli import main; main()"]


@pytest.fixture
def raising(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Replace every verb by one that raises, and run it."""

    def run(error: BaseException, *args: str) -> Any:
        @click.command()
        @output_options
        def command(output: Output) -> None:
            raise error

        monkeypatch.setattr(type(root), "get_command", lambda *_: command)
        return CliRunner().invoke(root, ["verify", *args])

    return run


CODES = [
    (ConfigError("wrong"), ExitCode.COULD_NOT_RUN),
    (ShardError("wrong", shard="0.dts"), ExitCode.FOUND_WRONG),
    (SampleError("wrong", dataset="d", shard="0.dts", sample=1), ExitCode.FOUND_WRONG),
    (Truncated("wrong", url="s3://b/0.dts"), ExitCode.FOUND_WRONG),
    (Changed("wrong", url="s3://b/0.dts"), ExitCode.FOUND_WRONG),
    (NotFound("wrong", url="s3://b/0.dts"), ExitCode.FOUND_WRONG),
    (NotFound("wrong", url="s3://b"), ExitCode.COULD_NOT_RUN),
    (AccessDenied("wrong", url="s3://b"), ExitCode.COULD_NOT_RUN),
    (Unavailable("wrong", url="s3://b"), ExitCode.COULD_NOT_RUN),
    (OSError(errno.ENOSPC, "wrong", "/full"), ExitCode.COULD_NOT_RUN),
    (FoundWrong("wrong", {}), ExitCode.FOUND_WRONG),
    (ZeroDivisionError("wrong"), ExitCode.COULD_NOT_RUN),
    (KeyboardInterrupt(), ExitCode.INTERRUPTED),
]


@pytest.mark.parametrize(("error", "code"), CODES, ids=lambda value: type(value).__name__)
def test_an_error_is_one_line_and_its_exit_code(
    raising: Any, error: BaseException, code: ExitCode
) -> None:
    result = raising(error)
    assert result.exit_code == code
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    wanted = "interrupted" if code == ExitCode.INTERRUPTED else "wrong"
    assert wanted in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_json_says_the_error_as_an_object_too(raising: Any) -> None:
    result = raising(NotFound("no such bucket", url="s3://b"), "--json")
    assert json.loads(result.stdout) == {
        "error": {"kind": "NotFound", "message": "no such bucket", "where": "s3://b"}
    }
    assert result.stderr == "error: no such bucket\n"


def test_debug_shows_the_traceback(raising: Any) -> None:
    result = raising(ConfigError("wrong"), "--debug")
    assert "Traceback" in result.stderr
    assert "ConfigError" in result.stderr


@pytest.mark.parametrize(
    "args", [["nonsense"], ["verify"], ["verify", "x", "--nonsense"], ["convert", "x"]]
)
def test_wrong_usage_ends_with_two(args: list[str]) -> None:
    result = CliRunner().invoke(root, args)
    assert result.exit_code == ExitCode.COULD_NOT_RUN
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    with_json = CliRunner().invoke(root, [*args, "--json"])
    assert with_json.exit_code == ExitCode.COULD_NOT_RUN
    assert set(json.loads(with_json.stdout)["error"]) == {"kind", "message", "where"}


def test_help_names_every_verb() -> None:
    result = CliRunner().invoke(root, ["--help"])
    assert result.exit_code == 0
    assert all(f"  {verb} " in result.stdout for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(verb: str) -> None:
    result = CliRunner().invoke(root, [verb, "--help"])
    assert result.exit_code == 0
    assert "--json" in result.stdout


@pytest.mark.parametrize("verb", ["convert", "inspect", "verify"])
def test_verbs_that_reach_storage_take_its_options(verb: str) -> None:
    result = CliRunner().invoke(root, [verb, "--help"])
    assert result.exit_code == 0
    for option in ("--json", "--debug", "--endpoint-url", "--profile", "--storage-option"):
        assert option in result.stdout


def test_help_starts_fast_and_imports_no_heavy_library() -> None:
    heavy = "torch", "botocore", "aiobotocore", "PIL", "numpy", "rich"
    program = (
        "import sys; from streamloader.cli import root\n"
        "try: root.main(['--help'])\n"
        f"finally: print([m for m in {heavy!r} if m in sys.modules], file=sys.stderr)"
    )
    cpu_s = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
        assert done.stderr == "[]\n"
    # CPU time: the wall time of a busy machine says nothing about this program.
    assert median(cpu_s) < 0.3


def test_a_reader_that_went_away_is_no_error(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "verify", str(tmp_path), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    _, errors = process.communicate(timeout=60)
    assert process.returncode == ExitCode.COULD_NOT_RUN
    assert "BrokenPipe" not in errors
    assert "Traceback" not in errors


def test_storage_options_reach_the_verb_with_their_types() -> None:
    @click.command()
    @click.option("--size", type=SIZE)
    @storage_options
    @output_options
    def command(size: int, storage_options: dict[str, Any], output: Output) -> None:
        output.result({"size": size, **storage_options}, [])

    args = ["--endpoint-url", "http://h", "--region", "r", "--anonymous", "--virtual-hosted"]
    args += ["--json"]
    args += ["--storage-option", "max-connections=8", "--storage-option", "verify_tls=false"]
    args += ["--storage-option", "download_timeout=1.5", "--size", "1mib"]
    result = CliRunner().invoke(command, args)
    assert json.loads(result.stdout) == {
        "size": 1 << 20,
        "endpoint_url": "http://h",
        "region": "r",
        "anonymous": True,
        "path_style": False,
        "max_connections": 8,
        "verify_tls": False,
        "download_timeout": 1.5,
    }
    assert CliRunner().invoke(command, ["--storage-option", "x"]).exit_code == 2
    assert CliRunner().invoke(command, ["--size", "big"]).exit_code == 2


def test_a_secret_in_a_storage_option_is_taken_as_text() -> None:
    @click.command()
    @storage_options
    def command(storage_options: dict[str, Any]) -> None:
        click.echo(json.dumps(storage_options))

    pairs = ["aws_secret_access_key=0123", "aws_access_key_id=1e5", "region=true"]
    args = [part for pair in pairs for part in ("--storage-option", pair)]
    assert json.loads(CliRunner().invoke(command, args).stdout) == {
        "aws_secret_access_key": "0123",
        "aws_access_key_id": "1e5",
        "region": "true",
    }


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("200gb", 200 * 10**9),
        ("128mib", 128 << 20),
        ("1.5 GiB", 3 << 29),
        ("1tb", 10**12),
        ("7", 7),
        (4096, 4096),
        ("0.5kb", 500),
    ],
)
def test_sizes(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "gb", "-1gb", "1xb", "0", "1e3", "nan", "inf", True, 1.5, None]
)
def test_what_is_no_size(text: Any) -> None:
    with pytest.raises(ConfigError, match="cache_limit"):
        parse_size(text, "cache_limit")


def test_sizes_for_people() -> None:
    assert [format_size(n) for n in (7, 1536, 3 << 29, 1 << 50)] == [
        "7 bytes",
        "1.5 KiB",
        "1.5 GiB",
        "1024.0 TiB",
    ]


def test_names_are_shown_without_control_characters() -> None:
    assert printable("a\nb\x1b[31m\u202ec\udcff é猫") == ("a\\nb\\x1b[31m\\u202ec\\udcff é猫")

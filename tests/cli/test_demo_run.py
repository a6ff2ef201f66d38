from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamloader.cli import root
from streamloader.cli.s3_server import find_weed
from streamloader.convert import ConvertReport
from streamloader.errors import ConfigError
from streamloader.fetch.offline import PrefetchReport
from streamloader.monitor import TimeSummary

pytest.importorskip("torch", reason="the demo trains with torch")

from streamloader.cli.demo import run
from streamloader.cli.demo.run import DemoOptions, DemoReport
from streamloader.cli.demo.train import TrainReport

END_TIMEOUT_S = 100
COMMAND = [sys.executable, "-c", "from streamloader.cli import main; main()", "demo"]


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """The only place for temporary files of a demo that a test starts."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


@pytest.fixture
def _needs_server() -> None:
    try:
        find_weed()
    except ConfigError as missing:
        pytest.skip(str(missing))


@contextmanager
def _demo(scratch: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*COMMAND, *arguments, "--out", str(scratch.parent / "out")],
        env={**os.environ, "TMPDIR": str(scratch)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.communicate()


def _processes_that_name(folder: Path) -> Iterator[str]:
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if str(folder) in command:
            yield command


@pytest.mark.s3
@pytest.mark.usefixtures("_needs_server")
def test_demo_learns_resumes_reports_and_leaves_nothing(scratch: Path) -> None:
    with _demo(scratch, "--pictures", "96", "--epochs", "9", "--json") as process:
        stdout, stderr = process.communicate(timeout=END_TIMEOUT_S)
    assert process.returncode == 0, stderr
    values = json.loads(stdout)
    assert values["samples"] == 96
    assert values["steps"] == 27
    assert values["exactly_once"] is True
    assert values["loss_last"] <= values["loss_first"] / 2
    assert values["bytes_from_s3"] >= values["bytes"]
    assert values["prefetch"]["samples"] == 96
    assert values["s3"].startswith("s3://demo-")
    for name in ("samples_per_s", "first_batch_s", "first_batch_after_restart_s"):
        assert values[name] > 0
    page = Path(values["report"]).read_text()
    assert page.startswith("<!doctype html>")
    assert "decode.share" in page
    assert list(scratch.iterdir()) == []
    assert list(_processes_that_name(scratch)) == []


@pytest.mark.s3
@pytest.mark.usefixtures("_needs_server")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "stage"),
    [(signal.SIGTERM, "painting"), (signal.SIGINT, "training")],
    ids=["terminated-while-painting", "ctrl-c-while-training"],
)
def test_interrupted_demo_leaves_nothing(scratch: Path, number: signal.Signals, stage: str) -> None:
    with _demo(scratch, "--pictures", "64", "--epochs", "1000") as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith(stage):
                break
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=END_TIMEOUT_S)
    assert process.returncode == 130, stderr
    assert stdout == ""
    assert "Traceback" not in stderr
    assert list(scratch.iterdir()) == []
    assert list(_processes_that_name(scratch)) == []


def test_without_torch_one_sentence_names_the_extra() -> None:
    code = "import sys; sys.modules['torch'] = None; from streamloader.cli import main; main()"
    process = subprocess.run(
        [sys.executable, "-c", code, "demo"],
        capture_output=True,
        text=True,
        timeout=END_TIMEOUT_S,
        check=False,
    )
    assert process.returncode == 2
    assert process.stdout == ""
    assert process.stderr.count("\n") == 1
    assert "streamloader[torch,demo]" in process.stderr


def test_a_used_folder_to_keep_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    assert _run_here("--keep", str(tmp_path)) == 2
    assert "not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def _run_here(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        root.main(["demo", *arguments])
    assert isinstance(stop.value.code, int)
    return stop.value.code


def _report(losses: list[float], seen: list[int]) -> DemoReport:
    trained = TrainReport(
        samples=4,
        losses=losses,
        restart_step=1,
        first_batch_s=[0.1, 0.1],
        loop_s=1.0,
        trained=8,
        seen_first_epoch=seen,
        crops=np.zeros((1, 8, 8, 3), np.uint8),
    )
    return DemoReport(
        url="s3://demo-1/pictures",
        endpoint_url="http://127.0.0.1:1",
        converted=ConvertReport(
            url="s3://demo-1/pictures",
            samples=4,
            shards=1,
            bytes_in=10,
            bytes_out=20,
            rejected=(),
            seconds=1.0,
            classes=("a", "b"),
            splits={},
            block_samples=4,
            fingerprint="0" * 64,
            warnings=(),
        ),
        prefetched=PrefetchReport(
            samples=4,
            bytes=20,
            seconds=1.0,
            first_block_s=0.1,
            first_batch_s=0.2,
            requests=2,
            retries=0,
            latency=TimeSummary(count=1, p50=1.0, p95=1.0, p99=1.0, max=1.0, sum=1.0),
            errors=(),
        ),
        trained=trained,
        bytes_from_s3=20,
        page=Path("report.html"),
        seconds=2.0,
    )


@pytest.mark.parametrize(
    ("losses", "seen", "exit_code", "sentence"),
    [
        ([2.0, 1.0], [3, 0, 1, 2], 0, ""),
        ([2.0, 1.1], [3, 0, 1, 2], 1, "not within half"),
        ([2.0, float("nan")], [3, 0, 1, 2], 1, "not within half"),
        ([2.0, 1.0], [3, 0, 1], 1, "lost 1 samples of the epoch and repeated 0"),
        ([2.0, 1.0], [3, 0, 1, 2, 2], 1, "lost 0 samples of the epoch and repeated 1"),
    ],
    ids=["kept", "did-not-learn", "diverged", "lost", "repeated"],
)
def test_exit_code_says_whether_the_promises_were_kept(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    losses: list[float],
    seen: list[int],
    exit_code: int,
    sentence: str,
) -> None:
    def finished(_options: DemoOptions, _output: Any) -> DemoReport:
        return _report(losses, seen)

    monkeypatch.setattr(run, "run_demo", finished)
    assert _run_here() == exit_code
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert "samples/s" in captured.out
    assert _run_here("--json") == exit_code
    assert json.loads(capsys.readouterr().out)["steps"] == 2

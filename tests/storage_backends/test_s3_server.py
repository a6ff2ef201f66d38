"""The S3 server of the demo and the tests: it starts, is private, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamloader.cli import s3_server as module
from streamloader.cli.s3_server import SeaweedServer, find_weed
from streamloader.errors import ConfigError, StreamLoaderError

OWNER = """
import sys
from streamloader.cli.s3_server import SeaweedServer
with SeaweedServer() as server:
    print(server._server.pid, server._scratch_dir, flush=True)
    sys.stdin.read()
"""


def eventually(condition: Callable[[], bool], timeout_s: float = 10) -> bool:
    """Polls, since what is waited for happens in processes that are not ours to wait on."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def group_is_gone(pid: int) -> bool:
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.s3
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_when_its_owner_is_ended(number: signal.Signals) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with owner:
        assert owner.stdout is not None
        pid, scratch = owner.stdout.readline().split()
        owner.send_signal(number)
        owner.wait(20)
    assert eventually(lambda: group_is_gone(int(pid)))
    assert eventually(lambda: not Path(scratch).exists())


@pytest.mark.s3
def test_it_listens_on_loopback_only_and_keeps_its_keys_private(s3_server: Any) -> None:
    port = int(s3_server.endpoint_url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), 5):
        pass
    identities = s3_server._scratch_dir / "identities.json"
    assert stat.S_IMODE(identities.stat().st_mode) == 0o600
    assert s3_server.secret_key not in repr(s3_server)


@pytest.mark.s3
def test_it_starts_in_a_folder_of_a_long_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / ("long" * 30)
    scratch.mkdir()
    monkeypatch.setattr(module.tempfile, "tempdir", str(scratch))
    with SeaweedServer() as server:
        server.create_bucket("there")
    assert list(scratch.iterdir()) == []


@pytest.mark.s3
def test_a_bucket_that_exists_cannot_be_created_again(s3_server: Any, s3_bucket: Any) -> None:
    with pytest.raises(ConfigError, match=s3_bucket.name):
        s3_server.create_bucket(s3_bucket.name)


def test_a_missing_program_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"streamloader\[demo\]"):
        find_weed()


def fake_weed(tmp_path: Path, script: str) -> str:
    program = tmp_path / "weed"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return str(program)


def test_a_server_that_ends_early_is_an_error_with_its_log(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = fake_weed(tmp_path, "echo no space for a volume; exit 3")
    monkeypatch.setattr(module, "find_weed", lambda: program)
    server = SeaweedServer()
    with pytest.raises(StreamLoaderError, match="status 3.*no space for a volume"):
        server.start()
    assert server._scratch_dir is None


def test_a_server_that_is_never_ready_is_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = fake_weed(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 60")
    monkeypatch.setattr(module, "find_weed", lambda: program)
    monkeypatch.setattr(module, "_START_TIMEOUT_S", 0.3)
    with pytest.raises(StreamLoaderError, match="did not answer within"):
        SeaweedServer().start()
    assert eventually(lambda: group_is_gone(int((tmp_path / "pid").read_text())))


def test_a_server_that_does_not_run_takes_no_orders() -> None:
    with pytest.raises(ConfigError, match="not running"):
        SeaweedServer().create_bucket("b")

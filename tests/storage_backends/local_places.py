"""Local places where the system itself says no: a full disk, a read-only disk, a mode."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

_NAMESPACES = (["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"])
_MOUNT = 'mount -t tmpfs -o "size=$1" tmpfs "$2" && shift 2 && exec "$@"'
_NOBODY = 65534


def run_on_small_disk(program: str, folder: Path, size: str = "1m") -> str:
    """Runs Python code beside a disk of its own, mounted on ``folder``; returns what it prints.

    The disk is in a mount namespace of the process, so nobody else sees it and it ends with the
    process. The code finds ``folder`` in ``sys.argv[1]``.
    """
    arguments = ["sh", "-c", _MOUNT, "sh", size, str(folder)]
    for namespace in _NAMESPACES:
        if _succeeds([*namespace, *arguments, "true"]):
            command = [*namespace, *arguments, sys.executable, "-c", program, str(folder)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            return done.stdout
    pytest.skip("this machine allows neither mounts nor user namespaces")


def _succeeds(command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def folder_for_everyone() -> Iterator[Path]:
    """A folder that every user can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


@contextlib.contextmanager
def as_ordinary_user() -> Iterator[None]:
    """Modes of files mean nothing to the superuser: in this block the process is somebody else."""
    superuser = os.geteuid() == 0
    if superuser:
        os.seteuid(_NOBODY)
    try:
        yield
    finally:
        if superuser:
            os.seteuid(0)

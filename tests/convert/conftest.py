"""Folders of pictures for the converter's tests."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from storage_backends import open_store
from streamloader.fetch import LoopThread

HOSTILE = Path(__file__).parents[1] / "hostile"
# Repositories and archives often carry links as files that hold their target.
LINKS_OF_THE_SET = ("dead.jpg", "link.jpg", "loop", "up")


def make_jpeg(seed: int, width: int = 24, height: int = 16) -> bytes:
    """Return a JPEG whose content follows from the seed."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="JPEG")
    return file.getvalue()


def copy_tree(source: Path, target: Path) -> None:
    """Copy files and links, without the permissions."""
    target.mkdir(parents=True, exist_ok=True)
    for entry in os.scandir(source):
        to = target / entry.name
        if entry.is_symlink():
            to.symlink_to(os.readlink(entry.path))
        elif entry.is_dir():
            copy_tree(Path(entry.path), to)
        else:
            to.write_bytes(Path(entry.path).read_bytes())


@pytest.fixture
def hostile_tree(tmp_path: Path) -> Callable[[str], Path]:
    """Make a tree of the hostile set: with its links, and the empty one that git cannot hold."""

    def make(name: str) -> Path:
        target = tmp_path / "hostile" / name
        if name == "empty_root":
            target.mkdir(parents=True)
            return target
        copy_tree(HOSTILE / "trees" / name, target)
        if name == "symlinks":
            for link in LINKS_OF_THE_SET:
                path = target / "c" / link
                if not path.is_symlink():
                    goal = path.read_text().strip()
                    path.unlink()
                    path.symlink_to(goal)
        return target

    return make


@pytest.fixture
def class_tree(tmp_path: Path) -> Path:
    """Three classes of 20 pictures each."""
    root = tmp_path / "pictures"
    for label, name in enumerate(("ant", "bee", "cat")):
        (root / name).mkdir(parents=True)
        for number in range(20):
            (root / name / f"{number:02d}.jpg").write_bytes(make_jpeg(label * 100 + number))
    return root


@pytest.fixture
def jpeg() -> Callable[..., bytes]:
    """Make the JPEG of a seed: ``jpeg(seed, width=24, height=16)``."""
    return make_jpeg


@pytest.fixture
def contents() -> Callable[[Path], dict[str, bytes]]:
    """Read every file below a folder, by its relative path."""

    def read(folder: Path) -> dict[str, bytes]:
        return {
            str(path.relative_to(folder)): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }

    return read


@pytest.fixture
def upload() -> Callable[..., None]:
    """Copy every file of a folder into a bucket: ``upload(folder, url, storage_options)``."""

    async def put_all(contents: dict[str, bytes], url: str, options: dict[str, Any]) -> None:
        async with open_store(url, **options) as store:
            for key, content in contents.items():
                await store.put(key, content)

    def run(folder: Path, url: str, options: dict[str, Any]) -> None:
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        contents = {str(path.relative_to(folder)): path.read_bytes() for path in files}
        with LoopThread("upload-loop") as loop:
            loop.run(put_all(contents, url, options))

    return run

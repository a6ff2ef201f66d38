"""A small folder of pictures, and a runner of verbs."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image

from streamloader.cli import root


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Two classes of 6 pictures each."""
    folder = tmp_path / "pictures"
    for label, name in enumerate(("cat", "dog")):
        (folder / name).mkdir(parents=True)
        for number in range(6):
            rng = np.random.default_rng([label, number])
            file = io.BytesIO()
            pixels = rng.integers(0, 256, (20, 30, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(file, format="JPEG")
            (folder / name / f"{number}.jpg").write_bytes(file.getvalue())
    return folder


@pytest.fixture
def run_cli() -> Callable[..., Result]:
    """Run the command line in this process: ``run_cli("verify", path)``."""

    def run(*args: object) -> Result:
        return CliRunner().invoke(root, [str(arg) for arg in args])

    return run

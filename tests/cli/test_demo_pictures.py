from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, JpegImagePlugin

from streamloader.cli.demo.pictures import SCENES, make_pictures, paint


def _files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*.jpg"))}


def test_same_seed_makes_the_same_files(tmp_path: Path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        make_pictures(tmp_path / name, 16, seed=seed)
    first, again, other = (_files(tmp_path / name) for name in "abc")
    assert first == again
    assert first.keys() == other.keys()
    assert all(first[name] != other[name] for name in first)


def test_classes_are_even_folders_of_420_jpegs_of_varied_size(tmp_path: Path) -> None:
    written = make_pictures(tmp_path, 40)
    files = sorted(tmp_path.rglob("*.jpg"))
    assert written == sum(path.stat().st_size for path in files)
    assert sorted(p.name for p in tmp_path.iterdir()) == [scene.name for scene in SCENES]
    assert all(len(list(folder.iterdir())) == 5 for folder in tmp_path.iterdir())
    sizes = set()
    for path in files:
        with Image.open(path) as picture:
            assert (picture.format, picture.mode) == ("JPEG", "RGB")
            assert JpegImagePlugin.get_sampling(picture) == 2
            sizes.add(picture.size)
    assert len(sizes) > 30


def test_every_picture_is_reported_in_turn(tmp_path: Path) -> None:
    seen: list[int] = []
    make_pictures(tmp_path, 9, painted=seen.append)
    assert seen == list(range(1, 10))


def test_an_interrupt_ends_the_painting_without_the_queued_pictures(tmp_path: Path) -> None:
    def interrupt(_done: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_pictures(tmp_path, 400, painted=interrupt)
    assert len(list(tmp_path.rglob("*.jpg"))) < 100
    assert not [t for t in threading.enumerate() if t.name.startswith("streamloader-demo-paint")]


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
def test_a_scene_fills_its_range_like_a_photograph(scene) -> None:
    """Neighbouring pixels agree far more than distant ones, and no picture is flat."""
    pixels = np.asarray(paint(scene, seed=0, number=1), np.float32)
    spread = pixels.std(axis=(0, 1)).max()
    step = np.abs(np.diff(pixels, axis=1)).mean()
    assert 8 < spread < 90
    assert 1 < step < spread

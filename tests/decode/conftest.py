"""Pictures and shares for the decode tests, as fixtures that are functions."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from streamloader.decode import (
    NativeDecoder,
    PillowDecoder,
    Share,
    choosing,
    native_is_built,
    native_kernel,
)

_HOSTILE = Path(__file__).parents[1] / "hostile"


def _photo(width: int, height: int, seed: int = 0) -> Image.Image:
    numbers = np.random.default_rng(seed)
    coarse = numbers.integers(0, 256, (max(2, height // 16), max(2, width // 16), 3), np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))
    noise = numbers.integers(-12, 13, (height, width, 3))
    return Image.fromarray(np.clip(smooth.astype(int) + noise, 0, 255).astype(np.uint8))


def _encoded(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def _share_of(pictures: list[bytes], out: npt.NDArray[Any], **fields: Any) -> Share:
    lengths = np.array([len(picture) for picture in pictures], np.int64)
    values: dict[str, Any] = {
        "data": memoryview(b"".join(pictures)),
        "offsets": np.cumsum(lengths) - lengths,
        "lengths": lengths,
        "samples": np.arange(len(pictures), dtype=np.int64),
        "rows": np.arange(len(pictures), dtype=np.int64),
        "out": out,
        "seed": 7,
        "epoch": 3,
    }
    return Share(**(values | fields))


@pytest.fixture(scope="session")
def photo() -> Callable[..., Image.Image]:
    """(width, height, seed=0) -> a random picture with some detail in every part."""
    return _photo


@pytest.fixture(scope="session")
def encoded() -> Callable[..., bytes]:
    """(image, kind="JPEG", **options of Image.save) -> its bytes."""
    return _encoded


@pytest.fixture(scope="session")
def share_of() -> Callable[..., Share]:
    """(pictures, out, **fields of Share) -> a share for the first rows of ``out``."""
    return _share_of


@pytest.fixture(scope="session")
def hostile_images() -> Path:
    return _HOSTILE / "images"


@pytest.fixture(scope="session")
def expected() -> dict[str, dict[str, Any]]:
    """What each file of ``hostile_images`` must give, by its path there."""
    loaded: dict[str, dict[str, Any]] = json.loads((_HOSTILE / "expected.json").read_text())
    return loaded


@pytest.fixture
def native_built() -> None:
    """Skips where the kernel was not built, or fails where it must have been."""
    if native_is_built():
        return
    if os.environ.get("STREAMLOADER_REQUIRE_KERNEL") == "1":
        pytest.fail("the native decoder was not built, and STREAMLOADER_REQUIRE_KERNEL=1")
    pytest.skip("the native decoder was not built (needs libjpeg-dev)")


@pytest.fixture(params=["native", "pillow"])
def decoder_name(request: pytest.FixtureRequest) -> str:
    """Each decoder in turn; the native one where it was built."""
    name: str = request.param
    if name == "native":
        request.getfixturevalue("native_built")
    return name


@pytest.fixture
def decoder_class(decoder_name: str) -> type[NativeDecoder] | type[PillowDecoder]:
    return NativeDecoder if decoder_name == "native" else PillowDecoder


@pytest.fixture
def decode_picture(
    decoder_name: str, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., npt.NDArray[np.uint8]]:
    """The whole picture as pixels, by each decoder in turn."""
    if decoder_name == "pillow":
        monkeypatch.setattr(native_kernel, "MISSING", ImportError("left out by the test"))
    return choosing.decode_picture

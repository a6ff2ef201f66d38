from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from streamloader.decode import PixelFormat
from streamloader.errors import ConfigError

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def reference(mean: Any, std: Any) -> np.ndarray[Any, Any]:
    levels = np.arange(256, dtype=np.float32)[None, :] / np.float32(255)
    return (levels - np.float32(mean)[:, None]) / np.float32(std)[:, None]


@pytest.mark.parametrize(("mean", "std"), [(MEAN, STD), ((0.0,) * 3, (1.0,) * 3)])
def test_float_tables_are_the_formula_in_float32_rounded_once(mean: Any, std: Any) -> None:
    wanted = reference(mean, std)
    assert np.array_equal(PixelFormat("float32", mean, std).tables(), wanted)
    assert np.array_equal(PixelFormat("float16", mean, std).tables(), wanted.astype(np.float16))
    bits = torch.from_numpy(wanted).to(torch.bfloat16).view(torch.uint16).numpy()
    assert np.array_equal(PixelFormat("bfloat16", mean, std).tables(), bits)


def test_mean_and_std_may_be_left_out_alone() -> None:
    assert np.array_equal(
        PixelFormat("float32", mean=MEAN).tables(), reference(MEAN, (1.0, 1.0, 1.0))
    )
    assert np.array_equal(PixelFormat("float32", std=STD).tables(), reference((0.0, 0.0, 0.0), STD))


@pytest.mark.parametrize(
    ("dtype", "stored", "viewed"),
    [
        ("uint8", "uint8", None),
        ("float16", "float16", None),
        ("float32", "float32", None),
        ("bfloat16", "uint16", "bfloat16"),
    ],
)
def test_how_pixels_are_stored(dtype: Any, stored: str, viewed: str | None) -> None:
    pixels = PixelFormat(dtype)
    assert (pixels.numpy_dtype, pixels.torch_dtype) == (stored, viewed)
    assert pixels.tables().dtype == stored
    assert pixels.tables().shape == (3, 256)


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "int8"},
        {"dtype": "uint8", "mean": MEAN},
        {"dtype": "uint8", "std": STD},
        {"dtype": "float32", "mean": 0.5},
        {"dtype": "float32", "mean": (0.5, 0.5)},
        {"dtype": "float32", "mean": (0.5, 0.5, "x")},
        {"dtype": "float32", "mean": (0.5, 0.5, float("nan"))},
        {"dtype": "float32", "std": (1.0, 0.0, 1.0)},
        {"dtype": "float32", "std": (1.0, -1.0, 1.0)},
        {"dtype": "float16", "std": (1.0, 1e-6, 1.0)},
        {"dtype": "float32", "std": (1.0, 1e-45, 1.0)},
    ],
)
def test_a_format_that_cannot_work_is_refused_with_the_values(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"got .+$"):
        PixelFormat(**options)


def test_lists_are_taken_as_mean_and_std() -> None:
    assert PixelFormat("float32", [0.5, 0.5, 0.5], [1, 1, 1]) == PixelFormat(  # type: ignore[arg-type]  # what users write
        "float32", (0.5, 0.5, 0.5), (1.0, 1.0, 1.0)
    )

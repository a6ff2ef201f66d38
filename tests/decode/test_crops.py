from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamloader.decode import (
    CenterCrop,
    Compose,
    CropPlan,
    RandomResizedCrop,
    Resize,
    plan_crops,
)
from streamloader.decode.crops import _CROP_DOMAIN, _exp
from streamloader.order import derive_key, random_unit

SIDES = st.integers(1, 5000)


def plan(spec: Any, sizes: list[tuple[int, int]], samples: Any = None, **keys: int) -> CropPlan:
    widths, heights = np.array(sizes, np.int64).T
    numbers = np.arange(len(sizes)) if samples is None else np.asarray(samples)
    return plan_crops(
        spec,
        widths,
        heights,
        seed=keys.get("seed", 1),
        epoch=keys.get("epoch", 0),
        samples=numbers.astype(np.int64),
    )


def slow_random_resized_crop(
    spec: RandomResizedCrop, width: int, height: int, key: int, sample: int
) -> tuple[tuple[float, ...], bool]:
    """torchvision's algorithm, written plainly over the same numbers."""

    def draw(number: int) -> float:
        return random_unit(key, sample * 32 + number)

    flip = draw(22) < spec.flip
    low, high = math.log(spec.ratio[0]), math.log(spec.ratio[1])
    for attempt in range(10):
        area = (
            width * height * (spec.scale[0] + draw(2 * attempt) * (spec.scale[1] - spec.scale[0]))
        )
        ratio = math.exp(low + draw(2 * attempt + 1) * (high - low))
        w = round(math.sqrt(area * ratio))
        h = round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            top = math.floor(draw(20) * (height - h + 1))
            left = math.floor(draw(21) * (width - w + 1))
            return (left, top, left + w, top + h), flip
    w, h = width, height
    if width / height < spec.ratio[0]:
        h = min(height, max(1, round(width / spec.ratio[0])))
    elif width / height > spec.ratio[1]:
        w = min(width, max(1, round(height * spec.ratio[1])))
    left, top = (width - w) // 2, (height - h) // 2
    return (left, top, left + w, top + h), flip


@given(
    sizes=st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=20),
    seed=st.integers(0, 2**63),
    epoch=st.integers(0, 1000),
    flip=st.sampled_from([0.0, 0.5, 1.0]),
    scale=st.sampled_from([(0.08, 1.0), (0.9, 1.0), (0.01, 0.02), (1.0, 1.0)]),
    ratio=st.sampled_from([(3 / 4, 4 / 3), (1.0, 1.0), (0.1, 10.0), (2.0, 3.0)]),
)
@settings(max_examples=60, deadline=None)
def test_random_resized_crop_equals_the_scalar_algorithm(
    sizes: Any, seed: int, epoch: int, flip: float, scale: Any, ratio: Any
) -> None:
    spec = RandomResizedCrop(32, scale=scale, ratio=ratio, flip=flip)
    samples = [37 * place for place in range(len(sizes))]
    got = plan(spec, sizes, samples, seed=seed, epoch=epoch)
    key = derive_key(_CROP_DOMAIN, seed, epoch, 0)
    for place, (width, height) in enumerate(sizes):
        box, mirrored = slow_random_resized_crop(spec, width, height, key, samples[place])
        assert tuple(got.boxes[place]) == box
        assert got.flips[place] == mirrored


def test_a_crop_depends_on_seed_epoch_step_and_sample_alone() -> None:
    spec = RandomResizedCrop(224, flip=0.5)
    sizes = [(500 + i % 7, 375 + i % 5) for i in range(1000)]
    samples = np.arange(1000) * 997
    whole = plan(spec, sizes, samples)
    for place in (0, 1, 500, 999):
        alone = plan(spec, [sizes[place]], samples[place : place + 1])
        assert np.array_equal(alone.boxes[0], whole.boxes[place])
        assert alone.flips[0] == whole.flips[place]
    backwards = plan(spec, sizes[::-1], samples[::-1])
    assert np.array_equal(backwards.boxes[::-1], whole.boxes)
    others = [
        plan(spec, sizes, samples, seed=2),
        plan(spec, sizes, samples, epoch=1),
        plan(spec, sizes, samples + 1),
        plan(Compose([Resize((375, 500)), spec]), sizes, samples),
    ]
    for other in others:
        assert np.all(other.boxes == whole.boxes, axis=1).mean() < 0.05


def test_worker_one_of_an_epoch_is_not_worker_zero_of_the_next() -> None:
    spec = RandomResizedCrop(8)
    sizes = [(640, 480)] * 64
    seen = {
        plan(spec, sizes, seed=seed, epoch=epoch).boxes.tobytes()
        for seed in range(8)
        for epoch in range(8)
    }
    assert len(seen) == 64


def test_random_crops_have_the_promised_distribution() -> None:
    count, width, height = 40_000, 640, 640
    got = plan(RandomResizedCrop(224, scale=(0.2, 0.6), flip=0.3), [(width, height)] * count)
    widths = got.boxes[:, 2] - got.boxes[:, 0]
    heights = got.boxes[:, 3] - got.boxes[:, 1]
    shares = widths * heights / (width * height)
    log_ratios = np.log(widths / heights)
    assert shares.min() > 0.198
    assert shares.max() < 0.602
    assert abs(shares.mean() - 0.4) < 0.003
    assert abs(shares.std() - 0.4 / math.sqrt(12)) < 0.003
    assert abs(log_ratios.mean()) < 0.006
    assert abs(log_ratios.std() - 2 * math.log(4 / 3) / math.sqrt(12)) < 0.004
    assert abs(got.flips.mean() - 0.3) < 0.01
    corners = got.boxes[:, 0] / np.maximum(width - widths, 1)
    assert abs(corners.mean() - 0.5) < 0.01
    assert np.abs(np.corrcoef([shares, log_ratios, corners, got.flips]) - np.eye(4)).max() < 0.03


def test_these_crops_never_change() -> None:
    got = plan(
        RandomResizedCrop(224, flip=0.5), [(500, 375), (333, 500), (40, 4000)], [0, 1, 10**12]
    )
    assert got.boxes.tolist() == GOLDEN_BOXES
    assert got.flips.tolist() == GOLDEN_FLIPS


GOLDEN_BOXES = [[143, 8, 386, 261], [37, 23, 302, 371], [0, 1973, 40, 2026]]
GOLDEN_FLIPS = [True, True, True]


def test_a_shape_that_no_try_fits_gets_the_central_part() -> None:
    got = plan(RandomResizedCrop(8, scale=(0.9, 1.0)), [(10, 1000), (1000, 10), (1, 1)])
    assert got.boxes.tolist() == [[0, 493, 10, 506], [493, 0, 506, 10], [0, 0, 1, 1]]


def torchvision_eval_box(width: int, height: int, short: int, crop: int) -> list[float]:
    """Resize(short) then CenterCrop(crop) as torchvision rounds them, in pixels of the source."""
    if width <= height:
        grid_width, grid_height = short, int(short * height / width)
    else:
        grid_width, grid_height = int(short * width / height), short
    left, top = round((grid_width - crop) / 2.0), round((grid_height - crop) / 2.0)
    x, y = width / grid_width, height / grid_height
    return [left * x, top * y, (left + crop) * x, (top + crop) * y]


@given(width=st.integers(2, 4000), height=st.integers(2, 4000))
@settings(deadline=None)
def test_resize_and_center_crop_fold_to_torchvisions_box(width: int, height: int) -> None:
    got = plan(Compose([Resize(256), CenterCrop(224)]), [(width, height)])
    assert got.boxes[0] == pytest.approx(torchvision_eval_box(width, height, 256, 224), abs=1e-9)
    assert (got.height, got.width) == (224, 224)
    assert not got.flips.any()


def test_resize_to_a_fixed_size_takes_the_whole_picture() -> None:
    got = plan(Resize((30, 40)), [(500, 375), (3, 9)])
    assert got.boxes.tolist() == [[0, 0, 500, 375], [0, 0, 3, 9]]
    assert (got.height, got.width) == (30, 40)


def test_center_crop_of_a_smaller_picture_scales_up_just_enough() -> None:
    got = plan(CenterCrop(100), [(50, 80), (300, 50), (101, 100)])
    assert got.boxes.tolist() == [[0, 15, 50, 65], [125, 0, 175, 50], [0, 0, 100, 100]]


def test_a_cut_after_a_flip_is_mirrored() -> None:
    always = RandomResizedCrop((10, 11), scale=(1.0, 1.0), ratio=(1.1, 1.1), flip=1.0)
    got = plan(Compose([always, CenterCrop((10, 10))]), [(11, 10)])
    # Offset 0 (0.5 rounds to even) of the mirrored picture is the right end of the stored one.
    assert got.boxes.tolist() == [[1, 0, 11, 10]]
    assert got.flips.tolist() == [True]


@given(
    sizes=st.lists(
        st.tuples(st.integers(1, 70_000), st.integers(1, 70_000)), min_size=1, max_size=8
    ),
    parts=st.lists(
        st.one_of(
            st.builds(Resize, st.integers(1, 600)),
            st.builds(Resize, st.tuples(st.integers(1, 600), st.integers(1, 600))),
            st.builds(CenterCrop, st.integers(1, 600)),
            st.builds(RandomResizedCrop, st.integers(1, 600), flip=st.just(0.5)),
        ),
        max_size=4,
    ),
)
@settings(max_examples=80, deadline=None)
def test_every_box_lies_in_its_picture_and_has_an_area(sizes: Any, parts: list[Any]) -> None:
    got = plan(Compose([*parts, CenterCrop(9)]), sizes)
    x0, y0, x1, y1 = got.boxes.T
    widths, heights = np.array(sizes).T
    assert (x0 >= 0).all()
    assert (y0 >= 0).all()
    assert (x1 > x0).all()
    assert (y1 > y0).all()
    assert (x1 <= widths).all()
    assert (y1 <= heights).all()


def test_no_picture_gives_an_empty_plan() -> None:
    empty = np.empty(0, np.int64)
    got = plan_crops(RandomResizedCrop(8), empty, empty, seed=0, epoch=0, samples=empty)
    assert got.boxes.shape == (0, 4)


@pytest.mark.parametrize("largest", [0.0, 0.2877, 1.0, 20.0])
def test_the_portable_exponential_is_right_to_the_last_bits(largest: float) -> None:
    values = np.linspace(-largest, largest, 2001)
    assert _exp(values, largest) == pytest.approx(np.exp(values), rel=1e-13)
    assert np.array_equal(_exp(values[5:6], largest), _exp(values, largest)[5:6])

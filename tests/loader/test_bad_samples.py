"""Damaged content: named by default, or skipped in step with flagged stand-ins."""

from __future__ import annotations

import io
import logging
import shutil

import numpy as np
import pytest
from picture_sets import NUM_PICTURES, picture
from PIL import Image

from streamloader import CenterCrop, ConfigError, DatasetWriter, SampleError, StreamLoader


@pytest.fixture
def damaged(pictures, tmp_path, damage):
    path = tmp_path / "set"
    shutil.copytree(pictures, path)
    return path, damage(path, 21)


def loader(dataset, **options):
    wanted = {"batch_size": 8, "transform": CenterCrop(24), "device": "cpu"}
    return StreamLoader(str(dataset), **{**wanted, **options})


def test_a_damaged_sample_is_raised_with_everything_that_finds_it(damaged):
    path, shard = damaged
    with loader(path) as stream, pytest.raises(SampleError) as raised:
        list(stream)
    error = raised.value
    assert (error.sample, error.key, error.shard) == (21, "p/21.jpg", shard)
    assert error.offset is not None
    assert str(path) in str(error)


def test_a_skipped_sample_becomes_a_flagged_repeat_of_its_neighbour(damaged, caplog):
    path, shard = damaged
    with (
        caplog.at_level(logging.WARNING, "streamloader"),
        loader(path, on_error="skip", max_bad_fraction=0.1) as stream,
    ):
        batches = list(stream)
        state = stream.state_dict()
    batch = batches[2]
    assert batch["index"].tolist() == list(range(16, 24))
    assert batch["valid"].tolist() == [True] * 5 + [False] + [True] * 2
    assert np.array_equal(batch["image"][5], batch["image"][4])
    assert batch["label"][5] == batch["label"][4]
    seen = [n for b in batches for n in b["index"][b["valid"]].tolist()]
    assert sorted(seen) == [n for n in range(NUM_PICTURES) if n != 21]
    assert state["skipped"] == 1
    assert "p/21.jpg" in caplog.text
    assert shard in caplog.text


def test_more_bad_samples_than_allowed_stop_the_run(damaged):
    path, _ = damaged
    with (
        loader(path, on_error="skip", max_bad_fraction=0.001) as stream,
        pytest.raises(SampleError) as raised,
    ):
        list(stream)
    assert "max_bad_fraction=0.001" in " ".join(raised.value.__notes__)


def test_content_that_passes_its_checksum_but_is_no_picture_is_a_bad_sample(tmp_path):
    data = picture(0)
    with DatasetWriter(tmp_path / "set", {"image": "picture"}, block_samples=2) as writer:
        writer.write({"image": data}, key="good")
        writer.write({"image": data[: len(data) // 2]}, key="half")
    with (
        loader(tmp_path / "set", batch_size=2) as stream,
        pytest.raises(SampleError, match="half") as raised,
    ):
        next(iter(stream))
    assert raised.value.sample == 1


@pytest.mark.parametrize(
    ("name", "least", "reason"),
    [
        ("max_pixels", 48 * 40, "claims 48x40 pixels, more than max_pixels 1919"),
        ("max_scans", 10, "more than 9 scans"),
    ],
)
def test_a_picture_beyond_a_limit_is_a_bad_sample_until_the_limit_is_raised(
    tmp_path, name, least, reason
):
    data = io.BytesIO()
    image = Image.linear_gradient("L").resize((48, 40)).convert("RGB")
    image.save(data, "JPEG", progressive=True)
    with DatasetWriter(tmp_path / "set", {"image": "picture"}) as writer:
        writer.write({"image": data.getvalue()}, key="many")
    with (
        loader(tmp_path / "set", batch_size=1, **{name: least - 1}) as stream,
        pytest.raises(SampleError, match=reason) as raised,
    ):
        next(iter(stream))
    assert raised.value.key == "many"
    with loader(tmp_path / "set", batch_size=1, **{name: least}) as stream:
        assert next(iter(stream))["valid"].all()
    with pytest.raises(ConfigError, match=f"{name} must be a whole number from 1 to"):
        loader(tmp_path / "set", **{name: 0})

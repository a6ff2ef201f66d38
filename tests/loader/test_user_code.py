"""map, batch_map, collate: the user's own Python in the decode threads."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from picture_sets import NUM_PICTURES

from streamloader import CenterCrop, ConfigError, StreamLoader


def loader(dataset, **options):
    wanted = {"batch_size": 8, "transform": CenterCrop(24), "device": "cpu", "num_workers": 2}
    return StreamLoader(str(dataset), **{**wanted, **options})


def test_map_gets_each_sample_as_the_batch_would_have_had_it(pictures):
    threads = set()

    def double(sample):
        threads.add(threading.current_thread().name.rsplit("-", 1)[0])
        assert sample["image"].shape == (3, 24, 24)
        return {"image": sample["image"], "twice": 2 * sample["label"]}

    with loader(pictures) as plain, loader(pictures, map=double) as mapped:
        for wanted, got in zip(plain, mapped, strict=True):
            assert set(got) == {"image", "twice", "index", "valid"}
            assert torch.equal(got["image"], wanted["image"])
            assert torch.equal(got["twice"], 2 * wanted["label"])
            assert torch.equal(got["index"], wanted["index"])
            assert got.state == wanted.state
    assert threads == {"streamloader-decode"}


def test_batch_map_may_return_views_and_they_are_never_overwritten(pictures):
    def crop(batch):
        return {**batch, "image": batch["image"][:, :, :8]}

    with loader(pictures, batch_map=crop, prefetch_batches=1) as stream:
        held = [(batch["image"], batch["image"].clone()) for batch in stream]
    assert held[0][0].shape == (8, 3, 8, 24)
    for image, copy in held:
        assert torch.equal(image, copy)


def test_collate_makes_the_batch_of_samples(pictures):
    def lists(samples):
        return {"labels": [int(sample["label"]) for sample in samples], "n": len(samples)}

    with loader(pictures, collate=lists) as stream:
        batches = list(stream)
    assert batches[0]["labels"] == list(range(8))
    assert batches[0]["n"] == 8
    assert sum(int(batch["valid"].sum()) for batch in batches) == NUM_PICTURES


def test_values_of_different_shapes_stay_a_list(pictures):
    def ragged(sample):
        return {"tokens": np.arange(sample["label"] % 3)}

    with loader(pictures, map=ragged) as stream:
        batch = next(iter(stream))
    assert [len(tokens) for tokens in batch["tokens"]] == [n % 3 for n in range(8)]


def test_an_error_of_the_users_code_names_the_function_and_the_sample(pictures):
    def broken(sample):
        if sample["index"] == 13:
            raise LookupError("no such word")
        return sample

    with loader(pictures, map=broken) as stream, pytest.raises(LookupError) as raised:
        list(stream)
    assert "map=" in raised.value.__notes__[0]
    assert "sample 13" in raised.value.__notes__[0]


def test_a_result_that_is_no_mapping_is_refused(pictures):
    with (
        loader(pictures, batch_map=lambda batch: batch["image"]) as stream,
        pytest.raises(TypeError, match="batch_map= .* must return a mapping"),
    ):
        next(iter(stream))


def test_what_cannot_be_called_and_bfloat16_are_refused(pictures):
    with pytest.raises(ConfigError, match="map must be callable"):
        loader(pictures, map=3)
    with pytest.raises(ConfigError, match="bfloat16"):
        loader(pictures, map=dict, output="bfloat16")

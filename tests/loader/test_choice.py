"""subset, epoch_size and sampler_weights."""

from __future__ import annotations

import json

import numpy as np
import pytest
from picture_sets import NUM_PICTURES, picture, write_pictures

from streamloader import CenterCrop, ConfigError, DatasetWriter, StateMismatch, StreamLoader
from streamloader.decode import decode_picture


def loader(dataset, **options):
    wanted = {"batch_size": 8, "transform": CenterCrop(24), "device": "cpu", "shuffle": True}
    return StreamLoader(str(dataset), **{**wanted, **options})


def epoch(stream):
    return [n for batch in stream for n in batch["index"][batch["valid"]].tolist()]


@pytest.mark.parametrize("shuffle", [True, False, "global"])
def test_a_subset_of_numbers_gives_those_samples_and_no_others(pictures, shuffle):
    chosen = [80, 2, 3, 4, 17, 40, 41]
    with loader(pictures, subset=chosen, shuffle=shuffle, batch_size=3) as stream:
        assert len(stream) == 3
        assert stream.num_samples == 7
        for batch in stream:
            assert batch["label"].tolist() == batch["index"].tolist()
            whole = decode_picture(picture(int(batch["index"][0])))
            top, left = round((whole.shape[0] - 24) / 2), round((whole.shape[1] - 24) / 2)
            crop = whole[top : top + 24, left : left + 24]
            assert np.array_equal(batch["image"][0].permute(1, 2, 0).numpy(), crop)
        assert sorted(epoch(stream)) == sorted(chosen)


def test_a_subset_of_keys_and_a_share(pictures):
    with loader(pictures, subset=["p/7.jpg", "p/70.jpg"]) as stream:
        assert sorted(epoch(stream)) == [7, 70]
    with loader(pictures, subset=0.25) as stream:
        assert sorted(epoch(stream)) == list(range(round(NUM_PICTURES / 4)))


@pytest.mark.parametrize(
    ("subset", "words"),
    [
        (["p/7.jpg", "nothing"], "1 of 2 keys .*'nothing'"),
        ([NUM_PICTURES], "must lie in"),
        (0.0, r"must lie in \(0, 1\]"),
        (1.5, r"must lie in \(0, 1\]"),
        ([], "one or more"),
        ("p/7.jpg", "takes a share"),
        (3, "takes a share"),
    ],
)
def test_a_subset_that_does_not_fit_is_refused(pictures, subset, words):
    with pytest.raises(ConfigError, match=words):
        loader(pictures, subset=subset)


def test_epochs_of_a_given_size_cover_the_data_set_in_turn_and_resume_exactly(pictures):
    with loader(pictures, epoch_size=50, batch_size=10) as stream:
        assert len(stream) == 5
        seen = [n for _ in range(5) for n in epoch(stream)]
    assert len(seen) == 250
    for number in range(3):
        part = seen[number * NUM_PICTURES : (number + 1) * NUM_PICTURES]
        assert sorted(part) == list(range(NUM_PICTURES))
    with loader(pictures, epoch_size=50, batch_size=10) as stream:
        stream.set_epoch(1)
        batches = iter(stream)
        next(batches)
        state = json.loads(json.dumps(stream.state_dict()))
    with loader(pictures, epoch_size=50, batch_size=5) as stream:
        stream.load_state_dict(state)
        assert epoch(stream) == seen[60:100]


def test_an_epoch_longer_than_the_data_set_repeats_it(pictures):
    with loader(pictures, epoch_size=2 * NUM_PICTURES) as stream:
        seen = epoch(stream)
    assert sorted(seen) == sorted(2 * list(range(NUM_PICTURES)))


def test_a_batch_of_many_passes_over_few_samples_has_each_as_it_is(tmp_path):
    write_pictures(tmp_path / "few", 10)
    with loader(tmp_path / "few", epoch_size=640, batch_size=64) as stream:
        for batch in stream:
            assert batch["label"].tolist() == batch["index"].tolist()


def test_balanced_drawing_gives_each_class_its_share(tmp_path):
    with DatasetWriter(
        tmp_path / "set", {"label": "int64"}, classes=["rare", "common"], block_samples=10
    ) as writer:
        for number in range(200):
            writer.write({"label": int(number % 20 != 0)})
    options = {"transform": None, "batch_size": 100, "epoch_size": 4000}
    with loader(tmp_path / "set", sampler_weights="balanced", **options) as stream:
        labels = np.concatenate([batch["label"].numpy() for batch in stream])
        again = np.concatenate([batch["label"].numpy() for batch in stream])
    assert len(labels) == 4000
    assert abs(labels.mean() - 0.5) < 0.05
    assert not np.array_equal(labels, again)
    with loader(tmp_path / "set", sampler_weights={"rare": 0.0}, **options) as stream:
        assert all(batch["label"].min() == 1 for batch in stream)


def test_weights_work_on_a_subset_and_resume(pictures):
    weights = np.zeros(NUM_PICTURES)
    weights[[3, 5]] = 1, 3
    options = {"sampler_weights": weights, "subset": [2, 3, 5], "epoch_size": 40}
    with loader(pictures, **options) as stream:
        batches = iter(stream)
        head = next(batches)["index"].tolist()
        state = stream.state_dict()
        rest = epoch(batches)
    assert set(head + rest) == {3, 5}
    with loader(pictures, **options) as stream:
        stream.load_state_dict(state)
        assert epoch(stream) == rest


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ([1.0, 2.0], "a weight for each"),
        ("even", "'balanced'"),
        ({"zebra": 1.0}, "'zebra'"),
        (np.zeros(NUM_PICTURES), "not all zero"),
    ],
)
def test_weights_that_do_not_fit_are_refused(pictures, weights, words):
    with pytest.raises(ConfigError, match=words):
        loader(pictures, sampler_weights=weights)


def test_a_state_of_another_choice_is_refused_with_what_differs(pictures):
    with loader(pictures, subset=0.5) as stream:
        state = stream.state_dict()
    with loader(pictures) as stream, pytest.raises(StateMismatch, match="subset"):
        stream.load_state_dict(state)
    with loader(pictures, epoch_size=9) as stream:
        state = stream.state_dict()
    with loader(pictures) as stream, pytest.raises(StateMismatch, match="epoch size"):
        stream.load_state_dict(state)

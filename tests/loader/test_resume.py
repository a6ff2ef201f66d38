"""Continuing exactly where a run stopped."""

from __future__ import annotations

import json

import pytest
from picture_sets import NUM_PICTURES

from streamloader import ConfigError, RandomResizedCrop, StateMismatch, StreamLoader


def loader(dataset, **options):
    wanted = {"batch_size": 8, "transform": RandomResizedCrop(24), "device": "cpu", "shuffle": True}
    return StreamLoader(str(dataset), **{**wanted, **options})


def samples(batches):
    return [number for b in batches for number in b["index"][b["valid"]].tolist()]


def flat(lists):
    return [number for numbers in lists for number in numbers]


@pytest.fixture(scope="module")
def whole_epoch(pictures):
    with loader(pictures) as stream:
        return [samples([batch]) for batch in stream]


@pytest.mark.parametrize("stop", range(12))
def test_resume_after_any_batch_gives_exactly_the_rest(pictures, whole_epoch, stop):
    with loader(pictures) as stream:
        batches = iter(stream)
        head = [samples([next(batches)]) for _ in range(stop)]
        state = json.loads(json.dumps(stream.state_dict()))
    with loader(pictures) as stream:
        stream.load_state_dict(state)
        tail = [samples([batch]) for batch in stream]
    if stop == len(whole_epoch):
        assert head == whole_epoch
        assert sorted(flat(tail)) == list(range(NUM_PICTURES))
        assert tail != whole_epoch
    else:
        assert head + tail == whole_epoch


def test_a_state_counts_what_was_consumed_and_not_what_was_prefetched(pictures):
    with loader(pictures, prefetch_batches=4) as stream:
        batches = iter(stream)
        first = next(batches)
        assert stream.state_dict()["position"] == 8
        assert first.state == stream.state_dict()
        second = next(batches)
        assert first.state["position"] == 8
        assert second.state["position"] == 16


def test_resume_twice_and_onto_other_ranks_batch_sizes_and_workers(pictures, whole_epoch):
    seen = []
    with loader(pictures) as stream:
        batches = iter(stream)
        seen += samples([next(batches), next(batches)])
        state = stream.state_dict()
    states = []
    for rank in range(2):
        with loader(
            pictures, rank=rank, world_size=2, local_world_size=2, batch_size=3, num_workers=2
        ) as stream:
            stream.load_state_dict(state)
            batches = iter(stream)
            seen += samples([next(batches), next(batches), next(batches)])
            states.append(stream.state_dict())
    assert states[0] == states[1]
    with loader(pictures, batch_size=7, num_workers=3) as stream:
        stream.load_state_dict(states[0])
        seen += samples(stream)
    assert sorted(seen) == list(range(NUM_PICTURES))


def test_set_epoch_with_the_loaded_epoch_keeps_the_cursor(pictures, whole_epoch):
    with loader(pictures) as stream:
        batches = iter(stream)
        next(batches)
        state = stream.state_dict()
    with loader(pictures) as stream:
        stream.load_state_dict(state)
        stream.set_epoch(0)
        assert samples(stream) == flat(whole_epoch[1:])
        stream.load_state_dict(state)
        stream.set_epoch(3)
        assert stream.state_dict()["epoch"] == 3
        assert stream.state_dict()["position"] == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 9}, "seed"),
        ({"shuffle": False}, "shuffle"),
    ],
)
def test_a_state_of_another_order_is_refused_with_what_differs(pictures, change, words):
    with loader(pictures) as stream:
        state = stream.state_dict()
    with loader(pictures, **change) as stream, pytest.raises(StateMismatch, match=words):
        stream.load_state_dict(state)


def test_a_state_of_another_data_set_is_refused(pictures, tmp_path):
    from picture_sets import write_pictures

    write_pictures(tmp_path / "other", count=NUM_PICTURES - 1)
    with loader(tmp_path / "other") as stream:
        state = stream.state_dict()
    with loader(pictures) as stream, pytest.raises(StateMismatch, match="fingerprint"):
        stream.load_state_dict(state)


def test_what_is_no_state_is_refused(pictures):
    with loader(pictures) as stream, pytest.raises(ConfigError, match="state"):
        stream.load_state_dict({"epoch": 1})

"""The next epoch is begun before the last batches of this one are taken."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from picture_sets import NUM_PICTURES

from streamloader import RandomResizedCrop, StreamLoader


def loader(dataset, **options):
    wanted = {"batch_size": 8, "transform": RandomResizedCrop(24), "device": "cpu", "shuffle": True}
    return StreamLoader(str(dataset), **{**wanted, **options})


def content(batches):
    return [(b["index"].tolist(), np.asarray(b["image"]).tobytes(), b.state) for b in batches]


def wait_for_first_batch(run):
    ready = threading.Event()
    run.outbox.when_ready(ready.set)
    assert ready.wait(30)


def finish_epoch(stream):
    """Takes one epoch; returns the run of the next one, whose first batch is ready."""
    for _ in stream:
        pass
    following = stream._following
    wait_for_first_batch(following)
    return following


@pytest.fixture(scope="module")
def epochs(pictures):
    found = []
    for epoch in range(3):
        with loader(pictures) as stream:
            stream.set_epoch(epoch)
            found.append(content(stream))
    return found


def test_its_first_batch_is_ready_before_anybody_asks_and_is_the_right_one(pictures, epochs):
    with loader(pictures) as stream:
        following = finish_epoch(stream)
        assert following.epoch == 1
        batches = iter(stream)
        assert following in stream._engine.runs
        assert content(batches) == epochs[1]
        assert content(stream) == epochs[2]


def test_it_delivers_nothing_before_this_epoch_delivered_everything(pictures, monkeypatch):
    epochs = []
    with loader(pictures, prefetch_batches=2) as stream:
        submit = stream._engine.pool.submit
        monkeypatch.setattr(
            stream._engine.pool,
            "submit",
            lambda job, run: (epochs.append(run.epoch), submit(job, run)),
        )
        finish_epoch(stream)
        assert epochs.count(0) == len(stream)
        assert epochs == sorted(epochs)


def test_its_first_batch_is_ready_before_the_last_one_of_this_epoch_is_taken(pictures, monkeypatch):
    with loader(pictures) as stream:
        submit, submitted, all_submitted = stream._engine.pool.submit, [], threading.Event()

        def submit_and_tell(job, run):
            submit(job, run)
            submitted.append(run.epoch)
            if len(submitted) == len(stream):
                all_submitted.set()

        monkeypatch.setattr(stream._engine.pool, "submit", submit_and_tell)
        batches = iter(stream)
        for _ in range(len(stream) - 2):
            next(batches)
        assert all_submitted.wait(30)
        next(batches)  # the last but one
        wait_for_first_batch(stream._following)
        assert set(submitted) == {0, 1}
        next(batches)
        assert next(batches, None) is None


def test_another_epoch_is_asked_for(pictures, epochs):
    with loader(pictures) as stream:
        following = finish_epoch(stream)
        stream.set_epoch(2)
        assert content(stream) == epochs[2]
        assert following not in stream._engine.runs


def test_a_state_is_loaded(pictures, epochs):
    with loader(pictures) as stream:
        states = [batch.state for batch in stream]
        wait_for_first_batch(stream._following)
        stream.load_state_dict(states[3])
        assert content(stream) == epochs[0][4:]


def test_the_loop_is_left_before_the_last_batch(pictures, epochs):
    with loader(pictures) as stream:
        number = len(epochs[0])
        for left, _ in zip(range(number - 2, -1, -1), stream, strict=False):
            if not left:
                break
        assert content(stream) == epochs[1]


def test_closing_ends_it_and_its_threads(pictures):
    stream = loader(pictures)
    following = finish_epoch(stream)
    stream.close()
    assert not stream._engine.runs
    assert following.outbox.next_number == 0
    assert not [t.name for t in threading.enumerate() if t.name.startswith("streamloader")]


def test_memory_is_shared_with_it_and_never_runs_out(pictures):
    with loader(pictures, memory_limit="2mb", prefetch_batches=1) as stream:
        for _ in range(6):
            samples = [n for b in stream for n in b["index"][b["valid"]].tolist()]
            assert sorted(samples) == list(range(NUM_PICTURES))

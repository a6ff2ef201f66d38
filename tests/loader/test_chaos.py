"""Random runs that stop anywhere and go on in another shape: every sample once, whatever comes."""

from __future__ import annotations

import json
import random

import pytest
from picture_sets import NUM_PICTURES

from streamloader import CenterCrop, StreamLoader


def ranks(dataset, rng, feed, state):
    """A loader for each rank of a random world, all from one state."""
    world_size = rng.choice([1, 2, 3, 5])
    batch_size, workers = rng.choice([1, 3, 8, 32]), rng.choice([1, 2, 5])
    made = []
    for rank in range(world_size):
        stream = StreamLoader(
            str(dataset),
            batch_size=batch_size,
            transform=CenterCrop(8),
            shuffle=True,
            seed=5,
            device="cpu",
            num_workers=workers,
            prefetch_batches=rng.choice([1, 3]),
            feed=feed,
            rank=rank,
            world_size=world_size,
            local_world_size=1,
        )
        if state is not None:
            stream.load_state_dict(json.loads(json.dumps(state)))
        made.append(stream)
    return made


def step(iterators, seen):
    """One step of all ranks; False at the end of the epoch, which all of them reach together."""
    batches = [next(iterator, None) for iterator in iterators]
    assert len({batch is None for batch in batches}) == 1, "ranks are out of step"
    if batches[0] is None:
        return False
    for batch in batches:
        seen += batch["index"][batch["valid"]].tolist()
    return True


def stop_and_go_on(dataset, trial):
    """One epoch in up to four parts, each of its own world; returns the samples delivered."""
    rng = random.Random(trial)
    seen, state = [], None
    for _ in range(rng.randint(1, 4)):
        feed = "process" if rng.random() < 0.03 else "thread"
        loaders = ranks(dataset, rng, feed, state)
        iterators = [iter(stream) for stream in loaders]
        for _ in range(rng.randint(0, 12)):
            if not step(iterators, seen):
                break
        states = [stream.state_dict() for stream in loaders]
        assert all(other == states[0] for other in states)
        state = states[0]
        for stream in loaders:
            stream.close()
        if state["position"] == NUM_PICTURES:
            return seen
    loaders = ranks(dataset, rng, "thread", state)
    iterators = [iter(stream) for stream in loaders]
    while step(iterators, seen):
        pass
    for stream in loaders:
        stream.close()
    return seen


@pytest.mark.parametrize("trial", range(8))
def test_each_sample_comes_once_whatever_happened(pictures, trial):
    seen = stop_and_go_on(pictures, trial)
    assert sorted(seen) == list(range(NUM_PICTURES))


@pytest.mark.slow
@pytest.mark.parametrize("trial", range(8, 208))
def test_each_sample_comes_once_whatever_happened_at_length(pictures, trial):
    seen = stop_and_go_on(pictures, trial)
    assert sorted(seen) == list(range(NUM_PICTURES))

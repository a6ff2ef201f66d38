"""Several devices in one process: each is a rank, and they go step by step."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
from picture_sets import NUM_PICTURES, write_pictures

from storage_backends import StorageError
from streamloader import CenterCrop, ConfigError, RandomResizedCrop, StreamLoader

DEVICES = ["cpu", "cpu"]


def loader(dataset, **options):
    wanted = {
        "batch_size": 4,
        "transform": RandomResizedCrop(24),
        "shuffle": True,
        "num_workers": 2,
    }
    return StreamLoader(str(dataset), **{**wanted, **options})


def content(batch):
    return {name: np.asarray(value).tobytes() for name, value in batch.items()}


def ranks_apart(dataset, world_size, **options):
    """Steps of as many loaders, each a rank of its own."""
    ranks = [
        loader(dataset, rank=rank, world_size=world_size, device="cpu", **options)
        for rank in range(world_size)
    ]
    try:
        return [[content(batch) for batch in step] for step in zip(*ranks, strict=True)]
    finally:
        for one in ranks:
            one.close()


@pytest.mark.parametrize("feed", ["thread", "process"])
def test_each_device_has_the_batches_of_a_rank(pictures, feed) -> None:
    wanted = ranks_apart(pictures, 2)
    with loader(pictures, devices=DEVICES, feed=feed) as group:
        assert isinstance(group, StreamLoader)
        assert len(group) == len(wanted)
        assert [[content(batch) for batch in step] for step in group] == wanted


def test_a_process_of_several_devices_is_one_of_several_such_ranks(pictures) -> None:
    wanted = ranks_apart(pictures, 4)
    found = []
    for rank in range(2):
        with loader(pictures, devices=DEVICES, rank=rank, world_size=2) as group:
            found.append([[content(batch) for batch in step] for step in group])
    assert [a + b for a, b in zip(*found, strict=True)] == wanted


def numbers(steps):
    return [n for step in steps for batch in step for n in batch["index"][batch["valid"]].tolist()]


@pytest.mark.parametrize("devices", [1, 3])
def test_a_state_continues_on_another_number_of_devices(pictures, devices) -> None:
    with loader(pictures, devices=DEVICES) as group:
        iterator = iter(group)
        begun = [next(iterator) for _ in range(3)]
        state = group.state_dict()
        assert all(batch.state == state for batch in begun[-1])
    with loader(pictures, devices=["cpu"] * devices) as other:
        other.load_state_dict(state)
        assert other.state_dict() == state
        rest = list(other)
    assert sorted(numbers(begun) + numbers(rest)) == list(range(NUM_PICTURES))


def test_epochs_follow_one_another_also_after_a_break(pictures) -> None:
    with loader(pictures, devices=DEVICES) as group, loader(pictures, device="cpu") as alone:
        for _ in group:
            break
        second = numbers(list(group))
        assert sorted(second) == list(range(NUM_PICTURES))
        assert group.state_dict()["epoch"] == 1
        group.set_epoch(5)
        alone.set_epoch(5)
        fifth = list(group)
        whole = [n for batch in alone for n in batch["index"][batch["valid"]].tolist()]
        assert sorted(numbers(fifth)) == sorted(whole)
        assert group.state_dict()["position"] == alone.state_dict()["position"]


def test_a_newer_iterator_ends_the_first(pictures) -> None:
    with loader(pictures, devices=DEVICES) as group:
        first = iter(group)
        next(first)
        next(iter(group))
        with pytest.raises(ConfigError, match="ended by a newer"):
            next(first)


def test_what_was_skipped_is_counted_once(tmp_path, damage) -> None:
    write_pictures(tmp_path / "set")
    for sample in (3, 20, 21):
        damage(tmp_path / "set", sample)
    broken_pictures = tmp_path / "set"
    options = {"on_error": "skip", "max_bad_fraction": 1.0}
    with loader(broken_pictures, device="cpu", **options) as alone:
        list(alone)
        wanted = alone.state_dict()
    assert wanted["skipped"] > 0
    with loader(broken_pictures, devices=DEVICES, **options) as group:
        list(group)
        state = group.state_dict()
        assert state == wanted
        group.load_state_dict(state)
        assert group.state_dict() == state


async def test_async_for(pictures) -> None:
    with loader(pictures, devices=DEVICES) as group:
        steps = [step async for step in group]
    assert sorted(numbers(steps)) == list(range(NUM_PICTURES))


def test_statistics_are_summed_and_shown_apart(pictures) -> None:
    with loader(pictures, devices=DEVICES, num_workers=4) as group:
        steps = list(group)
        stats = group.stats()
        slowest = group.stage_time("decode.share_s")
    assert stats["workers"] == 4
    assert stats["counters"]["batches"] == 2 * len(steps)
    assert [part["counters"]["batches"] for part in stats["devices"]] == [len(steps)] * 2
    assert slowest.count > 0


def test_nothing_runs_on_once_it_is_dropped(pictures) -> None:
    before = set(threading.enumerate())
    group = loader(pictures, devices=DEVICES)
    next(iter(group))
    group.close()
    group.close()
    with pytest.raises(ConfigError, match="closed"):
        iter(group)
    del group
    gc.collect()
    assert [t for t in threading.enumerate() if t not in before and t.is_alive()] == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"devices": []}, "must be a list"),
        ({"devices": "cuda"}, "must be a list"),
        ({"devices": DEVICES, "device": "cpu"}, "not both"),
        ({"devices": ["cpu", "tpu"]}, "device must be"),
        ({"devices": DEVICES, "memory_limit": "20kib"}, "too small"),
    ],
)
def test_what_cannot_work_is_refused(pictures, options, words) -> None:
    before = set(threading.enumerate())
    with pytest.raises(ConfigError, match=words):
        loader(pictures, **options)
    assert [t for t in threading.enumerate() if t not in before and t.is_alive()] == []


def test_errors_of_the_storage_come_as_they_are(tmp_path) -> None:
    with pytest.raises((ConfigError, StorageError), match="nothing_here"):
        loader(tmp_path / "nothing_here", devices=DEVICES)


def test_a_subclass_says_that_it_has_one_device(pictures) -> None:
    class Mine(StreamLoader):
        pass

    with pytest.raises(ConfigError, match="subclass"):
        Mine(str(pictures), batch_size=2, transform=CenterCrop(8), devices=DEVICES)

"""Continuing exactly where a run stopped."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import textwrap
import timeit

import pytest
from picture_sets import NUM_PICTURES

from streamloader import (
    ConfigError,
    RandomResizedCrop,
    SampleError,
    StateMismatch,
    StreamLoader,
)


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


def test_a_state_is_had_in_less_than_a_millisecond(pictures):
    with loader(pictures) as stream:
        next(iter(stream))
        # The quickest of many: the machine may be busy, a walk over samples would be slow always.
        assert min(timeit.repeat(stream.state_dict, number=1, repeat=100)) < 1e-3


def test_after_an_early_break_the_rest_of_the_epoch_can_still_be_had(pictures, whole_epoch):
    with loader(pictures) as stream:
        for place, _batch in enumerate(stream):
            if place == 3:
                break
        stream.load_state_dict(stream.state_dict())
        assert [samples([batch]) for batch in stream] == whole_epoch[4:]


def test_after_a_caught_exception_the_run_goes_on_behind_the_last_batch(
    pictures, whole_epoch, tmp_path, damage
):
    shutil.copytree(pictures, tmp_path / "set")
    sample = whole_epoch[5][0]
    damage(tmp_path / "set", sample)
    with loader(tmp_path / "set") as stream:
        got = []
        with pytest.raises(SampleError, match=f"sample {sample}"):
            got.extend(samples([batch]) for batch in stream)
        place = len(got)  # an error may overtake batches that are filled
        assert place <= 5
        assert got == whole_epoch[:place]
        state = stream.state_dict()
    with loader(tmp_path / "set", on_error="skip", max_bad_fraction=0.1) as stream:
        stream.load_state_dict(state)
        rest = [samples([batch]) for batch in stream]
    assert rest == [[n for n in batch if n != sample] for batch in whole_epoch[place:]]


def test_a_run_that_was_killed_goes_on_at_its_last_saved_state(pictures, whole_epoch, tmp_path):
    script = f"""
        import json, os, signal, sys
        from streamloader import RandomResizedCrop, StreamLoader
        stream = StreamLoader({str(pictures)!r}, batch_size=8, shuffle=True, device="cpu",
                              transform=RandomResizedCrop(24))
        for place, batch in enumerate(stream):
            if place == 4:
                os.kill(os.getpid(), signal.SIGKILL)  # this batch is lost, with what is prefetched
            print(json.dumps(stream.state_dict()), flush=True)
    """
    killed = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=100,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    with loader(pictures) as stream:
        stream.load_state_dict(json.loads(killed.stdout.splitlines()[-1]))
        assert [samples([batch]) for batch in stream] == whole_epoch[4:]


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

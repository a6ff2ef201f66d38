"""``deterministic=False``: batches of what has come, each sample once, and exact resume."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import contextmanager

import numpy as np
import pytest
from picture_sets import NUM_PICTURES, write_pictures
from user_functions import double_label

import streamloader._opening
from storage_backends import open_store
from streamloader import ConfigError, RandomResizedCrop, StateMismatch, StreamLoader
from streamloader.fetch import Catalog, LoopThread
from tests.storage_backends.fault_proxy import After, FaultProxy

EVERYTHING = list(range(NUM_PICTURES))


def loader(dataset, **options):
    wanted = {
        "batch_size": 8,
        "transform": RandomResizedCrop(24),
        "device": "cpu",
        "shuffle": True,
        "num_workers": 2,
        "deterministic": False,
    }
    return StreamLoader(str(dataset), **{**wanted, **options})


def ranks(dataset, world_size, states=None, **options):
    """A loader for each rank; ``states`` has one for each, or is a list that each gets whole."""
    made = []
    for rank in range(world_size):
        world = {"rank": rank, "world_size": world_size, "local_world_size": 1}
        stream = loader(dataset, **world, **options)
        if states is not None:
            stream.load_state_dict(json.loads(json.dumps(states(rank))))
        made.append(stream)
    return made


def numbers(batches):
    return [n for b in batches for n in b["index"][b["valid"]].tolist()]


def take(streams, most=None):
    """Numbers that so many steps of all ranks deliver (to the end by default), and the states."""
    iterators, seen, steps = [iter(stream) for stream in streams], [], 0
    while steps != most:
        batches = [next(iterator, None) for iterator in iterators]
        assert len({batch is None for batch in batches}) == 1, "ranks are out of step"
        if batches[0] is None:
            break
        seen += numbers(batches)
        steps += 1
    states = [stream.state_dict() for stream in streams]
    for stream in streams:
        stream.close()
    return seen, states


class Shuffled:
    """A store whose reads end in another order than they began."""

    def __init__(self, store, seed):
        self._store = store
        self._rng = random.Random(seed)

    def __getattr__(self, name):
        return getattr(self._store, name)

    async def __aenter__(self):
        await self._store.__aenter__()
        return self

    async def __aexit__(self, *failure):
        await self._store.__aexit__(*failure)

    async def read_into(self, key, offset, buffer, etag=None):
        await asyncio.sleep(self._rng.choice([0, 0.001, 0.01]))
        await self._store.read_into(key, offset, buffer, etag)


@pytest.fixture
def slow_reads(monkeypatch):
    """Reads of loaders in this process take random times."""
    seeds = iter(range(10_000))
    monkeypatch.setattr(
        streamloader._opening,
        "open_store",
        lambda *a, **k: Shuffled(open_store(*a, **k), next(seeds)),
    )


def test_each_epoch_has_each_sample_once_with_the_crop_of_the_planned_order(pictures, slow_reads):
    with loader(pictures, deterministic=True) as stream:
        epochs = [{n: image.tobytes() for b in stream for n, image in rows(b)} for _ in range(2)]
    out_of_turn = 0
    with loader(pictures) as stream:
        assert len(stream) == 11
        for epoch in epochs:
            batches = list(stream)
            assert [len(b["index"]) for b in batches] == [8] * 11
            assert [int(b["valid"].sum()) for b in batches] == [8] * 10 + [3]
            assert sorted(numbers(batches)) == EVERYTHING
            for batch in batches:
                assert all(epoch[n] == image.tobytes() for n, image in rows(batch))
                assert batch["label"].tolist() == batch["index"].tolist()
                out_of_turn += batch.state["arrived"] is not None
    assert out_of_turn


def rows(batch):
    images = batch["image"].numpy()
    places = np.flatnonzero(batch["valid"].numpy()).tolist()
    return [(int(batch["index"][place]), images[place]) for place in places]


@pytest.mark.parametrize("world_size", [1, 3])
def test_resume_after_every_batch_gives_exactly_the_rest(pictures, slow_reads, world_size):
    total = -(-NUM_PICTURES // (8 * world_size))
    for stop in range(total):
        seen, states = take(ranks(pictures, world_size), stop)
        again, states = take(ranks(pictures, world_size, states.__getitem__), 1)
        rest, states = take(ranks(pictures, world_size, states.__getitem__))
        whole = seen + again + rest
        if stop == total - 1:  # the epoch had ended, and the next one was begun
            whole = seen + again
        assert sorted(whole) == EVERYTHING, stop


def test_all_ranks_states_go_on_on_other_ranks_batch_sizes_and_in_the_planned_order(
    pictures, slow_reads
):
    seen, states = take(ranks(pictures, 3, batch_size=4), 3)
    assert len({json.dumps(state) for state in states}) == 3
    more, states = take(ranks(pictures, 2, lambda _: states, batch_size=5), 2)
    seen += more
    more, states = take(ranks(pictures, 4, lambda _: states, batch_size=2, deterministic=True), 2)
    seen += more
    assert states[0] == states[3]
    more, states = take(ranks(pictures, 1, lambda _: states[2], batch_size=7), 1)
    seen += more
    more, states = take(ranks(pictures, 1, lambda _: states[0], batch_size=3, deterministic=True))
    assert sorted(seen + more) == EVERYTHING


def test_a_rank_goes_on_with_another_batch_size(pictures, slow_reads):
    seen, states = take(ranks(pictures, 2), 2)
    more, states = take(ranks(pictures, 2, states.__getitem__, batch_size=3, num_workers=1), 2)
    rest, _ = take(ranks(pictures, 2, states.__getitem__, batch_size=16))
    assert sorted(seen + more + rest) == EVERYTHING


@pytest.mark.parametrize("feed", ["thread", "process"])
def test_batch_states_continue_for_trainers_that_read_ahead(pictures, feed):
    with loader(pictures, feed=feed) as stream:
        batches = list(stream)
    for taken in (1, 6):
        with loader(pictures) as stream:
            stream.load_state_dict(batches[taken - 1].state)
            assert sorted(numbers(batches[:taken]) + numbers(stream)) == EVERYTHING


def test_a_state_of_the_planned_order_goes_on_by_arrival(pictures, slow_reads):
    seen, states = take(ranks(pictures, 2, deterministic=True), 3)
    rest, _ = take(ranks(pictures, 3, lambda _: states[1]))
    assert sorted(seen + rest) == EVERYTHING


def test_a_rank_s_own_state_is_refused_where_it_does_not_say_enough(pictures):
    _, states = take(ranks(pictures, 2), 3)
    words = (
        r"what rank 1 of 2 alone took with deterministic=False, and this is rank 0 of {}:"
        r" load the states of all 2 ranks as a list"
    )
    for world_size, options, here in (
        (2, {}, "2"),
        (3, {}, "3"),
        (2, {"deterministic": True}, "2 with deterministic=True"),
    ):
        world = {"rank": 0, "world_size": world_size, "local_world_size": 1}
        with (
            loader(pictures, **world, **options) as stream,
            pytest.raises(StateMismatch, match=words.format(here)),
        ):
            stream.load_state_dict(states[1])
    with loader(pictures) as stream:
        with pytest.raises(StateMismatch, match="all 2 ranks are needed"):
            stream.load_state_dict(states[:1])
        with pytest.raises(ConfigError, match="empty list"):
            stream.load_state_dict([])
        with pytest.raises(ConfigError, match="must be a dict"):
            stream.load_state_dict(["state"])
    with loader(pictures, seed=1) as stream, pytest.raises(StateMismatch, match="seed"):
        stream.load_state_dict(states)


def test_the_state_after_an_epoch_is_the_same_on_every_rank(pictures):
    for rule in ("pad", "drop", "partial"):
        _, states = take(ranks(pictures, 2, last_batch=rule))
        assert states[0] == states[1]
        seen, after = take(ranks(pictures, 3, lambda _, state=states[1]: state))
        assert sorted(seen) == EVERYTHING
        assert after[0]["epoch"] == 1


def test_a_state_is_small_and_taken_in_a_moment(pictures, slow_reads):
    with loader(pictures) as stream:
        batches, times = iter(stream), []
        for _ in range(10):
            next(batches)
            started = time.perf_counter()
            state = stream.state_dict()
            times.append(time.perf_counter() - started)
            assert len(json.dumps(state)) < 1000
    assert min(times) < 0.001


def test_last_batch_rules_have_the_batches_of_the_planned_order(pictures, slow_reads):
    for rule in ("drop", "partial"):
        with loader(pictures, last_batch=rule) as stream:
            sizes = [len(batch["index"]) for batch in stream]
        assert sizes == ([8] * 10 if rule == "drop" else [8] * 10 + [3])


def test_subsets_sizes_weights_and_user_code_work_by_arrival(pictures, slow_reads):
    with loader(pictures, subset=[5, 7, 70], batch_size=2) as stream:
        assert sorted(numbers(stream)) == [5, 7, 70]
    with loader(pictures, epoch_size=50) as stream:
        first, second = numbers(stream), numbers(stream)
        assert len(set(first)) == 50
        assert set(EVERYTHING) - set(first) <= set(second)
    with (
        loader(pictures, sampler_weights="balanced", deterministic=True) as planned,
        loader(pictures, sampler_weights="balanced") as stream,
    ):
        assert sorted(numbers(stream)) == sorted(numbers(planned))
    with loader(pictures, map=double_label) as stream:
        for batch in stream:
            assert batch["twice"].tolist() == (2 * batch["index"]).tolist()


def test_bad_samples_are_skipped_and_counted(tmp_path, damage, slow_reads):
    write_pictures(tmp_path / "set")
    damage(tmp_path / "set", 30)
    with loader(tmp_path / "set", on_error="skip", max_bad_fraction=0.5) as stream:
        batches = list(stream)
        assert sorted(numbers(batches)) == [n for n in EVERYTHING if n != 30]
        assert stream.state_dict()["skipped"] == 1


def test_a_feed_that_is_killed_is_replaced_and_nothing_comes_twice(pictures):
    with loader(pictures, feed="process", prefetch_batches=1) as stream:
        seen = []
        for place, batch in enumerate(stream):
            seen += numbers([batch])
            if place in (0, 3, 8):
                os.kill(stream._engine._feed.pid, signal.SIGKILL)
        assert sorted(seen) == EVERYTHING
        assert stream.stats()["feed_restarts"] == 3


def test_a_killed_trainer_goes_on_from_its_last_state(pictures, tmp_path):
    script = textwrap.dedent(f"""
        import json, sys
        from streamloader import RandomResizedCrop, StreamLoader
        stream = StreamLoader({str(pictures)!r}, batch_size=8, transform=RandomResizedCrop(24),
                              shuffle=True, device="cpu", num_workers=1, deterministic=False)
        for batch in stream:
            print(json.dumps([batch["index"].tolist(), batch.state]), flush=True)
            sys.stdin.readline()
    """)
    trainer = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    seen = []
    for _ in range(4):
        index, state = json.loads(trainer.stdout.readline())
        seen += index
        trainer.stdin.write("\n")
        trainer.stdin.flush()
    trainer.kill()
    trainer.wait()
    with loader(pictures) as stream:
        stream.load_state_dict(state)
        assert sorted(seen + numbers(stream)) == EVERYTHING


@contextmanager
def held_block(url, storage_options, sample):
    """A proxy that answers reads of one sample's block only once ``release`` was called."""

    async def extent():
        async with open_store(url, **storage_options) as store:
            catalog = await Catalog.open(store)
            blocks = catalog.blocks
            found = blocks.block_span_bytes(sample // blocks.block_samples)
            return [(catalog.manifest.table.names[s], start, n) for s, start, n in found]

    with LoopThread("proxy") as thread:
        spans, gate = thread.run(extent()), asyncio.Event()
        proxy = FaultProxy(storage_options["endpoint_url"])

        def choose(seen):
            read = re.match(r"bytes=(\d+)-", seen.headers.get("range", ""))
            if read is None:
                return None
            first = int(read[1])
            is_held = any(name in seen.target and a <= first < a + n for name, a, n in spans)
            return After(gate.wait) if is_held else None

        proxy.plan_by(choose)
        thread.run(proxy.__aenter__())
        try:
            yield (
                {**storage_options, "endpoint_url": proxy.url},
                lambda: thread.loop.call_soon_threadsafe(gate.set),
            )
        finally:
            thread.run(proxy.__aexit__(None, None, None))


@pytest.mark.s3
@pytest.mark.parametrize("feed", ["thread", "process"])
def test_a_stalled_block_delays_no_batch_that_others_can_fill(s3_bucket, pictures, feed):
    url = f"{s3_bucket.url}/set"
    write_pictures(url, storage_options=s3_bucket.storage_options)
    with loader(pictures, deterministic=True) as stream:
        stalled = numbers([next(iter(stream))])[0]
    block = set(range(stalled // 4 * 4, stalled // 4 * 4 + 4))
    options = {"feed": feed, "prefetch_batches": 1}
    with held_block(url, s3_bucket.storage_options, stalled) as (storage_options, release):
        options["storage_options"] = storage_options
        with (
            loader(url, **options, deterministic=True, stall_timeout_s=2) as stream,
            pytest.raises(TimeoutError, match="no batch came"),
        ):
            next(iter(stream))
        with loader(url, **options) as stream:
            batches = iter(stream)
            prompt = numbers(next(batches) for _ in range((NUM_PICTURES - len(block)) // 8))
            assert not block & set(prompt)
            state = stream.state_dict()
            assert state["arrived"]["base"] < 8
            release()
            assert sorted(prompt + numbers(batches)) == EVERYTHING
        with loader(pictures) as stream:
            stream.load_state_dict(state)
            assert sorted(prompt + numbers(stream)) == EVERYTHING


def group_numbers(steps):
    return [n for step in steps for n in numbers(step)]


def test_several_devices_of_one_process_have_one_state_that_goes_on_anywhere(pictures, slow_reads):
    with loader(pictures, device=None, devices=["cpu", "cpu"], batch_size=4) as stream:
        steps = list(stream)
    assert sorted(group_numbers(steps)) == EVERYTHING
    head, state = group_numbers(steps[:3]), json.loads(json.dumps(steps[2][1].state))
    assert len(state["arrived"]) == 2
    for options in (
        {"device": None, "devices": ["cpu", "cpu"]},
        {"device": None, "devices": ["cpu"] * 3, "batch_size": 3},
        {},
        {"deterministic": True},
    ):
        with loader(pictures, **options) as stream:
            stream.load_state_dict(state)
            rest = list(stream)
        rest = group_numbers(rest) if "devices" in options else numbers(rest)
        assert sorted(head + rest) == EVERYTHING


def test_processes_of_several_devices_go_on_each_by_itself_or_from_all_states(pictures, slow_reads):
    devices = {"device": None, "devices": ["cpu", "cpu"], "batch_size": 4}
    seen, states = [], []
    for rank in range(2):
        world = {"rank": rank, "world_size": 2, "local_world_size": 1}
        with loader(pictures, **devices, **world) as stream:
            steps = iter(stream)
            seen += group_numbers([next(steps), next(steps)])
            states.append(stream.state_dict())
    own, merged = list(seen), list(seen)
    for rank in range(2):
        world = {"rank": rank, "world_size": 2, "local_world_size": 1}
        with loader(pictures, **devices, **world) as stream:
            stream.load_state_dict(states[rank])
            assert stream.state_dict()["arrived"] == states[rank]["arrived"]
            own += group_numbers(stream)
    assert sorted(own) == EVERYTHING
    with loader(pictures) as stream:
        with pytest.raises(StateMismatch, match="what rank 2, 3 of 4 alone took"):
            stream.load_state_dict(states[1])
        stream.load_state_dict(states)
        merged += numbers(stream)
    assert sorted(merged) == EVERYTHING


@pytest.mark.parametrize("trial", range(4))
def test_each_sample_comes_once_whatever_happened(pictures, slow_reads, trial):
    rng = random.Random(trial)
    seen, states, world_size = [], None, None
    for _ in range(rng.randint(1, 4)):
        own = states is not None and rng.random() < 0.5
        world_size = world_size if own else rng.choice([1, 2, 3, 5])
        load = None if states is None else states.__getitem__ if own else lambda _, s=states: s
        options = {"batch_size": rng.choice([1, 3, 8, 32]), "num_workers": rng.choice([1, 3])}
        more, states = take(ranks(pictures, world_size, load, **options), rng.randint(0, 9))
        seen += more
        if states[0]["position"] == NUM_PICTURES:
            break
    else:
        planned = rng.random() < 0.5
        more, _ = take(ranks(pictures, 2, lambda _, s=states: s, deterministic=planned))
        seen += more
    assert sorted(seen) == EVERYTHING


def test_what_is_no_switch_is_refused(pictures):
    with pytest.raises(ConfigError, match="deterministic must be True or False, got 'no'"):
        loader(pictures, deterministic="no")

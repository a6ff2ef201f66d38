"""The CPU side in a child process: the same batches, and nothing lost when a process dies."""

from __future__ import annotations

import logging
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from picture_sets import NUM_PICTURES
from user_functions import double_label, fail_at_40

from streamloader import (
    CenterCrop,
    ConfigError,
    DatasetWriter,
    RandomResizedCrop,
    SampleError,
    StreamLoader,
)
from streamloader._feed_errors import FeedDied
from streamloader.transfer import RingExhausted


def loader(dataset, **options):
    wanted = {
        "batch_size": 8,
        "transform": RandomResizedCrop(24),
        "device": "cpu",
        "shuffle": True,
        "num_workers": 2,
        "feed": "process",
    }
    return StreamLoader(str(dataset), **{**wanted, **options})


def content(batches):
    return [
        ({name: np.asarray(value).tobytes() for name, value in b.items()}, b.state) for b in batches
    ]


def numbers(batches):
    return [n for b in batches for n in b["index"][b["valid"]].tolist()]


def kill_feed(stream):
    os.kill(stream._engine._feed.pid, signal.SIGKILL)


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_batches_and_states_are_those_of_threads(pictures):
    with loader(pictures, feed="thread") as threads, loader(pictures) as process:
        for _ in range(2):
            assert content(process) == content(threads)
        half = [batch.state for batch in threads][4]
        for stream in (threads, process):
            stream.load_state_dict(half)
        assert content(process) == content(threads)
        stats = process.stats()
    assert stats["feed"] == "process"
    assert stats["feed_restarts"] == 0
    assert stats["counters"]["fetch.pieces"] > 0
    assert stats["times_ms"]["decode.share_s"]["count"] > 0
    assert stats["memory_bytes"]["used"]["slots"] > 0


def test_fields_of_every_kind_come_across(tmp_path):
    fields = {"text": "utf8", "tokens": ("int32", (-1,)), "scores": ("float32", (3,))}
    with DatasetWriter(tmp_path / "set", fields) as writer:
        for number in range(50):
            tokens = np.arange(number % 7, dtype=np.int32)
            scores = np.full(3, number, np.float32)
            writer.write({"text": f"text {number}", "tokens": tokens, "scores": scores})
    options = {"transform": None, "pack": "tokens", "batch_size": 16}
    with (
        loader(tmp_path / "set", feed="thread", **options) as threads,
        loader(tmp_path / "set", **options) as process,
    ):
        for there, here in zip(threads, process, strict=True):
            assert here["text"] == there["text"]
            assert set(here) == set(there)
            for name in set(here) - {"text"}:
                assert torch.equal(here[name], there[name])


def test_a_feed_that_is_killed_is_replaced_and_the_epoch_is_whole(pictures, caplog):
    with loader(pictures, feed="thread") as threads:
        wanted = content(threads)
    with loader(pictures, prefetch_batches=1) as stream:
        got = []
        for place, batch in enumerate(stream):
            got += content([batch])
            if place in (0, 3, 8):
                kill_feed(stream)
        assert got == wanted
        assert stream.stats()["feed_restarts"] == 3
    assert "started again" in caplog.text
    assert "SIGKILL" in caplog.text


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_twenty_deaths_in_one_epoch_lose_nothing(pictures):
    with loader(pictures, feed="thread", batch_size=2) as threads:
        wanted = content(threads)
    with loader(pictures, batch_size=2, prefetch_batches=1) as stream:
        got, dead = [], set()
        for batch in stream:
            got += content([batch])
            pid = stream._engine._feed.pid
            if len(dead) < 20 and pid not in dead:
                dead.add(pid)
                os.kill(pid, signal.SIGKILL)
        assert got == wanted
        assert len(dead) >= 10
        assert stream.stats()["feed_restarts"] == len(dead)


def test_batches_of_a_dead_feed_stay_as_they_are(pictures):
    with loader(pictures) as stream:
        batches = iter(stream)
        held = [
            (batch["image"], batch["image"].clone()) for batch in (next(batches), next(batches))
        ]
        kill_feed(stream)
        rest = list(batches)
        assert all(torch.equal(image, copy) for image, copy in held)
        assert len(rest) == len(stream) - 2


def test_a_feed_that_dies_again_and_again_is_an_error_with_its_last_words(
    pictures, tmp_path, monkeypatch
):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'no such library' >&2\nexit 7\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    with pytest.raises(FeedDied, match="exit code 7.*no such library"):
        loader(pictures)


def test_a_feed_that_dies_in_the_middle_for_good_ends_the_run(pictures, tmp_path, monkeypatch):
    with loader(pictures, prefetch_batches=1) as stream:
        batches = iter(stream)
        next(batches)
        broken = tmp_path / "python"
        broken.write_text("#!/bin/sh\nexit 7\n")
        broken.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(broken))
        kill_feed(stream)
        with pytest.raises(FeedDied, match="3 times in a row"):
            list(batches)


def test_closing_ends_the_process_and_every_thread(pictures):
    stream = loader(pictures)
    next(iter(stream))
    pid = stream._engine._feed.pid
    stream.close()
    assert not is_alive(pid)
    assert not [t.name for t in threading.enumerate() if t.name.startswith("streamloader")]


def kill_trainer(dataset, batches, folder):
    """Kills a trainer once it has had so many batches, and checks what it leaves."""
    script = f"""
        import sys
        from streamloader import RandomResizedCrop, StreamLoader
        # No guard of __main__: nothing of this script runs in the feed process.
        stream = StreamLoader({str(dataset)!r}, batch_size=8, device="cpu", num_workers=1,
                              transform=RandomResizedCrop(24), feed="process")
        print(stream._engine._feed.pid, flush=True)
        while True:
            for batch in stream:
                print("batch", flush=True)
    """
    mark = f"STREAMLOADER_TEST_MARK={folder}"
    trainer = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folder), mark.split("=")[0]: str(folder)},
    )
    pid = int(trainer.stdout.readline())
    feed = os.pidfd_open(pid)
    for _ in range(batches):
        assert trainer.stdout.readline() == "batch\n"
    mapped = Path(f"/proc/{pid}/maps").read_text() + Path(f"/proc/{trainer.pid}/maps").read_text()
    assert "/dev/shm/" not in mapped, "the slots have a name"
    trainer.kill()
    trainer.communicate()
    assert select.select([feed], [], [], 30)[0], "the feed process ends with its trainer"
    os.close(feed)
    assert processes_with(mark) == []
    assert os.listdir(folder) == []


def processes_with(mark):
    """Processes, not yet reaped ones aside, that have this entry in their environment."""
    found = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in environment.read_bytes().split(b"\0"):
                found.append(int(environment.parent.name))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it ended meanwhile, or is somebody else's
    return found


@pytest.mark.timeout(900)
@pytest.mark.parametrize("times", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_a_killed_trainer_leaves_nothing_behind(pictures, tmp_path, times):
    for batches in range(times):
        kill_trainer(pictures, batches, tmp_path)


def test_errors_of_opening_are_those_of_threads(tmp_path):
    with pytest.raises(ConfigError, match="no data set at"):
        loader(tmp_path)


def test_a_damaged_sample_is_raised_or_skipped_as_in_threads(pictures, tmp_path, damage, caplog):
    path = tmp_path / "set"
    shutil.copytree(pictures, path)
    shard = damage(path, 21)
    with loader(path) as stream, pytest.raises(SampleError) as raised:
        list(stream)
    error = raised.value
    assert (error.sample, error.key, error.shard) == (21, "p/21.jpg", shard)
    assert any("in the feed process" in note for note in error.__notes__)
    options = {"on_error": "skip", "max_bad_fraction": 0.1}
    with loader(path, feed="thread", **options) as threads, loader(path, **options) as process:
        assert content(process) == content(threads)
        assert process.state_dict()["skipped"] == 1
    assert "p/21.jpg" in caplog.text


def test_user_code_runs_in_the_feed(pictures):
    with loader(pictures, map=double_label, transform=CenterCrop(24)) as stream:
        for batch in stream:
            assert torch.equal(batch["twice"], 2 * batch["label"])
            assert set(batch["pid"].tolist()) == {stream._engine._feed.pid}
    with loader(pictures, map=fail_at_40) as stream, pytest.raises(ValueError, match="label 40"):
        list(stream)


def test_user_code_that_cannot_be_imported_is_refused(pictures):
    with pytest.raises(ConfigError, match="functions and classes of a module"):
        loader(pictures, map=lambda sample: sample)


def test_held_batches_are_never_overwritten_then_refused(pictures):
    with pytest.raises(ConfigError) as refused:
        loader(pictures, memory_limit=1000, prefetch_batches=1, feed="thread")
    least = int(re.search(r"at least ([\d,]+)", str(refused.value))[1].replace(",", ""))
    with loader(pictures, memory_limit=least + 200_000, prefetch_batches=1) as stream:
        held = []

        def hold_all():
            for batch in (batch for _ in range(20) for batch in stream):
                held.append((batch["image"], batch["image"].clone()))

        with pytest.raises(RingExhausted, match="drop batches"):
            hold_all()
        assert len(held) > 3
        assert all(torch.equal(image, copy) for image, copy in held)
        held.clear()
        assert sorted(numbers(stream)) == list(range(NUM_PICTURES))


def test_an_iterator_that_is_left_gives_its_slots_back(pictures):
    with loader(pictures) as stream:
        for _ in range(15):
            next(iter(stream))
        used = stream.stats()["memory_bytes"]["used"]["slots"]
        assert used <= stream.stats()["memory_bytes"]["plan"]["slots"]
        assert sorted(numbers(stream)) == list(range(NUM_PICTURES))


def test_an_unknown_feed_is_refused(pictures):
    with pytest.raises(ConfigError, match="feed must be"):
        loader(pictures, feed="fork")


def test_slots_that_came_back_are_told_before_new_leases_so_no_more_are_made(pictures, monkeypatch):
    with loader(pictures) as stream:
        with monkeypatch.context() as patched:
            # As if the thread that tells of returned slots never had its turn.
            patched.setattr(stream._engine, "_freed", SimpleNamespace(put=lambda ring: None))
            for _ in range(3):
                assert sorted(numbers(stream)) == list(range(NUM_PICTURES))
        memory = stream.stats()["memory_bytes"]
        assert memory["used"]["slots"] == memory["plan"]["slots"]


def test_its_log_reaches_the_loggers_of_this_process(pictures, caplog):
    with caplog.at_level(logging.INFO, "streamloader"), loader(pictures):
        pass
    assert "workers" in caplog.text

"""A conversion that was stopped anywhere goes on and ends with the bytes of an undisturbed one."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from storage_backends.local import LocalStore
from streamloader.convert import ConvertReport, convert, describe, verify
from streamloader.convert.journal import Journal
from streamloader.convert.pipeline import Pipeline, ShardResult
from streamloader.convert.plan import ShardPlan
from streamloader.convert.upload import ShardUpload
from streamloader.errors import ConfigError

Contents = Callable[[Path], dict[str, bytes]]
OPTIONS: dict[str, Any] = {"shard_bytes": "16kb", "jobs": 1}


class Killed(BaseException):
    """Stands for the end of the process: nothing of the conversion handles it."""


def published(contents: dict[str, bytes]) -> dict[str, bytes]:
    """What is not the temporary file of a writer that was killed."""
    return {name: data for name, data in contents.items() if not name.startswith(".unfinished-")}


def kill_at(monkeypatch: pytest.MonkeyPatch, number: int, *, after: bool) -> Callable[[], int]:
    """End the conversion at the call of this number that changes the store."""
    calls = 0
    lock = threading.Lock()

    def wrapped(real: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(self: LocalStore, *args: Any) -> Any:
            nonlocal calls
            with lock:
                calls += 1
                is_last = calls >= number
            if is_last and not after:
                raise Killed
            result = await real(self, *args)
            if is_last:
                raise Killed
            return result

        return call

    for name in ("put", "put_if_absent", "delete"):
        monkeypatch.setattr(LocalStore, name, wrapped(getattr(LocalStore, name)))
    return lambda: calls


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_stopped_at_any_change_of_the_store(
    class_tree: Path, tmp_path: Path, contents: Contents, after: bool
) -> None:
    (class_tree / "bee" / "07.jpg").write_bytes(b"not a picture")
    convert(class_tree, tmp_path / "whole", **OPTIONS)
    whole = contents(tmp_path / "whole")
    number, resumed = 0, 0
    while True:
        number += 1
        dest = tmp_path / f"out-{number}"
        with pytest.MonkeyPatch.context() as patch:
            calls = kill_at(patch, number, after=after)
            try:
                convert(class_tree, dest, **OPTIONS)
            except Killed:
                pass
            else:
                assert calls() < number
                break
        # Allowed to be finished: the last change was perhaps the last of all.
        report = convert(class_tree, dest, **OPTIONS, resume=True)
        resumed = max(resumed, report.resumed_shards)
        assert published(contents(dest)) == whole, number
        assert report.samples == 59
    assert number > 10
    assert resumed > 3


def test_shards_that_are_complete_are_not_read_again(
    class_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored: list[str] = []
    real = Journal.record
    in_turn = asyncio.Lock()

    async def record(self: Journal, result: ShardResult) -> None:
        async with in_turn:
            if len(stored) >= 2:
                raise Killed
            await real(self, result)
            stored.append(result.name)

    monkeypatch.setattr(Journal, "record", record)
    with pytest.raises(Killed):
        convert(class_tree, tmp_path / "out", **OPTIONS)
    read: list[str] = []
    real_store = Pipeline.store_shard

    async def store_shard(self: Pipeline, plan: ShardPlan) -> ShardResult:
        read.append(plan.name)
        return await real_store(self, plan)

    monkeypatch.setattr(Journal, "record", real)
    monkeypatch.setattr(Pipeline, "store_shard", store_shard)
    report = convert(class_tree, tmp_path / "out", **OPTIONS)
    assert report.resumed_shards == len(stored)
    assert not set(read) & set(stored)
    assert len(read) + len(stored) == report.shards
    assert report.bytes_in == sum(path.stat().st_size for path in class_tree.rglob("*.jpg"))


@pytest.mark.parametrize("damage", ["shard gone", "shard cut", "shard other", "entry"])
def test_a_noted_shard_that_is_not_there_as_noted_is_stored_again(
    class_tree: Path, tmp_path: Path, contents: Contents, damage: str
) -> None:
    convert(class_tree, tmp_path / "whole", **OPTIONS)
    with pytest.MonkeyPatch.context() as patch:
        kill_at(patch, 4, after=True)
        with pytest.raises(Killed):
            convert(class_tree, tmp_path / "out", **OPTIONS)
    entry = next(p for p in (tmp_path / "out").glob("unfinished.0*"))
    shard = tmp_path / "out" / (entry.name.removeprefix("unfinished.") + ".dts")
    if damage == "shard gone":
        shard.unlink()
    elif damage == "shard cut":
        shard.write_bytes(shard.read_bytes()[:-1])
    elif damage == "shard other":
        data = bytearray(shard.read_bytes())
        data[-200] ^= 1
        shard.write_bytes(data)
    else:
        entry.write_bytes(b'{"shard": {}}')
    convert(class_tree, tmp_path / "out", **OPTIONS)
    assert published(contents(tmp_path / "out")) == contents(tmp_path / "whole")


def kill_while_storing(class_tree: Path, dest: Path) -> None:
    """Run a conversion in a process of its own and kill it once a shard is complete."""
    script = (
        "import sys\n"
        "from streamloader.convert import convert\n"
        "from streamloader.convert.journal import Journal\n"
        "real = Journal.record\n"
        "async def record(self, result):\n"
        "    await real(self, result)\n"
        "    print('recorded', flush=True)\n"
        "    sys.stdin.readline()\n"
        "Journal.record = record\n"
        f"convert({str(class_tree)!r}, {str(dest)!r}, shard_bytes='16kb', jobs=1)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "recorded\n"
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL


def test_killed_for_good_and_run_again(
    class_tree: Path, tmp_path: Path, contents: Contents
) -> None:
    convert(class_tree, tmp_path / "whole", **OPTIONS)
    kill_while_storing(class_tree, tmp_path / "out")
    with pytest.raises(ConfigError, match="no data set"):
        describe(tmp_path / "out")
    report = convert(class_tree, tmp_path / "out", **OPTIONS)
    assert report.resumed_shards >= 1
    assert published(contents(tmp_path / "out")) == contents(tmp_path / "whole")


def test_an_unfinished_conversion_is_not_mixed_with_another(
    class_tree: Path, tmp_path: Path, contents: Contents
) -> None:
    kill_while_storing(class_tree, tmp_path / "out")
    for options in ({"shuffle_seed": 1}, {"block_samples": 2}, {"keep_classes": ["ant"]}):
        with pytest.raises(ConfigError, match="unfinished conversion"):
            convert(class_tree, tmp_path / "out", **OPTIONS, **options)
    (class_tree / "ant" / "00.jpg").unlink()
    with pytest.raises(ConfigError, match="unfinished conversion"):
        convert(class_tree, tmp_path / "out", **OPTIONS)
    convert(class_tree, tmp_path / "out", **OPTIONS, overwrite=True)
    convert(class_tree, tmp_path / "whole", **OPTIONS)
    assert published(contents(tmp_path / "out")) == contents(tmp_path / "whole")


def test_resume_accepts_what_is_finished_and_nothing_else(
    class_tree: Path, tmp_path: Path, contents: Contents
) -> None:
    first = convert(class_tree, tmp_path / "out", **OPTIONS, resume=True)
    before = contents(tmp_path / "out")
    again = convert(class_tree, tmp_path / "out", **OPTIONS, resume=True)
    assert again.fingerprint == first.fingerprint
    assert contents(tmp_path / "out") == before
    with pytest.raises(ConfigError, match="other options"):
        convert(class_tree, tmp_path / "out", **OPTIONS, resume=True, shuffle_seed=1)
    with pytest.raises(ConfigError, match="exclude"):
        convert(class_tree, tmp_path / "out", resume=True, overwrite=True)


def test_overwrite_replaces_the_data_set_and_nothing_of_others(
    class_tree: Path, tmp_path: Path, contents: Contents
) -> None:
    convert(class_tree, tmp_path / "out", shard_bytes="4kb")
    (tmp_path / "out" / "notes.txt").write_text("mine")
    (tmp_path / "out" / "99999.dts").write_text("not a shard")
    convert(class_tree, tmp_path / "out", **OPTIONS, overwrite=True)
    convert(class_tree, tmp_path / "whole", **OPTIONS)
    wanted = {**contents(tmp_path / "whole"), "notes.txt": b"mine", "99999.dts": b"not a shard"}
    assert contents(tmp_path / "out") == wanted


def test_overwrite_removes_nothing_when_the_source_cannot_be_read(
    class_tree: Path, tmp_path: Path, contents: Contents
) -> None:
    convert(class_tree, tmp_path / "out")
    before = contents(tmp_path / "out")
    with pytest.raises(ConfigError, match="does not exist"):
        convert(tmp_path / "missing", tmp_path / "out", overwrite=True)
    assert contents(tmp_path / "out") == before


def race(
    class_tree: Path, dest: str, options: list[dict[str, Any]]
) -> tuple[list[ConvertReport], list[BaseException]]:
    reports: list[ConvertReport] = []
    errors: list[BaseException] = []
    start = threading.Barrier(len(options))

    def run(own: dict[str, Any]) -> None:
        start.wait(timeout=60)
        try:
            reports.append(convert(class_tree, dest, **OPTIONS, **own))
        except ConfigError as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(own,)) for own in options]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=100)
        assert not thread.is_alive()
    return reports, errors


@pytest.mark.parametrize("seeds", [(0, 0), (0, 1)], ids=["the same", "another"])
def test_of_two_runs_at_once_one_wins_and_the_other_says_so(
    class_tree: Path, tmp_path: Path, seeds: tuple[int, int]
) -> None:
    options = [{"shuffle_seed": seed} for seed in seeds]
    reports, errors = race(class_tree, str(tmp_path / "out"), options)
    assert (len(reports), len(errors)) == (1, 1), errors
    assert str(tmp_path / "out") in str(errors[0])
    assert verify(tmp_path / "out", sha256=True).ok
    assert describe(tmp_path / "out").manifest.fingerprint == reports[0].fingerprint
    assert not list((tmp_path / "out").glob("unfinished*"))


@pytest.mark.s3
def test_two_runs_at_once_into_one_bucket(class_tree: Path, s3_bucket: Any) -> None:
    url, options = f"{s3_bucket.url}/set", {"storage_options": s3_bucket.storage_options}
    reports, errors = race(class_tree, url, [options, options])
    assert (len(reports), len(errors)) == (1, 1), errors
    assert verify(url, sha256=True, **options).ok


@pytest.mark.s3
def test_a_run_whose_upload_the_winner_removed_says_so(
    class_tree: Path, s3_bucket: Any, jpeg: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(14):
        (class_tree / "ant" / f"big{number}.jpg").write_bytes(jpeg(number, 1600, 1200))
    url = f"{s3_bucket.url}/set"
    storage = {**s3_bucket.storage_options, "part_bytes": 5 << 20}
    options: dict[str, Any] = {"storage_options": storage, "jobs": 1}
    real, flushes = ShardUpload.flush, 0

    async def flush(self: ShardUpload) -> None:
        nonlocal flushes
        await real(self)
        flushes += 1
        if flushes == 9:
            monkeypatch.setattr(ShardUpload, "flush", real)
            await asyncio.to_thread(convert, class_tree, url, **options)

    monkeypatch.setattr(ShardUpload, "flush", flush)
    with pytest.raises(ConfigError, match="another run of the same conversion published"):
        convert(class_tree, url, **options)
    assert verify(url, sha256=True, storage_options=storage).ok


def test_a_run_that_ended_since_the_first_look_is_not_written_over(
    class_tree: Path, tmp_path: Path, contents: Contents, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streamloader.convert import conversion

    real = conversion.plan_shards
    first: list[dict[str, bytes]] = []

    def plan_while_another_runs(*args: Any) -> Any:
        monkeypatch.setattr(conversion, "plan_shards", real)
        convert(class_tree, tmp_path / "out", **OPTIONS)
        first.append(contents(tmp_path / "out"))
        return real(*args)

    monkeypatch.setattr(conversion, "plan_shards", plan_while_another_runs)
    with pytest.raises(ConfigError, match="another conversion published"):
        convert(class_tree, tmp_path / "out", **OPTIONS, shuffle_seed=1)
    assert contents(tmp_path / "out") == first[0]


def test_a_taken_over_destination_is_noticed_before_publishing(
    class_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Pipeline.store_shard

    async def take_over(self: Pipeline, plan: Any) -> Any:
        result = await real(self, plan)
        stored = json.loads((tmp_path / "out" / "unfinished.plan").read_bytes())
        stored["digest"] = "another"
        (tmp_path / "out" / "unfinished.plan").write_text(json.dumps(stored))
        return result

    monkeypatch.setattr(Pipeline, "store_shard", take_over)
    with pytest.raises(ConfigError, match="another conversion took"):
        convert(class_tree, tmp_path / "out")
    assert not list((tmp_path / "out").glob("*.json"))


def test_rejects_of_resumed_shards_count(class_tree: Path, tmp_path: Path) -> None:
    for number in range(20):
        (class_tree / "ant" / f"{number:02d}.jpg").write_bytes(bytes(700))
    kill_while_storing(class_tree, tmp_path / "out")
    report = convert(class_tree, tmp_path / "out", **OPTIONS)
    assert report.resumed_shards >= 1
    assert len(report.rejected) == 20
    lines = (tmp_path / "out" / "rejects.jsonl").read_text().splitlines()
    assert len(lines) == 20


@pytest.mark.s3
def test_killed_while_storing_in_a_bucket(class_tree: Path, tmp_path: Path, s3_bucket: Any) -> None:
    url, storage = f"{s3_bucket.url}/set", s3_bucket.storage_options
    script = (
        "import os, signal, sys\n"
        "from storage_backends.s3 import S3Store\n"
        "from streamloader.convert import convert\n"
        "real, calls = S3Store.put, []\n"
        "async def put(self, key, data):\n"
        "    await real(self, key, data)\n"
        "    calls.append(key)\n"
        "    if len(calls) == 2:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "S3Store.put = put\n"
        f"convert({str(class_tree)!r}, {url!r}, shard_bytes='16kb', storage_options={storage!r})\n"
    )
    done = subprocess.run([sys.executable, "-c", script], timeout=100, env=os.environ, check=False)
    assert done.returncode == -signal.SIGKILL
    report = convert(class_tree, url, shard_bytes="16kb", storage_options=storage)
    assert report.resumed_shards >= 1
    local = convert(class_tree, tmp_path / "local", shard_bytes="16kb")
    assert report.fingerprint == local.fingerprint
    assert verify(url, sha256=True, storage_options=storage).ok


@pytest.fixture
def stopped(class_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A conversion that left it to the system what reaches the disk, and was killed at its end."""
    dest = tmp_path / "stopped"

    async def die(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("streamloader.convert.storing.publish_manifest", die)
        with pytest.raises(Killed):
            convert(class_tree, dest, **OPTIONS, storage_options={"sync": False})
    return dest


def test_without_sync_shards_of_this_run_of_the_machine_are_gone_on_with(
    class_tree: Path, tmp_path: Path, contents: Contents, stopped: Path
) -> None:
    report = convert(class_tree, stopped, **OPTIONS, storage_options={"sync": False})
    assert report.resumed_shards == report.shards > 1
    convert(class_tree, tmp_path / "whole", **OPTIONS)
    assert published(contents(stopped)) == contents(tmp_path / "whole")


@pytest.mark.parametrize("sync", [True, False])
def test_shards_that_the_disk_may_not_have_are_stored_again(
    class_tree: Path, stopped: Path, monkeypatch: pytest.MonkeyPatch, sync: bool
) -> None:
    if not sync:
        monkeypatch.setattr("streamloader.convert.journal.boot_id", lambda: "the next one")
    report = convert(class_tree, stopped, **OPTIONS, storage_options={"sync": sync})
    assert report.resumed_shards == 0
    assert verify(stopped, sha256=True).ok


def test_without_sync_nothing_is_forced_to_the_disk(
    class_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forced: list[int] = []
    fsync = os.fsync

    def note(fd: int) -> None:
        forced.append(fd)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", note)
    (tmp_path / "lazy").mkdir()
    convert(class_tree, tmp_path / "lazy", **OPTIONS, storage_options={"sync": False})
    assert not forced
    report = convert(class_tree, tmp_path / "safe", **OPTIONS)
    assert len(forced) > 2 * report.shards

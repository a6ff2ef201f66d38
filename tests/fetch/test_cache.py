"""Blocks on a local disk: what is kept, what leaves, and what a bad disk may not do."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from picture_sets import write_pictures

from storage_backends import Store, open_store
from streamloader import ConfigError, StreamLoader
from streamloader.fetch import CacheOptions, Catalog, budget
from streamloader.fetch.cache_files import cached_blocks
from streamloader.fetch.offline import PrefetchOptions, PrefetchReport, prefetch_offline

NUM = 60


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cached") / "set"
    write_pictures(path, count=NUM)
    return path


@pytest.fixture(scope="module")
def large_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "set"
    # A multiple of all batches: those that are padded repeat samples of others.
    write_pictures(path, count=960)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def prefetch(
    dataset: Path, folder: Path, limit: int | None = None, epochs: int = 1, seed: int = 0
) -> PrefetchReport:
    cache = CacheOptions.of(folder, limit)
    report = prefetch_offline(
        str(dataset), PrefetchOptions(batch_size=8, epochs=epochs, seed=seed, cache=cache)
    )
    assert report.samples == NUM * epochs
    assert not report.errors
    return report


def sizes(folder: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for block in cached_blocks(str(folder)):
        found[block.fingerprint] = found.get(block.fingerprint, 0) + block.nbytes
    return found


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*.block"))


def test_the_second_epoch_and_the_next_run_read_no_block_from_the_storage(
    dataset: Path, folder: Path
) -> None:
    prefetch(dataset, folder, epochs=3)
    # Cut by another epoch, a block is still the same block.
    prefetch(dataset, folder, epochs=3, seed=5)
    kept = files(folder)
    again = prefetch(dataset, folder, epochs=2, seed=5)
    assert files(folder) == kept
    options = PrefetchOptions(batch_size=8, epochs=2, seed=5)
    without = prefetch_offline(str(dataset), options)
    assert again.cache_hits == without.requests - again.requests >= 2 * NUM // 4


@pytest.mark.parametrize("shared", [True, False], ids=["one folder", "own folders"])
def test_later_epochs_read_nothing_from_the_storage_on_any_of_four_ranks(
    shared: bool, tmp_path: Path
) -> None:
    write_pictures(tmp_path / "set", count=384)

    def requests(rank: int, epochs: int) -> int:
        folder = tmp_path / f"cache-{epochs}-{0 if shared else rank}"
        cache = CacheOptions.of(folder, None)
        options = PrefetchOptions(batch_size=8, epochs=epochs, world_size=4, rank=rank, cache=cache)
        return prefetch_offline(str(tmp_path / "set"), options).requests

    # Borders of lanes and the turn of each epoch cut blocks in parts, each epoch elsewhere.
    assert [requests(rank, 4) for rank in range(4)] == [requests(rank, 1) for rank in range(4)]


class Counting:
    """A store that counts how often each byte of each object was read by range."""

    def __init__(self, store: Store, reads: dict[str, npt.NDArray[np.int64]]) -> None:
        self._store = store
        self._reads = reads

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def __aenter__(self) -> Counting:
        await self._store.__aenter__()
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self._store.__aexit__(*exc)

    async def read_into(self, key: str, offset: int, buffer: Any, etag: str | None = None) -> None:
        self._reads[key][offset : offset + memoryview(buffer).nbytes] += 1
        await self._store.read_into(key, offset, buffer, etag)


def least_memory(dataset: Path, options: PrefetchOptions) -> int:
    """The limit that the refusal of a smaller one names."""
    with pytest.raises(ConfigError) as caught:
        prefetch_offline(str(dataset), replace(options, memory_limit_bytes=1))
    return int(str(caught.value).split("give at least ")[1].split(" ")[0].replace(",", ""))


def payload_reads(
    dataset: Path, options: PrefetchOptions, monkeypatch: pytest.MonkeyPatch
) -> npt.NDArray[np.int64]:
    """How often each rank has read each byte of the blocks in one epoch, [rank, byte]."""
    places = payloads(dataset)
    reads = {path.name: np.zeros(path.stat().st_size, np.int64) for path in dataset.glob("*.dts")}
    found = []

    def counting_store(url: str, **more: Any) -> Any:
        return Counting(open_store(url, **more), reads)

    with monkeypatch.context() as patch:
        patch.setattr("streamloader.fetch.offline.open_store", counting_store)
        for rank in range(options.world_size):
            report = prefetch_offline(str(dataset), replace(options, rank=rank))
            assert not report.errors
            found.append(np.concatenate([reads[name][first:end] for name, first, end in places]))
            for count in reads.values():
                count[:] = 0
    return np.stack(found)


def payloads(dataset: Path) -> list[tuple[str, int, int]]:
    """Where the blocks lie: name of the shard, first byte, and the one after the last."""

    async def look() -> list[tuple[str, int, int]]:
        async with open_store(str(dataset)) as store:
            catalog = await Catalog.open(store)
        blocks, names = catalog.blocks, catalog.manifest.table.names
        return [
            (names[shard], offset, offset + nbytes)
            for block in range(blocks.num_blocks)
            for shard, offset, nbytes in blocks.block_span_bytes(block)
        ]

    return asyncio.run(look())


@pytest.mark.parametrize("world_size", [1, 3, 4])
@pytest.mark.parametrize("seed", range(3))
def test_with_the_least_memory_no_rank_reads_a_byte_of_an_epoch_twice_however_small_the_cache(
    seed: int,
    world_size: int,
    large_dataset: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = PrefetchOptions(
        batch_size=8, seed=seed, world_size=world_size, cache=CacheOptions.of(folder, 8_000)
    )
    options = replace(options, memory_limit_bytes=least_memory(large_dataset, options))
    reads = payload_reads(large_dataset, options, monkeypatch)
    assert reads.max() == 1
    # Ranks that share a lane share the blocks at its border.
    assert reads.sum(axis=0).min() == 1


def test_with_less_memory_than_that_the_same_count_finds_bytes_that_are_read_again(
    large_dataset: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = budget.open_block_bytes

    def too_little(*args: Any, **more: Any) -> int:
        return real(*args, **more) // 3

    monkeypatch.setattr(budget, "open_block_bytes", too_little)
    options = PrefetchOptions(batch_size=8, cache=CacheOptions.of(folder, 8_000))
    options = replace(options, memory_limit_bytes=least_memory(large_dataset, options))
    reads = payload_reads(large_dataset, options, monkeypatch)
    assert reads.min() == 1
    assert reads.max() > 1


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty"])
def test_a_damaged_block_is_read_from_the_storage_and_replaced(
    damage: str, dataset: Path, folder: Path
) -> None:
    prefetch(dataset, folder)
    victim = files(folder)[3]
    right = victim.read_bytes()
    wrong = {"flipped": bytes([right[0] ^ 1]) + right[1:], "cut": right[:-1], "empty": b""}
    victim.write_bytes(wrong[damage])
    prefetch(dataset, folder)
    assert victim.read_bytes() == right


def test_the_limit_holds_and_what_is_there_stays(dataset: Path, folder: Path) -> None:
    prefetch(dataset, folder, limit=40_000)
    assert 20_000 < sum(sizes(folder).values()) <= 40_000
    before = files(folder)
    report = prefetch(dataset, folder, limit=40_000, epochs=3, seed=7)
    assert sum(sizes(folder).values()) <= 40_000
    # Parts of a block that is cut elsewhere now may have left.
    assert len(set(before) & set(files(folder))) >= len(before) // 2
    assert report.cache_hits >= 2 * len(before)


def test_a_data_set_that_nobody_uses_leaves_for_one_that_is_used(
    dataset: Path, folder: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    write_pictures(other, count=NUM, block_samples=3)
    prefetch(other, folder)
    old, new = sizes(folder), {}
    limit = sum(old.values()) + 5_000
    prefetch(dataset, folder, limit=limit)
    for fingerprint, nbytes in sizes(folder).items():
        if fingerprint not in old:
            new[fingerprint] = nbytes
    assert sum(sizes(folder).values()) <= limit
    assert next(iter(new.values())) > 60_000
    # The other one comes back, and the first one has to leave.
    assert prefetch(other, folder, limit=limit).cache_hits < len(files(folder))


def test_a_data_set_that_is_published_again_is_another_one(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "set"
    write_pictures(place, count=NUM)
    prefetch(place, folder)
    shutil.rmtree(place)
    write_pictures(place, count=NUM, block_samples=5)
    # A sample that is read by itself may be part of a block of the same run.
    alone = prefetch(place, folder.parent / "alone").cache_hits
    assert prefetch(place, folder).cache_hits == alone
    assert len(sizes(folder)) == 2


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_a_disk_that_takes_nothing_ends_the_cache_with_one_warning(
    number: int,
    dataset: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls = 0

    def write(descriptor: int, data: Any) -> int:
        nonlocal calls
        calls += 1
        if calls > 3:
            raise OSError(number, os.strerror(number))
        return real(descriptor, data)

    real = os.write
    monkeypatch.setattr("streamloader.fetch.cache.os.write", write)
    with caplog.at_level(logging.WARNING, "streamloader"):
        prefetch(dataset, folder, epochs=2)
    warnings = [record for record in caplog.records if str(folder) in record.getMessage()]
    assert len(warnings) == 1
    assert len(files(folder)) == 3
    assert not list(folder.glob("*/.*"))


def test_a_cache_that_vanishes_in_the_midst_of_a_run_is_made_anew(
    dataset: Path, folder: Path
) -> None:
    cache = CacheOptions.of(folder, None)
    gone = []

    def progress(done: int, total: int) -> None:
        if done > total // 2 and not gone:
            gone.append(len(files(folder)))
            shutil.rmtree(folder)

    report = prefetch_offline(
        str(dataset), PrefetchOptions(batch_size=8, epochs=4, cache=cache), progress=progress
    )
    assert (report.samples, report.errors) == (4 * NUM, ())
    assert gone[0] > 0
    assert files(folder)


def test_files_of_others_are_never_touched(dataset: Path, folder: Path) -> None:
    prefetch(dataset, folder)
    (own,) = sizes(folder)
    strangers = [
        folder / "notes.txt",
        folder / own / "notes.txt",
        folder / own / "1-2-3.block.bak",
        folder / "photos" / "1-2-3.block",
    ]
    for stranger in strangers:
        stranger.parent.mkdir(exist_ok=True)
        stranger.write_bytes(b"mine")
    (folder / own / "7-7-4.block").symlink_to(strangers[0])
    run_cli("clear", folder)
    assert not [path for path in files(folder) if not path.is_symlink() and path.parent.name == own]
    assert all(stranger.read_bytes() == b"mine" for stranger in strangers)


def test_what_killed_writers_left_is_removed_when_it_is_old(dataset: Path, folder: Path) -> None:
    prefetch(dataset, folder)
    (own,) = sizes(folder)
    old, young = (folder / own / f".{letter * 32}.unfinished" for letter in "ab")
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 7200,) * 2)
    prefetch(dataset, folder)
    assert not old.exists()
    assert young.exists()


_READER = """
import sys
from streamloader.fetch import CacheOptions
from streamloader.fetch.offline import PrefetchOptions, prefetch_offline
dataset, folder, limit, seed = sys.argv[1:]
cache = CacheOptions.of(folder, int(limit))
options = PrefetchOptions(batch_size=8, epochs=8, seed=int(seed), cache=cache)
report = prefetch_offline(dataset, options)
assert not report.errors and report.samples == 8 * 60, report
"""


def test_processes_share_a_folder_while_one_of_them_empties_it(dataset: Path, folder: Path) -> None:
    readers = [
        subprocess.Popen(
            [sys.executable, "-c", _READER, str(dataset), str(folder), "60000", str(seed)],
            stderr=subprocess.PIPE,
        )
        for seed in range(3)
    ]
    while any(reader.poll() is None for reader in readers):
        for path in files(folder):
            path.unlink(missing_ok=True)
        time.sleep(0.01)
    for reader in readers:
        _, told = reader.communicate()
        assert reader.returncode == 0, told.decode()


def test_after_processes_were_killed_the_folder_is_whole_and_below_its_limit(
    dataset: Path, folder: Path
) -> None:
    strangers = [folder / "notes.txt", folder / "photos" / "1-2-3.block"]
    for stranger in strangers:
        stranger.parent.mkdir(parents=True, exist_ok=True)
        stranger.write_bytes(b"mine")
    limit = 60_000
    readers = [
        subprocess.Popen(
            [sys.executable, "-c", _READER, str(dataset), str(folder), str(limit), str(seed)],
            stderr=subprocess.PIPE,
        )
        for seed in range(4)
    ]
    for killed in readers[:2]:
        while killed.poll() is None and len(files(folder)) < 4:
            time.sleep(0.01)
        killed.kill()
        run_cli("prune", folder, "--cache-limit", "10kb")
    told = [reader.communicate()[1] for reader in readers]
    for reader, message in zip(readers[2:], told[2:], strict=True):
        assert reader.returncode == 0, message.decode()
    # What the killed ones have written is whole, or is not taken for a block.
    assert prefetch(dataset, folder, limit=limit, epochs=2).cache_hits > 0
    assert sum(sizes(folder).values()) <= limit
    assert all(stranger.read_bytes() == b"mine" for stranger in strangers)


def run_cli(verb: str, folder: Path, *more: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "streamloader", "cache", verb, str(folder), *more, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_command_line_shows_and_shrinks_a_cache(dataset: Path, folder: Path) -> None:
    assert run_cli("ls", folder) == {"bytes": 0, "blocks": 0, "datasets": []}
    prefetch(dataset, folder)
    (fingerprint, nbytes), *_ = sizes(folder).items()
    shown = run_cli("ls", folder)
    assert (shown["bytes"], shown["blocks"]) == (nbytes, len(files(folder)))
    assert shown["datasets"][0]["fingerprint"] == fingerprint
    assert run_cli("prune", folder, "--cache-limit", "30kb")["bytes"] <= 30_000
    assert files(folder)
    assert run_cli("clear", folder, "--dataset", fingerprint)["blocks"] == 0
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("feed", ["thread", "process"])
def test_a_loader_reads_its_second_epoch_from_the_cache(
    feed: str, dataset: Path, folder: Path
) -> None:
    def epoch(loader: StreamLoader) -> list[int]:
        return [int(label) for batch in loader for label in batch["label"][batch["valid"]]]

    options: dict[str, Any] = {"batch_size": 8, "shuffle": True, "num_workers": 1, "feed": feed}
    with StreamLoader(str(dataset), cache_dir=folder, cache_limit="10mb", **options) as loader:
        assert sorted(epoch(loader)) == list(range(NUM))
        kept = files(folder)
        # The second epoch began to read while the first one still filled the cache.
        assert sorted(epoch(loader)) == list(range(NUM))
        before = loader.stats()["counters"]
        assert sorted(epoch(loader)) == list(range(NUM))
        after = loader.stats()["counters"]
    assert len(kept) >= NUM // 5
    assert set(kept) <= set(files(folder))
    assert after["cache.hits"] > before["cache.hits"]
    assert after.get("cache.misses", 0) == before.get("cache.misses", 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((None, "1gb"), "needs a cache_dir"),
        (("s3://bucket/x", None), "folder of this machine"),
        (("", None), "folder of this machine"),
        ((__file__, None), "not a folder"),
        (("x", "many"), "cache_limit"),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CacheOptions.of(*arguments)

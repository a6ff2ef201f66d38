"""DatasetWriter publishes what was written on a clean exit, and nothing else ever."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage_backends import open_store
from streamloader.convert import DatasetWriter, describe, read_samples, verify
from streamloader.errors import ConfigError, ShardError

FIELDS = {"image": "picture", "label": "int64", "caption": "str", "box": ("float32", (4,))}


def sample(jpeg: Callable[[int], bytes], number: int) -> dict[str, Any]:
    return {
        "image": jpeg(number),
        "label": number % 3,
        "caption": f"picture {number} é",
        "box": np.arange(4, dtype=np.float32) + number,
    }


def write(dest: Path, jpeg: Callable[[int], bytes], count: int, **options: Any) -> DatasetWriter:
    with DatasetWriter(dest, FIELDS, classes=["a", "b", "c"], **options) as writer:
        for number in range(count):
            writer.write(sample(jpeg, number), key=f"k{number}")
    return writer


def test_what_is_written_comes_back(tmp_path: Path, jpeg: Any) -> None:
    writer = write(tmp_path / "out", jpeg, 50, shard_bytes="8kb", block_samples=7)
    assert writer.manifest.num_samples == 50
    assert len(writer.manifest.shard_samples) > 2
    assert verify(tmp_path / "out", decode=True, sha256=True).ok
    stored = read_samples(tmp_path / "out", range(50))
    assert [s.key for s in stored] == [f"k{n}" for n in range(50)]
    for number, got in enumerate(stored):
        wanted = sample(jpeg, number)
        assert got.record["image"] == wanted["image"]
        assert got.record["label"] == wanted["label"]
        assert got.record["caption"] == wanted["caption"]
        assert np.array_equal(got.record["box"], wanted["box"])
        assert got.class_name == "abc"[number % 3]


def test_the_same_samples_give_the_same_bytes(tmp_path: Path, jpeg: Any, contents: Any) -> None:
    write(tmp_path / "a", jpeg, 30, shard_bytes="8kb")
    write(tmp_path / "b", jpeg, 30, shard_bytes="8kb")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_an_exception_in_the_block_publishes_and_leaves_nothing(
    tmp_path: Path, jpeg: Any, contents: Any
) -> None:
    seen_while_writing = {}

    def write_and_fail() -> None:
        with DatasetWriter(tmp_path / "out", FIELDS, shard_bytes="8kb") as writer:
            for number in range(40):
                writer.write(sample(jpeg, number))
            seen_while_writing.update(contents(tmp_path / "out"))
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        write_and_fail()
    assert "00000.dts" in seen_while_writing
    assert contents(tmp_path / "out") == {}


def test_a_refused_sample_leaves_the_writer_usable(tmp_path: Path, jpeg: Any) -> None:
    with DatasetWriter(tmp_path / "out", FIELDS) as writer:
        writer.write(sample(jpeg, 0))
        with pytest.raises(ConfigError, match="caption"):
            writer.write({"image": jpeg(1), "label": 1, "box": np.zeros(4, np.float32)})
        with pytest.raises(ShardError, match="HTML"):
            writer.write({**sample(jpeg, 1), "image": b"<html></html>"})
        writer.write(sample(jpeg, 2))
    stored = read_samples(tmp_path / "out", range(2))
    assert [s.record["caption"] for s in stored] == ["picture 0 é", "picture 2 é"]


def test_no_sample_is_an_error_and_no_data_set(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match="no sample was written"),
        DatasetWriter(tmp_path / "out", FIELDS),
    ):
        pass
    assert not (tmp_path / "out" / "latest.json").exists()


def test_a_place_that_is_taken_is_refused_on_entering(
    tmp_path: Path, jpeg: Any, contents: Any
) -> None:
    write(tmp_path / "out", jpeg, 3)
    before = contents(tmp_path / "out")
    threads = threading.active_count()
    with pytest.raises(ConfigError, match="already holds"):
        DatasetWriter(tmp_path / "out", FIELDS).__enter__()
    assert contents(tmp_path / "out") == before
    assert threading.active_count() == threads


def test_a_writer_that_lost_the_race_removes_nothing_of_the_winner(
    tmp_path: Path, jpeg: Any, contents: Any
) -> None:
    loser = DatasetWriter(tmp_path / "out", FIELDS).__enter__()
    loser.write(sample(jpeg, 0))
    write(tmp_path / "out", jpeg, 1)
    with pytest.raises(ConfigError, match="in the meantime"):
        loser.__exit__(None, None, None)
    assert {"00000.dts", "latest.json", "manifest-000001.json"} <= set(contents(tmp_path / "out"))


def test_outside_of_the_with_statement_it_refuses(tmp_path: Path, jpeg: Any) -> None:
    writer = DatasetWriter(tmp_path / "out", FIELDS)
    with pytest.raises(ConfigError, match="with-statement"):
        writer.write(sample(jpeg, 0))
    with pytest.raises(ConfigError, match="nothing is published"):
        _ = writer.manifest
    with writer:
        writer.write(sample(jpeg, 0))
    with pytest.raises(ConfigError, match="closed"):
        writer.write(sample(jpeg, 0))
    with pytest.raises(ConfigError, match="closed"):
        writer.__enter__()


async def test_it_works_inside_a_running_event_loop(tmp_path: Path, jpeg: Any) -> None:
    write(tmp_path / "out", jpeg, 5)
    assert describe(tmp_path / "out").manifest.num_samples == 5


@pytest.mark.s3
def test_an_exception_leaves_an_empty_bucket(s3_bucket: Any, jpeg: Any) -> None:
    async def keys() -> list[str]:
        async with open_store(s3_bucket.url, **s3_bucket.storage_options) as store:
            return [info.key async for info in store.list()]

    def write_and_fail() -> None:
        with DatasetWriter(
            f"{s3_bucket.url}/set",
            FIELDS,
            shard_bytes="8kb",
            storage_options=s3_bucket.storage_options,
        ) as writer:
            for number in range(40):
                writer.write(sample(jpeg, number))
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        write_and_fail()
    assert asyncio.run(keys()) == []

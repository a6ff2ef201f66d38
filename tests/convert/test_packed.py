"""Sound JPEGs that are read and stored at once give the bytes of those stored one by one."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from streamloader.convert import convert
from streamloader.convert.run_memory import RUN_ALIGN, MemoryPool, RunMemory
from streamloader.convert.runs import RUN_BYTES, Run, RunReader
from streamloader.convert.sources import packed_files
from streamloader.convert.sources.packed_files import read_packed_files
from streamloader.dts import packed as dts_packed

Contents = Callable[[Path], dict[str, bytes]]
Jpeg = Callable[..., bytes]

pytestmark = pytest.mark.skipif(
    packed_files.lib is None or not dts_packed.HASHES_NATIVELY, reason="nothing native was built"
)


@pytest.fixture
def packed_runs(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each run that is read was packed."""
    found: list[bool] = []
    real = RunReader.read_run

    def read_run(self: RunReader, split: int, places: list[int]) -> Run:
        run = real(self, split, places)
        found.append(run.packed is not None)
        return run

    monkeypatch.setattr(RunReader, "read_run", read_run)
    return found


def both_ways(
    source: Path,
    tmp_path: Path,
    contents: Contents,
    monkeypatch: pytest.MonkeyPatch,
    **options: Any,
) -> None:
    convert(source, tmp_path / "packed", shard_bytes="64kb", **options)
    monkeypatch.setattr(packed_files, "lib", None)
    convert(source, tmp_path / "singly", shard_bytes="64kb", **options)
    assert contents(tmp_path / "packed") == contents(tmp_path / "singly")


@pytest.mark.parametrize("decode_check", [True, False])
@pytest.mark.parametrize("flat", [True, False])
def test_the_same_bytes(
    class_tree: Path,
    tmp_path: Path,
    contents: Contents,
    monkeypatch: pytest.MonkeyPatch,
    packed_runs: list[bool],
    flat: bool,
    decode_check: bool,
) -> None:
    source = class_tree / "ant" if flat else class_tree
    both_ways(source, tmp_path, contents, monkeypatch, decode_check=decode_check)
    half = len(packed_runs) // 2
    assert packed_runs == [True] * half + [False] * half


def test_a_run_with_an_odd_file_is_read_one_by_one(
    class_tree: Path,
    tmp_path: Path,
    contents: Contents,
    monkeypatch: pytest.MonkeyPatch,
    packed_runs: list[bool],
    jpeg: Jpeg,
) -> None:
    file = io.BytesIO()
    Image.new("RGB", (9, 5)).save(file, format="PNG")
    for number in range(60):
        (class_tree / "cat" / f"more-{number}.jpg").write_bytes(jpeg(number))
    (class_tree / "ant" / "00.png").write_bytes(file.getvalue())
    (class_tree / "bee" / "07.jpg").write_bytes(b"not a picture")
    cut = jpeg(3, 64, 48)
    (class_tree / "bee" / "08.jpg").write_bytes(cut[: len(cut) // 2] + b"\xff\xd9")
    both_ways(class_tree, tmp_path, contents, monkeypatch)
    assert {True, False} <= set(packed_runs[: len(packed_runs) // 2])


def test_a_picture_larger_than_a_run_is_stored(
    class_tree: Path,
    tmp_path: Path,
    contents: Contents,
    monkeypatch: pytest.MonkeyPatch,
    jpeg: Jpeg,
) -> None:
    (class_tree / "ant" / "huge.jpg").write_bytes(jpeg(0, 1600, 1600) + bytes(RUN_BYTES))
    both_ways(class_tree, tmp_path, contents, monkeypatch)


@pytest.mark.parametrize("jobs", [1, 2, 20])
def test_long_runs_with_rejects_between_them(
    class_tree: Path,
    tmp_path: Path,
    contents: Contents,
    monkeypatch: pytest.MonkeyPatch,
    packed_runs: list[bool],
    jpeg: Jpeg,
    jobs: int,
) -> None:
    for number in range(40):
        data = jpeg(number) + bytes(900_000 + 1001 * number)
        (class_tree / "cat" / f"large-{number}.jpg").write_bytes(data)
    for number in range(2):
        (class_tree / "cat" / f"bad-{number}.jpg").write_bytes(b"no picture" * 100)
    options = {"decode_check": False, "jobs": jobs}
    convert(class_tree, tmp_path / "packed", shard_bytes="30mb", **options)
    assert packed_runs.count(False) in (1, 2)
    assert packed_runs.count(True) >= 3
    monkeypatch.setattr(packed_files, "lib", None)
    convert(class_tree, tmp_path / "singly", shard_bytes="30mb", **options)
    assert contents(tmp_path / "packed") == contents(tmp_path / "singly")


def test_a_file_is_read_as_it_was_listed_or_not_at_all(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(name.encode() * 100)
    lengths = np.array([100, 100, 100])
    root = f"{tmp_path}/"
    memory = RunMemory(1024)
    memory.take(1000)[:] = b"x" * 1000
    memory.clear()
    files = read_packed_files(root, ["a", "b", "c"], lengths, memory)
    assert files is not None
    assert files.offsets.tolist() == [0, 128, 256, 384]
    assert bytes(files.data) == b"".join(name * 100 + bytes(28) for name in (b"a", b"b", b"c"))

    def read_anew() -> Any:
        memory.clear()
        return read_packed_files(root, ["a", "b", "c"], lengths, memory)

    (tmp_path / "b").write_bytes(b"b" * 101)
    assert read_anew() is None
    (tmp_path / "b").unlink()
    assert read_anew() is None
    os.mkfifo(tmp_path / "b")
    assert read_anew() is None
    assert read_packed_files(root, ["a"], np.array([100]), RunMemory(100)) is None


def test_memory_is_aligned_and_comes_back() -> None:
    memory = RunMemory(1000)
    first, second = memory.take(10), memory.take(900)
    second[:] = b"y" * 900
    address = np.frombuffer(second, np.uint8).ctypes.data
    assert address - np.frombuffer(first, np.uint8).ctypes.data == RUN_ALIGN
    beyond = memory.take(900)
    beyond[:] = b"z" * 900
    assert bytes(second) == b"y" * 900
    pool = MemoryPool(1000)
    memory = pool.borrow()
    assert pool.borrow() is not memory
    memory.take(1000)
    pool.give_back(memory)
    assert pool.borrow() is memory
    assert memory.take_packed(np.array([900, 0])) is not None

"""Parquet and Arrow files of many groups: the rows, and what is read of the files for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from streamloader.convert import convert, describe, read_samples
from streamloader.convert.sources.arrow_messages import NotArrowError, schema_and_batches
from streamloader.convert.sources.places import open_place
from streamloader.convert.sources.tables import TableSource, _HeldGroups
from streamloader.errors import ConfigError

arrow = pytest.importorskip("pyarrow")

ROWS = 60
Jpeg = Callable[..., bytes]


def table(jpeg: Jpeg) -> Any:
    return arrow.table(
        {
            "image": arrow.array([jpeg(n) for n in range(ROWS)]),
            "kind": arrow.array(["p", "q", "r"] * (ROWS // 3)).dictionary_encode(),
            "n": arrow.array(range(ROWS), arrow.int32()),
        }
    )


def write_arrow(path: Path, rows: Any, kind: str, compression: str | None) -> None:
    new = arrow.ipc.new_file if kind == "file" else arrow.ipc.new_stream
    options = arrow.ipc.IpcWriteOptions(compression=compression)
    with new(str(path), rows.schema, options=options) as writer:
        writer.write_table(rows, max_chunksize=7)


def stored(dest: Path) -> list[tuple[int, str, bytes]]:
    count = describe(dest).manifest.num_samples
    found = [sample.record for sample in read_samples(dest, range(count))]
    return sorted((int(r["n"]), r["kind"], r["image"]) for r in found)


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("kind", ["file", "stream"])
def test_every_batch_of_an_arrow_file_is_found(
    tmp_path: Path, jpeg: Jpeg, kind: str, compression: str | None
) -> None:
    rows = table(jpeg)
    write_arrow(tmp_path / "a.arrow", rows, kind, compression)
    report = convert(tmp_path / "a.arrow", tmp_path / "out", shard_bytes="8kb")
    assert report.samples == ROWS
    wanted = zip(*(rows.column(name).to_pylist() for name in ("n", "kind", "image")), strict=True)
    assert stored(tmp_path / "out") == list(wanted)


def test_rows_of_parquet_groups_are_found(tmp_path: Path, jpeg: Jpeg) -> None:
    rows = table(jpeg)
    arrow.parquet.write_table(rows, tmp_path / "a.parquet", row_group_size=7)
    convert(tmp_path / "a.parquet", tmp_path / "out", shard_bytes="8kb")
    wanted = zip(*(rows.column(name).to_pylist() for name in ("n", "kind", "image")), strict=True)
    assert stored(tmp_path / "out") == list(wanted)


def test_batches_are_found_without_reading_them(tmp_path: Path) -> None:
    rows = arrow.table({"a": arrow.array([bytes(1 << 20)] * 24)})
    path = tmp_path / "a.arrow"
    with arrow.ipc.new_file(str(path), rows.schema) as writer:
        writer.write_table(rows, max_chunksize=8)
    data = path.read_bytes()
    read: list[int] = []

    def read_at(offset: int, length: int) -> bytes:
        read.append(length)
        return data[offset : offset + length]

    _, batches = schema_and_batches(read_at, len(data))
    assert [batch.rows for batch in batches] == [8, 8, 8]
    assert sum(read) < len(data) / 20


@pytest.mark.parametrize("cut", [1, 3, 9, 100, 700])
def test_a_stream_that_is_cut_short_is_refused(cut: int) -> None:
    sink = arrow.BufferOutputStream()
    rows = arrow.table({"a": list(range(1000))})
    with arrow.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    end_of_stream = 8
    data = sink.getvalue().to_pybytes()[: -end_of_stream - cut]
    with pytest.raises(NotArrowError, match="cut short"):
        schema_and_batches(lambda offset, length: data[offset : offset + length], len(data))


def test_a_group_is_read_once_however_many_threads_need_it(tmp_path: Path, jpeg: Jpeg) -> None:
    arrow.parquet.write_table(table(jpeg), tmp_path / "a.parquet", row_group_size=20)
    source = TableSource.scan(open_place(str(tmp_path / "a.parquet")), "parquet")
    read_groups: list[int] = []

    class Counting:
        def rows(self, group: Any, columns: Sequence[str]) -> Any:
            read_groups.append(group.number)
            return group.number

    held = _HeldGroups(Counting(), [])  # type: ignore[arg-type]  # stands for the files
    groups = source.groups[0]
    assert [held.get(groups[n]) for n in (0, 1, 2, 0, 1, 2)] == [0, 1, 2, 0, 1, 2]
    assert read_groups == [0, 1, 2]


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_file_that_changes_after_the_listing_ends_the_conversion(
    tmp_path: Path, jpeg: Jpeg, kind: str
) -> None:
    path = tmp_path / f"a.{kind}"
    if kind == "parquet":
        arrow.parquet.write_table(table(jpeg), path)
    else:
        write_arrow(path, table(jpeg), "stream", None)
    source = TableSource.scan(open_place(str(path)), kind)
    path.write_bytes(path.read_bytes() + b"more")
    with source.reading() as read, pytest.raises(ConfigError, match="changed during"):
        list(read(0, [0]))

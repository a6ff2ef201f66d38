"""Each kind of source: what becomes of it, and what is refused or left out with a reason."""

from __future__ import annotations

import io
import json
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage_backends import StorageError, open_store
from streamloader.cli._convert_options import ENGINES as ENGINES_IN_HELP
from streamloader.cli._convert_options import SOURCE_KINDS as KINDS_IN_HELP
from streamloader.convert import (
    SOURCE_KINDS,
    DatasetWriter,
    convert,
    describe,
    read_samples,
    verify,
)
from streamloader.convert.engines import ENGINES
from streamloader.convert.sources.tar_index import WINDOW_BYTES, read_members
from streamloader.errors import ConfigError
from streamloader.fetch import LoopThread

Jpeg = Callable[..., bytes]
Upload = Callable[..., None]
S3_KEYS = json.loads((Path(__file__).parents[1] / "hostile" / "s3_keys.json").read_text("utf-8"))


def records(dest: Path, **options: Any) -> dict[str, dict[str, Any]]:
    count = describe(dest).manifest.num_samples
    return {str(s.key): s.record for s in read_samples(dest, range(count), **options)}


def test_the_kinds_and_engines_in_the_help_are_those_there_are() -> None:
    assert KINDS_IN_HELP == SOURCE_KINDS
    assert ENGINES_IN_HELP == ENGINES


# Folders in a bucket


@pytest.mark.s3
def test_class_folders_in_a_bucket_give_what_they_give_on_disk(
    class_tree: Path, tmp_path: Path, s3_bucket: Any, upload: Upload
) -> None:
    (class_tree / "ant" / "readme.txt").write_text("no picture")
    (class_tree / "ant" / ".hidden.jpg").write_bytes(b"x")
    (class_tree / "bee" / "unnamed").write_bytes((class_tree / "bee" / "00.jpg").read_bytes())
    upload(class_tree, f"{s3_bucket.url}/pictures", s3_bucket.storage_options)
    local = convert(class_tree, tmp_path / "local", shard_bytes="8kb")
    remote = convert(
        f"{s3_bucket.url}/pictures",
        tmp_path / "remote",
        shard_bytes="8kb",
        source_options=s3_bucket.storage_options,
    )
    assert remote.fingerprint == local.fingerprint
    assert remote.rejected == local.rejected


@pytest.mark.s3
def test_every_key_that_the_server_stores_is_kept(
    tmp_path: Path, s3_bucket: Any, jpeg: Jpeg
) -> None:
    content = jpeg(1)
    stored: list[str] = []

    async def put_all() -> set[str]:
        async with open_store(s3_bucket.url, **s3_bucket.storage_options) as store:
            for entry in S3_KEYS:
                marker = "no sample" in entry["why"]
                try:
                    await store.put(entry["key"], b"" if marker else content)
                    found = [info.key async for info in store.list() if info.size or marker]
                except StorageError:
                    continue
                if entry["key"] in found and not marker:
                    stored.append(entry["key"])
            return {info.key async for info in store.list() if info.size}

    with LoopThread("put-loop") as loop:
        listed = loop.run(put_all())
    # SeaweedFS keeps seven of the eleven as they are, one of them the marker of a folder: it merges
    # slashes and dots, so that others come back under another key, and has no name of 1,000 bytes.
    assert len(stored) >= 6
    assert set(stored) <= listed
    report = convert(
        s3_bucket.url,
        tmp_path / "out",
        source_kind="folder",
        source_options=s3_bucket.storage_options,
    )
    assert report.splits == {"train": len(listed)}
    samples = read_samples(tmp_path / "out", range(report.samples), split="train")
    assert {sample.key for sample in samples} == listed
    assert [reject for reject in report.rejected if reject.kind.value == "bad"] == []


@pytest.mark.s3
def test_an_object_replaced_after_the_listing_is_rejected(
    class_tree: Path,
    tmp_path: Path,
    s3_bucket: Any,
    upload: Upload,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from streamloader.convert import conversion

    upload(class_tree, f"{s3_bucket.url}/p", s3_bucket.storage_options)
    real_plan = conversion.plan_shards

    def plan_then_replace(*args: Any) -> Any:
        plan = real_plan(*args)
        victim = tmp_path / "victim"
        victim.mkdir()
        (victim / "00.jpg").write_bytes((class_tree / "ant" / "01.jpg").read_bytes())
        upload(victim, f"{s3_bucket.url}/p/ant", s3_bucket.storage_options)
        return plan

    monkeypatch.setattr(conversion, "plan_shards", plan_then_replace)
    report = convert(
        f"{s3_bucket.url}/p", tmp_path / "out", source_options=s3_bucket.storage_options
    )
    (rejected,) = report.rejected
    assert rejected.path == "ant/00.jpg"
    assert "another object" in rejected.reason


# Tables of labels


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_a_table_gives_fields_to_the_pictures(
    class_tree: Path, tmp_path: Path, ending: str
) -> None:
    rows = [
        {
            "file_name": f"ant/{n:02d}.jpg",
            "caption": f"no. {n}, a",
            "label": "xy"[n % 2],
            "x": n / 2,
        }
        for n in range(20)
    ]
    rows[3]["file_name"] = "ant/gone.jpg"
    table = tmp_path / f"labels.{ending}"
    if ending == "csv":
        lines = ["file_name,caption,label,x"]
        lines += [f'{r["file_name"]},"{r["caption"]}",{r["label"]},{r["x"]}' for r in rows]
        table.write_text("\n".join(lines))
    elif ending == "jsonl":
        table.write_text("\n".join(map(json.dumps, rows)))
    else:
        arrow = pytest.importorskip("pyarrow")
        import pyarrow.parquet

        pyarrow.parquet.write_table(arrow.Table.from_pylist(rows), table)
    report = convert(class_tree, tmp_path / "out", labels=table)
    assert report.classes == ("x", "y")
    stored = records(tmp_path / "out")
    assert len(stored) == 19
    assert stored["ant/07.jpg"] == {
        "image": (class_tree / "ant" / "07.jpg").read_bytes(),
        "caption": "no. 7, a",
        "label": 1,
        "x": 3.5,
    }
    reasons = {reject.path: reject.reason for reject in report.rejected}
    assert "no row" in reasons["bee/00.jpg"]
    assert "no picture" in reasons["ant/gone.jpg"]
    assert len(reasons) == 42


@pytest.mark.s3
@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_a_table_in_a_bucket_gives_what_it_gives_on_disk(
    class_tree: Path, tmp_path: Path, s3_bucket: Any, upload: Upload, ending: str
) -> None:
    table = tmp_path / "table" / f"labels.{ending}"
    table.parent.mkdir()
    if ending == "csv":
        table.write_text("path,caption\nant/00.jpg,h\u00e9\nbee/01.jpg,b\n")
    elif ending == "jsonl":
        rows = [{"path": "ant/00.jpg", "box": [1, 2]}, {"path": "bee/01.jpg", "box": []}]
        table.write_text("\n".join(map(json.dumps, rows)))
    else:
        arrow = pytest.importorskip("pyarrow")
        import pyarrow.parquet

        pyarrow.parquet.write_table(arrow.table({"path": ["ant/00.jpg"], "n": [3]}), table)
    local = convert(class_tree, tmp_path / "local", labels=table)
    storage = s3_bucket.storage_options
    upload(table.parent, f"{s3_bucket.url}/tables", storage)
    upload(class_tree, f"{s3_bucket.url}/p", storage)
    remote = convert(
        f"{s3_bucket.url}/p",
        tmp_path / "remote",
        labels=f"{s3_bucket.url}/tables/{table.name}",
        source_options=storage,
    )
    assert remote.fingerprint == local.fingerprint
    with pytest.raises(ConfigError, match="is not there"):
        convert(
            f"{s3_bucket.url}/p",
            tmp_path / "none",
            labels=f"{s3_bucket.url}/tables/no.csv",
            source_options=storage,
        )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "no column that names the pictures"),
        ("path,b\nant/00.jpg\n", "row 1"),
        ("path,b\nx.jpg,1\n", "no picture of"),
        ("path,image.\n", "no rows"),
    ],
)
def test_a_table_that_fits_nothing_is_refused(
    class_tree: Path, tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(ConfigError, match=message):
        convert(class_tree, tmp_path / "out", labels=tmp_path / "t.csv")
    assert not (tmp_path / "out").exists()


def test_numbers_that_are_names_keep_their_zeros(class_tree: Path, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("path,id\nant/00.jpg,007\nant/01.jpg,12\n")
    convert(class_tree, tmp_path / "out", labels=tmp_path / "t.csv")
    assert records(tmp_path / "out")["ant/00.jpg"]["id"] == "007"


def test_a_table_that_is_not_asked_for_is_not_passed_over_in_silence(
    class_tree: Path, tmp_path: Path
) -> None:
    (class_tree / "metadata.csv").write_text("file_name,text\nant/00.jpg,x\n")
    report = convert(class_tree, tmp_path / "out")
    assert any("metadata.csv is not used" in warning for warning in report.warnings)


# WebDataset


def write_tar(path: Path, members: dict[str, bytes], **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", **options) as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def test_pickles_are_refused_unread(tmp_path: Path, jpeg: Jpeg) -> None:
    write_tar(tmp_path / "s" / "a.tar", {"0.jpg": jpeg(0), "0.pkl": b"cos\nsystem\n"})
    with pytest.raises(ConfigError, match="pickles, which run whatever program"):
        convert(tmp_path / "s", tmp_path / "out")


def test_samples_without_a_field_and_fields_of_few_are_left_out(tmp_path: Path, jpeg: Jpeg) -> None:
    members = {}
    for number in range(5):
        members[f"{number}.jpg"] = jpeg(number)
        if number == 0:
            members["0.rare"] = b"x"
        if number != 3:
            members[f"{number}.cls"] = b"7" if number != 4 else b"seven"
    write_tar(tmp_path / "s.tar", members)
    report = convert(tmp_path / "s.tar", tmp_path / "out")
    assert report.samples == 3
    reasons = {reject.path: reject.reason for reject in report.rejected}
    assert reasons.keys() == {"3", "4"}
    assert "label" in reasons["3"]
    assert "no whole number" in reasons["4"]
    assert any("rare" in warning for warning in report.warnings)


@pytest.mark.parametrize(
    "tar_format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
)
def test_long_names_of_every_tar_format(tmp_path: Path, jpeg: Jpeg, tar_format: int) -> None:
    folder = "f" * 90 if tar_format == tarfile.USTAR_FORMAT else "f" * 150 + "/\u732b" * 60
    write_tar(tmp_path / "s.tar", {f"{folder}/a.jpg": jpeg(0), "b.jpg": jpeg(1)}, format=tar_format)
    convert(tmp_path / "s.tar", tmp_path / "out")
    assert set(records(tmp_path / "out")) == {f"{folder}/a", "b"}


def test_the_index_reads_headers_and_not_the_content(tmp_path: Path) -> None:
    write_tar(tmp_path / "s.tar", {f"{n}.bin": bytes(4 * WINDOW_BYTES) for n in range(8)})
    data = (tmp_path / "s.tar").read_bytes()
    got = 0

    def read(offset: int, length: int) -> bytes:
        nonlocal got
        got += length
        return data[offset : offset + length]

    assert [member.name for member in read_members(read, len(data), "s.tar")] == [
        f"{n}.bin" for n in range(8)
    ]
    assert got < len(data) / 3


@pytest.mark.parametrize("damage", ["cut", "header"])
def test_a_damaged_tar_is_refused_by_name(tmp_path: Path, jpeg: Jpeg, damage: str) -> None:
    write_tar(tmp_path / "s.tar", {"0.jpg": jpeg(0), "1.jpg": jpeg(1)})
    data = bytearray((tmp_path / "s.tar").read_bytes())
    if damage == "cut":
        data = data[:600]
    else:
        data[3] ^= 1
    (tmp_path / "s.tar").write_bytes(data)
    with pytest.raises(ConfigError, match=r"s\.tar is"):
        convert(tmp_path / "s.tar", tmp_path / "out")


def test_a_compressed_tar_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "s.tar.gz").write_bytes(b"\x1f\x8b")
    with pytest.raises(ConfigError, match="unpack it"):
        convert(tmp_path / "s.tar.gz", tmp_path / "out")


def test_arrays_of_objects_are_refused(tmp_path: Path, jpeg: Jpeg) -> None:
    file = io.BytesIO()
    np.save(file, np.array([{}], dtype=object), allow_pickle=True)
    write_tar(tmp_path / "s.tar", {"0.jpg": jpeg(0), "0.npy": file.getvalue()})
    with pytest.raises(ConfigError, match="no number that can be stored"):
        convert(tmp_path / "s.tar", tmp_path / "out")


def npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def test_an_archive_of_arrays_becomes_a_field_each(tmp_path: Path) -> None:
    members = {
        f"{n:03d}.pose.npz": npz(box=np.full((2, 2), n, np.float32), ids=np.arange(n + 1))
        for n in range(9)
    }
    members["009.pose.npz"] = npz(box=np.zeros((2, 2), np.float32))
    members["010.pose.npz"] = npz(box=np.zeros((2, 3), np.float32), ids=np.arange(1))
    members["011.pose.npz"] = members["000.pose.npz"][:-30]
    write_tar(tmp_path / "s.tar", members)
    report = convert(tmp_path / "s.tar", tmp_path / "out")
    assert report.samples == 9
    assert sorted(reject.path for reject in report.rejected) == ["009", "010", "011"]
    stored = records(tmp_path / "out")["004"]
    np.testing.assert_array_equal(stored["pose.npz.box"], np.full((2, 2), 4, np.float32))
    np.testing.assert_array_equal(stored["pose.npz.ids"], np.arange(5))


@pytest.mark.parametrize("kind", ["names", "shapes", "objects"])
def test_archives_that_are_no_fields_stay_bytes(tmp_path: Path, kind: str) -> None:
    archives = {
        "names": [npz(a=np.arange(2)), npz(b=np.arange(2))],
        "shapes": [npz(a=np.zeros((2, 2))), npz(a=np.zeros((3, 2)))],
        "objects": [npz(a=np.array([None, "x"], dtype=object))] * 2,
    }[kind]
    write_tar(tmp_path / "s.tar", {f"{n}.npz": data for n, data in enumerate(archives)})
    convert(tmp_path / "s.tar", tmp_path / "out")
    assert [records(tmp_path / "out")[str(n)]["npz"] for n in range(2)] == archives


def test_tars_in_train_and_val_are_splits(tmp_path: Path, jpeg: Jpeg) -> None:
    for split, count in (("train", 3), ("val", 2)):
        members = {f"{n}.jpg": jpeg(n) for n in range(count)}
        write_tar(tmp_path / "s" / split / "0.tar", members)
    assert convert(tmp_path / "s", tmp_path / "out").splits == {"train": 3, "val": 2}


# MDS


def mds_shard(columns: dict[str, str], samples: list[bytes]) -> tuple[bytes, dict[str, Any]]:
    head = 4 * (len(samples) + 2)
    offsets = np.cumsum([head, *map(len, samples)], dtype=np.uint32)
    data = struct.pack("<I", len(samples)) + offsets.tobytes() + b"".join(samples)
    entry = {
        "column_names": list(columns),
        "column_encodings": list(columns.values()),
        "column_sizes": [None for _ in columns],
        "compression": None,
        "format": "mds",
        "raw_data": {"basename": "shard.00000.mds", "bytes": len(data), "hashes": {}},
        "samples": len(samples),
        "version": 2,
        "zip_data": None,
    }
    return data, entry


def write_mds(folder: Path, columns: dict[str, str], samples: list[bytes]) -> None:
    folder.mkdir()
    data, entry = mds_shard(columns, samples)
    (folder / "shard.00000.mds").write_bytes(data)
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": [entry]}))


@pytest.mark.parametrize(
    ("encoding", "message"),
    [
        ("pkl", "pickles"),
        ("ndarray", "type differs"),
        ("new", "encoding"),
    ],
)
def test_columns_that_are_not_read_are_refused(tmp_path: Path, encoding: str, message: str) -> None:
    write_mds(tmp_path / "s", {"a": encoding}, [b"\1\0\0\0x"])
    with pytest.raises(ConfigError, match=message):
        convert(tmp_path / "s", tmp_path / "out")


def test_a_sample_whose_sizes_do_not_add_up_is_rejected(tmp_path: Path) -> None:
    write_mds(tmp_path / "s", {"a": "str"}, [b"\1\0\0\0x", b"\xff\0\0\0x", b"\1\0\0\0\xff"])
    report = convert(tmp_path / "s", tmp_path / "out")
    assert report.samples == 1
    assert [reject.path for reject in report.rejected] == [
        "shard.00000.mds/1",
        "shard.00000.mds/2",
    ]


def mds_list(*pictures: bytes) -> bytes:
    sizes = np.array(list(map(len, pictures)), "<u4").tobytes()
    data = struct.pack("<II", 0, len(pictures)) + sizes + b"".join(pictures)
    return struct.pack("<I", len(data)) + data


def test_a_list_of_another_length_is_rejected(tmp_path: Path, jpeg: Jpeg) -> None:
    samples = [mds_list(jpeg(n), jpeg(n + 50)) for n in range(9)]
    samples.append(mds_list(jpeg(0)))
    samples.append(mds_list(jpeg(0), jpeg(1))[:-3] + b"\0\0\0")
    write_mds(tmp_path / "s", {"a": "list[jpeg]"}, samples)
    report = convert(tmp_path / "s", tmp_path / "out")
    assert report.samples == 9
    reasons = {reject.path: reject.reason for reject in report.rejected}
    assert reasons["shard.00000.mds/9"] == "a: 1 pictures, others have 2"
    assert "shard.00000.mds/10" in reasons
    assert records(tmp_path / "out")["shard.00000.mds/4"] == {"a_0": jpeg(4), "a_1": jpeg(54)}


@pytest.mark.parametrize("counts", [(1, 2), (0, 0)])
def test_lists_that_are_no_fields_are_refused(
    tmp_path: Path, jpeg: Jpeg, counts: tuple[int, int]
) -> None:
    samples = [mds_list(*(jpeg(n) for n in range(count))) for count in counts]
    write_mds(tmp_path / "s", {"a": "list[jpeg]"}, samples)
    with pytest.raises(ConfigError, match="the same number"):
        convert(tmp_path / "s", tmp_path / "out")


@pytest.mark.parametrize("damage", ["missing", "cut", "offsets", "index"])
def test_a_damaged_mds_data_set_is_refused(tmp_path: Path, damage: str) -> None:
    write_mds(tmp_path / "s", {"a": "str"}, [b"\1\0\0\0x"])
    shard = tmp_path / "s" / "shard.00000.mds"
    if damage == "missing":
        shard.unlink()
    elif damage == "cut":
        shard.write_bytes(shard.read_bytes()[:-1])
    elif damage == "offsets":
        data = bytearray(shard.read_bytes())
        data[4] = 255
        shard.write_bytes(data)
    else:
        (tmp_path / "s" / "index.json").write_text('{"version": 2, "shards": [{}]}')
    with pytest.raises(ConfigError):
        convert(tmp_path / "s", tmp_path / "out")
    assert not (tmp_path / "out").exists()


# Parquet


def test_rows_with_nulls_are_rejected_and_every_type_has_a_field(
    tmp_path: Path, jpeg: Jpeg
) -> None:
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    rows = 30
    table = arrow.table(
        {
            "image": arrow.array([None if n == 4 else jpeg(n) for n in range(rows)]),
            "left": arrow.array([{"bytes": jpeg(n), "path": "x"} for n in range(rows)]),
            "n": arrow.array(range(rows), arrow.uint8()),
            "yes": arrow.array([n % 2 == 0 for n in range(rows)]),
            "box": arrow.array([[n, 1] for n in range(rows)], arrow.list_(arrow.int16(), 2)),
            "tokens": arrow.array(
                [list(range(n)) for n in range(rows)], arrow.list_(arrow.int32())
            ),
            "nested": arrow.array([{"a": [n], "b": None} for n in range(rows)]),
            "kind": arrow.array(["p", "q", None] * 10).dictionary_encode(),
        }
    )
    (tmp_path / "s").mkdir()
    pyarrow.parquet.write_table(table, tmp_path / "s" / "a.parquet", row_group_size=7)
    report = convert(tmp_path / "s", tmp_path / "out", shard_bytes="4kb")
    assert report.shards > 1
    stored = records(tmp_path / "out")
    assert len(stored) == 30 - 11
    assert {r.path for r in report.rejected} == {"a.parquet/4"} | {
        f"a.parquet/{n}" for n in range(2, 30, 3)
    }
    for key, record in stored.items():
        number = int(key.split("/")[1])
        assert record["image"] == record["left"] == jpeg(number)
        assert (record["n"], record["yes"]) == (number, number % 2 == 0)
        assert record["box"].tolist() == [number, 1]
        assert record["tokens"].tolist() == list(range(number))
        assert record["nested"] == {"a": [number], "b": None}
        assert record["kind"] == "pq"[number % 3]
    assert verify(tmp_path / "out").ok
    again = convert(tmp_path / "s", tmp_path / "again", shard_bytes="4kb", jobs=1)
    assert again.fingerprint == report.fingerprint


# The original DTS


def dts_v3_header(kind: bytes, training: int, samples: int, blocks: int, **sizes: int) -> bytes:
    return struct.pack(
        "<4sBBBB8sIIII4sIII4sIIIIIQIQIIIIIfffffffI",
        *(b".DTS", 3, 0, 0, 0, kind.rjust(8), training, 0, 0, 10, b"NHWC"),
        *(sizes.get("width", 0), sizes.get("height", 0), sizes.get("channels", 3), b" RGB"),
        *(samples, 1, 0, blocks, blocks, 0, 0, sizes.get("block", 0), 0, 0, 64, 0, 0),
        *(0.0,) * 7,
        0,
    )


def dts_v3_blocks(groups: list[list[tuple[bytes, int]]], block_bytes: int) -> bytes:
    count = sum(map(len, groups))
    header = dts_v3_header(b"IMAGENET", 1, count, len(groups), block=block_bytes)
    blocks = [header.ljust(block_bytes, b"\0")]
    for number, group in enumerate(groups):
        at, offsets, body = 4096, [], b""
        for data, _ in group:
            offsets.append(at + len(body))
            body += data + bytes(-len(data) % 64)
        index = struct.pack("<4sII", b"LV0B", number, len(group))
        index += np.array(offsets, "<u4").tobytes()
        index += np.array([len(data) for data, _ in group], "<u4").tobytes()
        index += np.array([label for _, label in group], "<u4").tobytes()
        blocks.append((index.ljust(4096, b"\0") + body).ljust(block_bytes, b"\0"))
    return b"".join(blocks)


def test_blocks_of_pictures_of_the_original(tmp_path: Path, jpeg: Jpeg) -> None:
    groups = [[(jpeg(10 * g + n), n) for n in range(3 + g)] for g in range(2)]
    (tmp_path / "a.dts").write_bytes(dts_v3_blocks(groups, 16384))
    convert(tmp_path / "a.dts", tmp_path / "out")
    stored = records(tmp_path / "out")
    wanted = [pair for group in groups for pair in group]
    assert [
        (stored[f"a.dts/{n}"]["image"], stored[f"a.dts/{n}"]["label"]) for n in range(7)
    ] == wanted


def test_an_offset_that_wraps_round_in_32_bits_is_refused(tmp_path: Path, jpeg: Jpeg) -> None:
    data = bytearray(dts_v3_blocks([[(jpeg(0), 0)]], 16384))
    struct.pack_into("<I", data, 16384 + 16, 0xFFFFFFF8)
    (tmp_path / "a.dts").write_bytes(data)
    with pytest.raises(ConfigError, match="not inside"):
        convert(tmp_path / "a.dts", tmp_path / "out")


def test_files_of_pixels_of_the_original_become_splits(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (5, 4, 6, 3), dtype=np.uint8)
    for name, training in (("cifar10_train", 1), ("cifar10_test", 0)):
        header = dts_v3_header(b"CIFAR10", training, 5, 0, width=6, height=4, channels=3)
        content = header.ljust(256, b"\0") + bytes(range(5)) + pixels.tobytes()
        (tmp_path / "s" / f"{name}.dts").write_bytes(content)
    report = convert(tmp_path / "s", tmp_path / "out", shuffle_seed=None)
    assert report.splits == {"train": 5, "val": 5}
    for number, sample in enumerate(read_samples(tmp_path / "out", range(5), split="val")):
        np.testing.assert_array_equal(sample.record["image"], pixels[number])
        assert sample.record["label"] == number


def test_a_shard_of_ours_is_not_taken_for_the_original(class_tree: Path, tmp_path: Path) -> None:
    convert(class_tree, tmp_path / "set")
    with pytest.raises(ConfigError, match="shard of ours"):
        convert(tmp_path / "set" / "00000.dts", tmp_path / "out")


# Data sets of ours


def test_a_data_set_is_cut_and_shuffled_anew(class_tree: Path, tmp_path: Path) -> None:
    convert(class_tree, tmp_path / "a", shard_bytes="8kb")
    report = convert(tmp_path / "a", tmp_path / "b", shard_bytes="1mib", shuffle_seed=5)
    assert report.shards == 1
    assert report.classes == ("ant", "bee", "cat")
    assert records(tmp_path / "b") == records(tmp_path / "a")
    assert describe(tmp_path / "b").manifest.export_seed == 5


def test_classes_and_keys_are_chosen(class_tree: Path, tmp_path: Path) -> None:
    convert(class_tree, tmp_path / "a")
    convert(tmp_path / "a", tmp_path / "b", keep_classes=["cat", "ant"])
    assert {key[:3] for key in records(tmp_path / "b")} == {"ant", "cat"}
    assert {r["label"] for r in records(tmp_path / "b").values()} == {0, 2}
    convert(class_tree, tmp_path / "c", keep_keys=["ant/00.jpg", "cat/19.jpg"])
    assert set(records(tmp_path / "c")) == {"ant/00.jpg", "cat/19.jpg"}
    for choice in ({"keep_classes": ["dog"]}, {"keep_keys": ["no"]}, {"split": "val"}):
        with pytest.raises(ConfigError, match=r"dog|'no'|'val'"):
            convert(class_tree, tmp_path / "d", **choice)


def test_one_split_of_a_data_set_is_chosen(class_tree: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "train").mkdir(parents=True)
    (class_tree / "ant").rename(root / "train" / "ant")
    (root / "val").mkdir()
    (class_tree / "bee").rename(root / "val" / "bee")
    convert(root, tmp_path / "a")
    report = convert(tmp_path / "a", tmp_path / "b", split="val")
    assert (report.samples, report.splits) == (20, {})
    assert {r["label"] for r in records(tmp_path / "b").values()} == {1}


def test_data_sets_are_joined_by_the_names_of_their_classes(
    class_tree: Path, tmp_path: Path
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for folder, classes in ((one, ("bee", "cat")), (two, ("ant", "bee"))):
        folder.mkdir()
        for name in classes:
            (folder / name).mkdir()
            for path in (class_tree / name).iterdir():
                (folder / name / path.name).write_bytes(path.read_bytes())
    convert(one, tmp_path / "a")
    convert(two, tmp_path / "b")
    report = convert([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    assert report.classes == ("bee", "cat", "ant")
    stored = records(tmp_path / "out")
    assert len(stored) == 80
    for key, record in stored.items():
        assert report.classes[record["label"]] == key.split("/")[1]


def test_sources_of_other_fields_are_not_joined(class_tree: Path, tmp_path: Path) -> None:
    with DatasetWriter(tmp_path / "a", {"text": "str"}) as writer:
        writer.write({"text": "x"})
    with pytest.raises(ConfigError, match="same fields"):
        convert([class_tree, tmp_path / "a"], tmp_path / "out")


def test_every_type_of_field_survives(tmp_path: Path, jpeg: Jpeg) -> None:
    fields = {
        "left": "picture",
        "right": "picture",
        "raw": "bytes",
        "text": "str",
        "extra": "json",
        "tokens": ("int32", (-1,)),
        "matrix": ("float32", (8, 8)),
        "half": ("bfloat16", (3,)),
    }
    rng = np.random.default_rng(0)
    with DatasetWriter(tmp_path / "a", fields) as writer:
        for number in range(10):
            writer.write(
                {
                    "left": jpeg(number),
                    "right": jpeg(number + 100),
                    "raw": bytes(number),
                    "text": "\u732b" * number,
                    "extra": {"n": [number, None]},
                    "tokens": np.arange(number, dtype=np.int32),
                    "matrix": rng.random((8, 8), dtype=np.float32),
                    "half": np.array([number, 0.5, -1], dtype=np.float32),
                }
            )
    convert(tmp_path / "a", tmp_path / "b", shuffle_seed=None)
    pairs = zip(
        read_samples(tmp_path / "a", range(10)),
        read_samples(tmp_path / "b", range(10)),
        strict=True,
    )
    for before, after in pairs:
        for name in fields:
            np.testing.assert_array_equal(before.record[name], after.record[name])


def test_a_damaged_record_is_rejected_by_its_key(class_tree: Path, tmp_path: Path) -> None:
    convert(class_tree, tmp_path / "a")
    shard = tmp_path / "a" / "00000.dts"
    data = bytearray(shard.read_bytes())
    data[300] ^= 1
    shard.write_bytes(data)
    report = convert(tmp_path / "a", tmp_path / "b")
    (rejected,) = report.rejected
    assert report.samples == 59
    assert rejected.path == read_samples(tmp_path / "a", [1])[0].key or "image" in rejected.reason

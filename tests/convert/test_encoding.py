"""Codecs, levels and hashes of a data set: what is stored, and what is refused before it is."""

from __future__ import annotations

import builtins
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from streamloader.cli._convert import HASHES
from streamloader.convert import DatasetWriter, convert, describe, read_samples, verify
from streamloader.dts import DEFAULT_HASH, HASH_NAMES, Field, open_shard
from streamloader.errors import ConfigError

pytest.importorskip("zstandard")

RunCli = Callable[..., Any]
TEXTS = [f"caption {number}: " + "of the same words " * 20 for number in range(30)]


@pytest.fixture
def mixed_tree(tmp_path: Path, jpeg: Callable[..., bytes]) -> Path:
    """A class of JPEG and one of BMP, which zstd halves."""
    root = tmp_path / "mixed"
    for name in ("bmp", "jpg"):
        (root / name).mkdir(parents=True)
    for number in range(6):
        pixels = np.random.default_rng(number).integers(0, 8, (120, 100, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / "bmp" / f"{number}.bmp")
        (root / "jpg" / f"{number}.jpg").write_bytes(jpeg(number, 200, 150))
    return root


def files(tree: Path) -> dict[str, bytes]:
    return {str(p.relative_to(tree)): p.read_bytes() for p in tree.rglob("*") if p.is_file()}


def stored(dataset: Path) -> dict[str, bytes]:
    samples = read_samples(dataset, range(describe(dataset).manifest.num_samples))
    return {sample.key or "": bytes(sample.record["image"]) for sample in samples}


def lengths(dataset: Path, field: str) -> dict[str, tuple[int, int]]:
    """Stored and raw bytes of each sample, by key."""
    found = {}
    for path in sorted(dataset.glob("*.dts")):
        content = path.read_bytes()
        index = open_shard(lambda at, n, whole=content: whole[at : at + n], len(content), path.name)
        pairs = zip(index.lengths(field).tolist(), index.raw_lengths(field).tolist(), strict=True)
        found.update({index.key(place) or str(place): pair for place, pair in enumerate(pairs)})
    return found


def test_a_codec_by_name_shrinks_what_shrinks_and_leaves_the_rest(
    mixed_tree: Path, tmp_path: Path
) -> None:
    plain = convert(mixed_tree, tmp_path / "plain")
    small = convert(mixed_tree, tmp_path / "small", codec={"image": "zstd"})
    assert small.bytes_out < plain.bytes_out
    for key, (length, raw) in lengths(tmp_path / "small", "image").items():
        assert length < raw * 0.6 if key.endswith(".bmp") else length == raw
    assert stored(tmp_path / "small") == stored(tmp_path / "plain") == files(mixed_tree)
    checked = verify(tmp_path / "small", decode=True, sha256=True)
    assert checked.ok
    assert checked.samples == 12


def test_the_level_reaches_the_values_and_names_other_shards(
    mixed_tree: Path, tmp_path: Path
) -> None:
    codec = {"image": "zstd"}
    convert(mixed_tree, tmp_path / "three", codec=codec)
    convert(mixed_tree, tmp_path / "also", codec=codec, zstd_level=3)
    convert(mixed_tree, tmp_path / "best", codec=codec, zstd_level=19)
    assert files(tmp_path / "also") == files(tmp_path / "three")
    three, best = (lengths(tmp_path / name, "image") for name in ("three", "best"))
    assert sum(pair[0] for pair in best.values()) < sum(pair[0] for pair in three.values())
    manifests = (tmp_path / name / "manifest-000001.json" for name in ("three", "best"))
    uuids = {json.loads(path.read_bytes())["shards"][0]["uuid"] for path in manifests}
    assert len(uuids) == 2


@pytest.mark.parametrize("name", HASH_NAMES)
def test_the_hash_is_the_one_asked_for_and_guards_the_samples(
    class_tree: Path, tmp_path: Path, name: str
) -> None:
    convert(class_tree, tmp_path / "out", hash=name)
    assert describe(tmp_path / "out").to_json()["hash"] == name
    assert verify(tmp_path / "out").ok
    shard = tmp_path / "out" / "00000.dts"
    damaged = bytearray(shard.read_bytes())
    damaged[700] ^= 1
    shard.write_bytes(damaged)
    assert not verify(tmp_path / "out").ok


def test_what_was_stored_without_these_options_stays_the_same(
    class_tree: Path, tmp_path: Path
) -> None:
    convert(class_tree, tmp_path / "default")
    convert(class_tree, tmp_path / "none", codec="none", hash=DEFAULT_HASH)
    assert files(tmp_path / "none") == files(tmp_path / "default")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"codec": "lz4"}, "codec must be one of none, zstd, got 'lz4'"),
        ({"codec": "zstd"}, "'image' holds pictures.*image=zstd"),
        ({"codec": {"picture": "zstd"}}, "'picture'; the fields are image, label"),
        ({"codec": {"label": "zstd"}}, "'label'.*column, which has no codec"),
        ({"zstd_level": 5}, "no use without codec 'zstd'"),
        ({"codec": "none", "zstd_level": 5}, "no use without codec 'zstd'"),
        ({"codec": {"image": "zstd"}, "zstd_level": 23}, "zstd_level.*1 to 22, got 23"),
        ({"codec": {"image": "zstd"}, "zstd_level": 0}, "zstd_level.*1 to 22, got 0"),
        ({"hash": "md5"}, "hash 'md5' is unknown; this build has xxh3-64, crc32"),
        ({"hash": "crc32c"}, "reserved"),
    ],
    ids=str,
)
def test_what_cannot_be_stored_is_refused_before_anything_is(
    class_tree: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        convert(class_tree, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def without_zstandard(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "zstandard":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", absent)


def test_without_the_package_the_extra_is_named_at_once(
    class_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_zstandard(monkeypatch)
    with pytest.raises(ConfigError, match=r"pip install 'streamloader\[zstd\]'"):
        convert(class_tree, tmp_path / "out", codec={"image": "zstd"})
    fields = {"text": Field("text", "utf8", codec="zstd")}
    with pytest.raises(ConfigError, match=r"pip install 'streamloader\[zstd\]'"):
        DatasetWriter(tmp_path / "out", fields)
    assert not (tmp_path / "out").exists()
    convert(class_tree, tmp_path / "out")


def write_texts(dest: Path, jpeg: Callable[..., bytes], **options: Any) -> Path:
    fields = {"image": "picture", "text": "str", "label": "int64"}
    with DatasetWriter(dest, fields, **options) as writer:
        for number, text in enumerate(TEXTS):
            sample = {"image": jpeg(number), "text": text, "label": number}
            writer.write(sample, key=str(number))
    return dest


def test_a_writer_compresses_all_but_pictures_and_columns(
    tmp_path: Path, jpeg: Callable[..., bytes]
) -> None:
    out = write_texts(tmp_path / "out", jpeg, codec="zstd", zstd_level=9, hash="crc32")
    described = describe(out).to_json()
    codecs = {field["name"]: field["codec"] for field in described["fields"]}
    assert codecs == {"image": "none", "text": "zstd", "label": "none"}
    assert described["hash"] == "crc32"
    assert all(length < raw / 2 for length, raw in lengths(out, "text").values())
    assert [s.record["text"] for s in read_samples(out, range(30))] == TEXTS


def test_a_writer_keeps_the_codec_of_a_declared_field_unless_told(tmp_path: Path) -> None:
    fields = {"text": Field("text", "utf8", codec="zstd"), "note": "str"}
    for options, codecs in [
        ({"zstd_level": 9}, ["zstd", "none"]),
        ({"codec": {"note": "zstd"}}, ["zstd", "zstd"]),
        ({"codec": "none"}, ["none", "none"]),
        ({"codec": {"*": "zstd", "note": "none"}}, ["zstd", "none"]),
    ]:
        with DatasetWriter(tmp_path / "out", fields, **options) as writer:
            writer.write({"text": TEXTS[0], "note": TEXTS[1]})
        described = describe(tmp_path / "out").to_json()
        assert [field["codec"] for field in described["fields"]] == codecs
        shutil.rmtree(tmp_path / "out")
    with pytest.raises(ConfigError, match="no use without codec"):
        DatasetWriter(tmp_path / "out", {"note": "str"}, zstd_level=9)


def test_the_names_in_the_help_are_those_of_the_format() -> None:
    assert HASHES == HASH_NAMES
    assert HASHES[0] == DEFAULT_HASH

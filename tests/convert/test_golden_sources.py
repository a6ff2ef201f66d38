"""Sources that were written by their own libraries: the same samples, the same labels."""

from __future__ import annotations

import importlib.util
import io
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from streamloader.convert import convert, describe, read_samples, verify
from streamloader.errors import ConfigError

GOLDEN = Path(__file__).parent / "golden"
_SPEC = importlib.util.spec_from_file_location("golden_build", GOLDEN / "build.py")
assert _SPEC is not None
assert _SPEC.loader is not None
build = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(build)

EXPECTED = [build.sample(number) for number in range(build.SAMPLES)]


def converted(source: Path, dest: Path, **options: Any) -> list[dict[str, Any]]:
    report = convert(source, dest, shuffle_seed=None, **options)
    assert report.samples == build.SAMPLES
    assert report.rejected == ()
    assert verify(dest, decode=True, sha256=True).ok
    return [sample.record for sample in read_samples(dest, range(report.samples))]


def pixels(data: bytes) -> np.ndarray[Any, Any]:
    return np.asarray(Image.open(io.BytesIO(data)))


@pytest.mark.parametrize("name", ["mds", "mds-zstd"])
def test_mds(tmp_path: Path, name: str) -> None:
    if name == "mds-zstd":
        pytest.importorskip("zstandard")
    records = converted(GOLDEN / name, tmp_path / "out")
    for number, (record, wanted) in enumerate(zip(records, EXPECTED, strict=True)):
        # The library encodes pictures that were decoded; the ones beside them are the pixels.
        np.testing.assert_array_equal(pixels(record["pixels"]), pixels(wanted["image"]))
        assert pixels(record["image"]).shape == (8, 12, 3)
        assert record["label"] == wanted["label"]
        assert record["caption"] == wanted["caption"]
        np.testing.assert_array_equal(record["weights"], wanted["weights"])
        np.testing.assert_array_equal(record["box"], wanted["box"])
        assert record["extra"] == wanted["extra"]
        assert (record["count"], record["small"]) == (number, number)
        assert record["raw"] == bytes([number]) * number
    fields = {
        field.name: (field.type, field.shape) for field in describe(tmp_path / "out").schema.fields
    }
    assert fields["weights"] == ("f4", (-1,))
    assert fields["box"] == ("i4", (4,))
    assert fields["small"] == ("u1", ())


def test_mds_lists_of_pictures(tmp_path: Path) -> None:
    records = converted(GOLDEN / "mds-lists", tmp_path / "out")
    for number, record in enumerate(records):
        pictures = build.views(number)
        assert [record[f"views_{n}"] for n in range(3)] == pictures
        for place in range(2):
            np.testing.assert_array_equal(
                pixels(record[f"pixels_{place}"]), pixels(pictures[place])
            )
        for place in range(3):
            grey = np.asarray(Image.open(io.BytesIO(pictures[place])).convert("L"))
            np.testing.assert_array_equal(pixels(record[f"masks_{place}"]), grey)
        assert pixels(record["frames_0"]).shape == (8, 12, 3)
        assert record["label"] == number % 3
        assert len(record) == 2 + 1 + 3 + 3 + 1


def test_webdataset(tmp_path: Path) -> None:
    records = converted(GOLDEN / "webdataset", tmp_path / "out")
    for number, (record, wanted) in enumerate(zip(records, EXPECTED, strict=True)):
        assert record["image"] == wanted["image"]
        assert (pixels(record["mask"]) == number).all()
        assert record["label"] == wanted["label"]
        assert record["txt"] == wanted["caption"]
        assert record["json"] == wanted["extra"]
        np.testing.assert_array_equal(record["npy"], wanted["box"])
    keys = [sample.key for sample in read_samples(tmp_path / "out", [0, build.SAMPLES - 1])]
    assert keys == ["set-0000/deep/000", "set-0001/deep/005"]


@pytest.mark.s3
@pytest.mark.parametrize(
    "name", ["mds", "mds-zstd", "mds-lists", "webdataset", "hugging-face/saved", "parquet"]
)
def test_from_a_bucket_as_from_a_folder(
    tmp_path: Path, s3_bucket: Any, upload: Callable[..., None], name: str
) -> None:
    if name == "mds-zstd":
        pytest.importorskip("zstandard")
    source = GOLDEN / name
    if name == "parquet":
        source = tmp_path / "parquet"
        source.mkdir()
        shutil.copy(GOLDEN / "hugging-face" / "train-00000-of-00001.parquet", source)
    upload(source, f"{s3_bucket.url}/source", s3_bucket.storage_options)
    local = convert(source, tmp_path / "local")
    remote = convert(
        f"{s3_bucket.url}/source", tmp_path / "remote", source_options=s3_bucket.storage_options
    )
    assert remote.fingerprint == local.fingerprint


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_hugging_face(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("pyarrow")
    source = tmp_path / "source"
    source.mkdir()
    for path in (GOLDEN / "hugging-face").rglob(f"*.{kind}"):
        shutil.copy(path, source)
    options = {"split": "train"} if kind == "parquet" else {}
    records = converted(source, tmp_path / "out", **options)
    for record, wanted in zip(records, EXPECTED, strict=True):
        assert record["image"] == wanted["image"]
        assert record["label"] == wanted["label"]
        assert record["caption"] == wanted["caption"]
        np.testing.assert_array_equal(record["weights"], wanted["weights"])
    assert describe(tmp_path / "out").manifest.classes == ("ant", "bee", "cat")


def test_without_pyarrow_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"pip install 'streamloader\[convert\]'"):
        convert(GOLDEN / "hugging-face" / "saved", tmp_path / "out")
    assert not (tmp_path / "out").exists()

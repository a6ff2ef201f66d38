"""What is done to pictures: shrunk, turned, encoded anew, or rewritten without loss."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from streamloader.convert import PictureOptions, convert, read_samples, verify
from streamloader.convert.picture_check import UnsoundPicture
from streamloader.convert.picture_steps import prepare_picture
from streamloader.decode import decode_picture
from streamloader.dts import open_shard, read_picture_header
from streamloader.errors import ConfigError


def picture(width: int = 64, height: int = 48) -> Image.Image:
    """Waves: smooth enough for JPEG, finer than a pixel once shrunk."""
    y, x = np.mgrid[0:height, 0:width]
    waves = [128 + 100 * np.sin(x / 5 + c) * np.cos(y / 7) for c in range(3)]
    return Image.fromarray(np.stack(waves, -1).astype(np.uint8))


def encoded(image: Image.Image, file_format: str = "JPEG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, format=file_format, **options)
    return file.getvalue()


def oriented(image: Image.Image, orientation: int, file_format: str = "JPEG") -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(image, file_format, exif=exif, quality=95)


def prepared(data: bytes, **options: Any) -> bytes:
    return bytes(prepare_picture(data, PictureOptions(**options), decode=True)[0])


def test_the_short_side_shrinks_and_small_pictures_stay_as_they_are() -> None:
    data = prepared(encoded(picture(640, 480)), resize_short=100)
    header = read_picture_header(data)
    assert (header.format, header.width, header.height) == ("jpeg", 133, 100)
    small = encoded(picture(99, 300))
    assert prepared(small, resize_short=100) == small
    assert prepared(small, resize_short=99) == small


def test_shrinking_is_antialiased() -> None:
    stripes = np.zeros((256, 256, 3), dtype=np.uint8)
    stripes[:, ::2] = 255
    data = prepared(encoded(Image.fromarray(stripes), "PNG"), resize_short=32)
    assert read_picture_header(data).format == "png"
    assert np.abs(decode_picture(data).astype(int) - 128).max() <= 8


def test_quality_reaches_the_encoder() -> None:
    data = encoded(picture(640, 480), quality=98)
    sizes = [len(prepared(data, resize_short=200, quality=q)) for q in (30, 60, 95)]
    assert sizes == sorted(sizes)
    assert sizes[0] * 2 < sizes[2]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_turned_picture_is_stored_upright(orientation: int) -> None:
    undo = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    upright = picture()
    lying = upright.transpose(undo[orientation]) if orientation in undo else upright
    data = oriented(lying, orientation)
    stored = prepared(data, orient=True)
    assert read_picture_header(stored).orientation == 1
    difference = np.abs(decode_picture(stored).astype(int) - np.asarray(upright).astype(int))
    assert difference.mean() < 3
    if orientation == 1:
        assert stored == data


def test_a_picture_that_is_shrunk_and_not_turned_keeps_its_orientation() -> None:
    data = prepared(oriented(picture(640, 480), 6), resize_short=100)
    header = read_picture_header(data)
    assert (header.orientation, header.width, header.height) == (6, 133, 100)


@pytest.mark.parametrize("file_format", ["PNG", "WEBP", "BMP", "GIF", "TIFF"])
def test_other_formats_stay_or_become_jpeg(file_format: str) -> None:
    data = encoded(picture(), file_format)
    assert prepared(data) == data
    assert prepared(data, orient=True) == data
    stored = prepared(data, to_jpeg=True, quality=95)
    assert read_picture_header(stored).format == "jpeg"
    difference = np.abs(decode_picture(stored).astype(int) - decode_picture(data).astype(int))
    assert difference.mean() < 4


def test_progressive_becomes_baseline_with_the_same_pixels() -> None:
    for options in ({}, {"subsampling": 0}, {"optimize": True}):
        data = encoded(picture(333, 217), progressive=True, quality=80, **options)
        assert read_picture_header(data).progressive
        stored = prepared(data, lossless_baseline=True)
        assert not read_picture_header(stored).progressive
        np.testing.assert_array_equal(decode_picture(stored), decode_picture(data))
    grey = encoded(picture().convert("L"), progressive=True)
    np.testing.assert_array_equal(
        decode_picture(prepared(grey, lossless_baseline=True)), decode_picture(grey)
    )


def test_baseline_keeps_metadata_and_what_is_baseline_stays() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(picture(), progressive=True, exif=exif, icc_profile=b"profile")
    stored = prepared(data, lossless_baseline=True)
    assert read_picture_header(stored).orientation == 6
    assert Image.open(io.BytesIO(stored)).info["icc_profile"] == b"profile"
    plain = encoded(picture())
    assert prepared(plain, lossless_baseline=True) == plain


def test_a_cut_progressive_picture_is_refused_even_without_the_check() -> None:
    data = encoded(picture(333, 217), progressive=True)
    with pytest.raises(UnsoundPicture, match="baseline|truncated"):
        prepare_picture(
            data[: len(data) // 2], PictureOptions(lossless_baseline=True), decode=False
        )


def test_without_the_library_the_option_is_refused_in_a_sentence(
    class_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streamloader.convert import lossless

    lossless._library.cache_clear()
    monkeypatch.setattr(lossless, "_NAMES", ("libno-such-thing.so",))
    monkeypatch.setattr(lossless.ctypes.util, "find_library", lambda name: None)
    try:
        with pytest.raises(ConfigError, match="libturbojpeg0"):
            convert(class_tree, tmp_path / "out", pictures=PictureOptions(lossless_baseline=True))
    finally:
        lossless._library.cache_clear()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "options",
    [
        {"resize_short": 0},
        {"quality": 101, "to_jpeg": True},
        {"quality": 80},
        {"resize_short": 1.5},
    ],
    ids=str,
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"resize_short|quality"):
        PictureOptions(**options)


def test_what_was_done_is_recorded_and_names_other_shards(class_tree: Path, tmp_path: Path) -> None:
    (class_tree / "ant" / "big.jpg").write_bytes(encoded(picture(200, 100)))
    plain = convert(class_tree, tmp_path / "plain")
    shrunk = convert(class_tree, tmp_path / "out", pictures=PictureOptions(resize_short=50))
    assert shrunk.samples == plain.samples
    data = (tmp_path / "out" / "00000.dts").read_bytes()
    index = open_shard(lambda at, n: data[at : at + n], len(data), "00000.dts")
    assert index.stats is not None
    assert index.stats["pictures"]["resize_short"] == 50
    other = (tmp_path / "plain" / "00000.dts").read_bytes()
    assert index.uuid != open_shard(lambda at, n: other[at : at + n], len(other), "p").uuid
    stored = {s.key: s.record["image"] for s in read_samples(tmp_path / "out", range(61))}
    assert decode_picture(stored["ant/big.jpg"]).shape == (50, 100, 3)
    assert verify(tmp_path / "out", decode=True).ok

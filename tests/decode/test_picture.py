"""Single pictures: every kind that must decode, every kind that must be refused by its name."""

from __future__ import annotations

import contextlib
import io
import json
import random
import resource
import struct
import time
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image, ImageFile

from streamloader.decode import PictureFault, PictureLimits

_HOSTILE = Path(__file__).parents[1] / "hostile"
_EXPECTED: dict[str, Any] = json.loads((_HOSTILE / "expected.json").read_text())
_DECODED = sorted(name for name, want in _EXPECTED.items() if want["outcome"] == "decode")
_REJECTED = sorted(name for name, want in _EXPECTED.items() if want["outcome"] == "reject")

REASONS = {
    "names/._photo.jpg": "AppleDouble",
    "names/error_page.jpg": "HTML page",
    "names/iphone.jpg": "HEIC",
    "other/truncated.png": "truncated PNG",
    "size/claims_65500x65500.jpg": "JPEG claims 65500x65500 pixels, more than max_pixels",
    "size/zero_width.jpg": "broken JPEG: its header claims no pixels",
    "stream/bad_huffman_table.jpg": "broken JPEG",
    "stream/double_soi.jpg": "broken JPEG",
    "stream/missing_eoi.jpg": "truncated JPEG: no end-of-image marker",
    "stream/soi_only.jpg": "JPEG",
    "stream/truncated_half.jpg": "truncated JPEG",
    "stream/truncated_header.jpg": "truncated JPEG: its 40 bytes end before the first scan",
    "stream/zero_bytes.jpg": "empty file",
    "stream/zeros_4k.jpg": "4096 zero bytes",
}


def quadrants(pixels: npt.NDArray[np.uint8]) -> list[npt.NDArray[np.float64]]:
    """Means of the four quadrants, one pixel off the middle lines."""
    height, width = pixels.shape[0] // 2, pixels.shape[1] // 2
    rows = (slice(0, height - 1), slice(pixels.shape[0] - height + 1, None))
    columns = (slice(0, width - 1), slice(pixels.shape[1] - width + 1, None))
    return [pixels[r, c].reshape(-1, 3).mean(axis=0) for r in rows for c in columns]


def png_chunk(kind: bytes, data: bytes, crc: int | None = None) -> bytes:
    checksum = zlib.crc32(kind + data) if crc is None else crc
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)


def test_the_hostile_set_is_complete() -> None:
    assert len(_EXPECTED) == 51
    assert set(REASONS) == set(_REJECTED)


@pytest.mark.parametrize("name", _DECODED)
def test_a_good_picture_has_its_size_and_colours(
    decode_picture: Any, name: str, hostile_images: Path
) -> None:
    want = _EXPECTED[name]
    pixels = decode_picture((hostile_images / name).read_bytes())
    assert pixels.dtype == np.uint8
    assert pixels.shape == (want["height"], want["width"], 3)
    assert pixels.reshape(-1, 3).mean(axis=0) == pytest.approx(want["mean_rgb"], abs=want["tol"])
    if want["quad_rgb"] is not None:
        for got, wanted in zip(quadrants(pixels), want["quad_rgb"], strict=True):
            assert got == pytest.approx(wanted, abs=want["tol"])


@pytest.mark.parametrize("name", _REJECTED)
def test_a_bad_picture_is_refused_by_its_true_name(
    decode_picture: Any, name: str, hostile_images: Path
) -> None:
    with pytest.raises(PictureFault, match=REASONS[name]):
        decode_picture((hostile_images / name).read_bytes())


def test_a_huge_claim_costs_neither_time_nor_memory(
    decode_picture: Any, hostile_images: Path
) -> None:
    data = (hostile_images / "size/claims_65500x65500.jpg").read_bytes()
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start_s = time.monotonic()
    with pytest.raises(PictureFault, match="65500x65500"):
        decode_picture(data)
    assert time.monotonic() - start_s < 1.0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 50 * 1024


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
def test_the_pixel_limit_counts_for_every_format(
    decode_picture: Any, kind: str, photo: Any, encoded: Any
) -> None:
    data = encoded(photo(40, 30), kind)
    assert decode_picture(data, PictureLimits(max_pixels=1200)).shape == (30, 40, 3)
    with pytest.raises(PictureFault, match="claims 40x30 pixels, more than max_pixels 1199"):
        decode_picture(data, PictureLimits(max_pixels=1199))


@pytest.mark.parametrize("options", [{"lossless": True}, {"quality": 80}, {"exif": b"Exif\0\0"}])
def test_a_webp_is_measured_before_its_canvas_is_allocated(
    decode_picture: Any,
    options: dict[str, Any],
    photo: Any,
    encoded: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from PIL import WebPImagePlugin

    data = encoded(photo(40, 30), "WEBP", **options)
    monkeypatch.setattr(WebPImagePlugin, "_webp", None)
    with pytest.raises(PictureFault, match="WebP claims 40x30 pixels"):
        decode_picture(data, PictureLimits(max_pixels=1199))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP"])
def test_pillows_own_limit_neither_warns_nor_refuses(
    decode_picture: Any, kind: str, photo: Any, encoded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a global of Pillow's; ours is an argument, and may be higher."""
    data = encoded(photo(40, 30), kind)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert decode_picture(data).shape == (30, 40, 3)


def test_a_limit_that_a_driver_insists_on_is_a_fault(
    decode_picture: Any, photo: Any, encoded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = encoded(photo(32, 32), "ICO")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with pytest.raises(PictureFault, match="broken ICO: Image size"):
        decode_picture(data)


def test_metadata_faults_neither_reject_nor_warn(decode_picture: Any, hostile_images: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("exif/corrupt_ifd.jpg", "exif/xmp_not_utf8.jpg", "stream/mpo.jpg"):
            assert decode_picture((hostile_images / name).read_bytes()).shape == (32, 48, 3)


@pytest.mark.parametrize("size", [0, 1, 10, 65_000])
@pytest.mark.parametrize("marker", [0xE1, 0xE2, 0xED, 0xEF, 0xFE])
def test_jpeg_metadata_of_any_size_changes_no_pixel(
    decode_picture: Any, size: int, marker: int, photo: Any, encoded: Any
) -> None:
    plain = encoded(photo(48, 32))
    # A whole picture and marker-like bytes inside: a walk that searches would stop there.
    inside = (b"Exif\0\0MM\0*" + plain + b"\xff\xd9\xff\xda" + bytes(65_000))[:size]
    segment = b"\xff\xff\xff" + bytes([marker]) + struct.pack(">H", len(inside) + 2) + inside
    assert np.array_equal(
        decode_picture(plain[:2] + segment * 3 + plain[2:]), decode_picture(plain)
    )


@pytest.mark.parametrize("kind", [b"tEXt", b"iCCP", b"eXIf", b"gAMA", b"acTL", b"prVt"])
def test_a_broken_ancillary_png_chunk_changes_no_pixel(
    decode_picture: Any, kind: bytes, photo: Any, encoded: Any
) -> None:
    plain = encoded(photo(48, 32), "PNG")
    header_end = 8 + 25
    broken = plain[:header_end] + png_chunk(kind, b"\xff\0junk", crc=1) + plain[header_end:]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.array_equal(decode_picture(broken), decode_picture(plain))


def test_transparency_is_dropped_without_blending_or_warning(
    decode_picture: Any, encoded: Any
) -> None:
    palette = Image.new("P", (6, 4), 1)
    palette.putpalette([0, 0, 0, 200, 60, 50])
    colour = Image.new("RGBA", (6, 4), (200, 60, 50, 0))
    pictures = [
        encoded(palette, "PNG", transparency=b"\0\x80"),
        encoded(palette, "GIF", transparency=1),
        encoded(colour, "PNG"),
        encoded(colour, "TIFF"),
        encoded(colour, "WEBP", lossless=True, exact=True),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for data in pictures:
            assert (decode_picture(data) == (200, 60, 50)).all()


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_sixteen_bit_grey_keeps_the_high_byte(decode_picture: Any, kind: str, encoded: Any) -> None:
    values = np.arange(0, 65_536, 16, dtype=np.uint16).reshape(64, 64)
    pixels = decode_picture(encoded(Image.fromarray(values), kind))
    assert np.array_equal(pixels, np.repeat((values >> 8)[:, :, None], 3, axis=2))


def test_sixteen_bit_rgb_png_keeps_the_high_byte(decode_picture: Any) -> None:
    values = np.random.default_rng(0).integers(0, 65_536, (5, 7, 3), np.uint16)
    lines = b"".join(b"\0" + line.astype(">u2").tobytes() for line in values)
    header = struct.pack(">IIBBBBB", 7, 5, 16, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header)
    data += png_chunk(b"IDAT", zlib.compress(lines)) + png_chunk(b"IEND", b"")
    assert np.array_equal(decode_picture(data), (values >> 8).astype(np.uint8))


@pytest.mark.parametrize("mode", ["I", "F"])
def test_samples_without_a_range_are_refused(decode_picture: Any, mode: str, encoded: Any) -> None:
    with pytest.raises(PictureFault, match="TIFF with 32-bit samples"):
        decode_picture(encoded(Image.new(mode, (4, 4)), "TIFF"))


@pytest.mark.parametrize("mode", ["1", "L", "LA"])
def test_grey_becomes_three_equal_channels(decode_picture: Any, mode: str, encoded: Any) -> None:
    pixels = decode_picture(encoded(Image.new(mode, (5, 3), 255), "PNG"))
    assert pixels.shape == (3, 5, 3)
    assert (pixels == 255).all()


@pytest.mark.parametrize("size", [(1, 1), (2, 1), (1, 64), (7, 5), (17, 33)])
def test_odd_sizes_are_exact(
    decode_picture: Any, size: tuple[int, int], photo: Any, encoded: Any
) -> None:
    data = encoded(photo(*size), subsampling="4:2:0")
    reference = np.asarray(Image.open(io.BytesIO(data)))
    assert np.array_equal(decode_picture(data), reference)


@pytest.mark.parametrize("share", [0.3, 0.5, 0.9, 0.97])
@pytest.mark.parametrize(
    "options", [{}, {"subsampling": "4:4:4"}, {"restart_marker_blocks": 4}, {"grey": True}]
)
def test_a_scan_that_was_cut_and_closed_again_is_refused(
    decode_picture: Any, share: float, options: dict[str, Any], photo: Any, encoded: Any
) -> None:
    image = photo(160, 120)
    options = dict(options)
    image = image.convert("L") if options.pop("grey", False) else image
    whole = encoded(image, **options)
    header = whole.index(b"\xff\xda")
    cut = header + int((len(whole) - header) * share)
    closed = whole[:cut].rstrip(b"\xff") + b"\xff\xd9"
    assert Image.open(io.BytesIO(closed)).convert("RGB").size == image.size, "Pillow is silent"
    with pytest.raises(PictureFault, match="truncated JPEG: its scan ends early"):
        decode_picture(closed)
    with pytest.raises(PictureFault, match="truncated JPEG: no end-of-image marker"):
        decode_picture(whole[:cut].rstrip(b"\xff") + bytes(len(whole) - cut))


@pytest.mark.parametrize(
    "options", [{}, {"progressive": True}, {"restart_marker_blocks": 1}, {"restart_marker_rows": 1}]
)
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_picture_that_ends_in_mid_grey_is_not_taken_for_a_cut_one(
    decode_picture: Any, mode: str, options: dict[str, Any], photo: Any, encoded: Any
) -> None:
    image = photo(80, 64)
    image.paste((128, 128, 128), (16, 16, 80, 64))
    image = image.convert(mode)
    if mode == "CMYK":
        image.paste((128, 128, 128, 128), (16, 16, 80, 64))
    data = encoded(image, quality=95, **options)
    assert decode_picture(data + b"trailing").shape == (64, 80, 3)


def test_a_document_that_runs_a_program_is_never_opened(
    decode_picture: Any, photo: Any, encoded: Any
) -> None:
    with pytest.raises(PictureFault, match="EPS: a program that draws"):
        decode_picture(encoded(photo(8, 8), "EPS"))


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "Git LFS pointer"),
        (b"<?xml version='1.0'?><Error><Code>NoSuchKey</Code></Error>", "XML document"),
        (b'{"error": 404}', "JSON document"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "SVG drawing"),
        (b"%PDF-1.7", "PDF document"),
        (b"PK\x03\x04rest", "zip archive"),
        (b"\x1f\x8b\x08", "gzip archive"),
        (b"\0\0\0\x18ftypmp42", "MP4"),
        (b"\xff\x0a\xfa", "JPEG XL"),
        (b"\xff", r"unknown format \(starts ff\)"),
        (b"\0\x01\x02\x03", r"unknown format \(starts 00 01 02 03\)"),
    ],
)
def test_what_is_no_picture_is_named(decode_picture: Any, data: bytes, name: str) -> None:
    with pytest.raises(PictureFault, match=name):
        decode_picture(data)


def test_any_buffer_is_read_and_none_is_kept(decode_picture: Any, photo: Any, encoded: Any) -> None:
    data = encoded(photo(20, 10))
    owned = bytearray(data)
    arrays = [memoryview(data), np.frombuffer(data, np.uint8), owned]
    for buffer in arrays:
        assert np.array_equal(decode_picture(buffer), decode_picture(data))
    owned.clear()


# TIFF keeps its sizes among its metadata, and Pillow warns of both.
@pytest.mark.filterwarnings("ignore::UserWarning:PIL.TiffImagePlugin")
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF"])
def test_random_damage_is_a_fault_or_a_picture_and_nothing_else(
    decode_picture: Any, kind: str, photo: Any, encoded: Any
) -> None:
    data = encoded(photo(24, 20), kind)
    draw = random.Random(kind)
    for _ in range(150):
        damaged = bytearray(data)
        for _ in range(draw.randint(1, 4)):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        del damaged[draw.randint(len(damaged) // 2, 2 * len(damaged)) :]
        # A picture or a fault; anything else that is raised fails the test.
        with contextlib.suppress(PictureFault):
            assert decode_picture(damaged, PictureLimits(max_pixels=100_000)).shape[2] == 3


def test_pillows_tolerance_of_cut_files_stays_off() -> None:
    assert not ImageFile.LOAD_TRUNCATED_IMAGES

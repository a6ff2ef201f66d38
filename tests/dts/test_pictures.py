from __future__ import annotations

import contextlib
import io
import json
import pickle
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from streamloader.dts import PictureHeader, PictureHeaderError, read_picture_header

HOSTILE = Path(__file__).parents[1] / "hostile"
EXPECTED = json.loads((HOSTILE / "expected.json").read_bytes())

SAMPLINGS = {
    "s444": "4:4:4",
    "s420": "4:2:0",
    "s440": "4:4:0",
    "s411": "4:1:1",
    "s24": "other",
    "all_2x1": "other",
    "luma4x1_chroma2x1": "other",
}
HEADER_FAULTS = {
    "names/._photo.jpg": ("appledouble", "AppleDouble"),
    "names/error_page.jpg": ("html", "an HTML page"),
    "names/iphone.jpg": ("heic", "HEIC"),
    "size/zero_width.jpg": ("jpeg", "0x32 pixels"),
    "stream/double_soi.jpg": ("jpeg", "two start markers"),
    "stream/soi_only.jpg": ("jpeg", "truncated JPEG header"),
    "stream/truncated_header.jpg": ("jpeg", "truncated JPEG header"),
    "stream/zero_bytes.jpg": ("empty", "an empty file"),
    "stream/zeros_4k.jpg": ("zeros", "all zeros"),
}


def _bytes(name):
    return (HOSTILE / "images" / name).read_bytes()


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_every_hostile_picture_gives_its_header_or_its_true_name(name):
    expected = EXPECTED[name]
    if name in HEADER_FAULTS:
        assert expected["outcome"] == "reject"
        true_format, reason = HEADER_FAULTS[name]
        with pytest.raises(PictureHeaderError, match=reason) as caught:
            read_picture_header(_bytes(name))
        assert caught.value.true_format == true_format == expected["format"] or name.startswith(
            "stream"
        )
        return
    header = read_picture_header(_bytes(name))
    assert header.format == expected["format"]
    if expected["width"] is not None:
        assert (header.width, header.height) == (expected["width"], expected["height"])
    stem = Path(name).stem
    if name.startswith("sampling/") and stem in SAMPLINGS:
        assert header.sampling == SAMPLINGS[stem]
    assert header.progressive == (stem == "progressive")
    if name.startswith("exif/orient"):
        assert header.orientation == int(stem[-1] if stem[-1] != "0" else "1")


def test_every_hostile_picture_was_copied():
    assert len(EXPECTED) >= 51
    assert all((HOSTILE / "images" / name).exists() for name in EXPECTED)


@pytest.mark.parametrize("name", ["colour/cmyk_adobe.jpg", "colour/gray.jpg", "other/rgba.png"])
def test_components_are_as_coded(name):
    expected = {"colour/cmyk_adobe.jpg": 4, "colour/gray.jpg": 1, "other/rgba.png": 4}
    assert read_picture_header(_bytes(name)).components == expected[name]


def _encoded(format_, mode="RGB", size=(37, 21), **options):
    out = io.BytesIO()
    Image.new(mode, size, 3 if mode == "L" else None).save(out, format_, **options)
    return out.getvalue()


@pytest.mark.parametrize(
    ("format_", "mode", "options", "expected"),
    [
        ("JPEG", "RGB", {"subsampling": 1}, ("jpeg", 3, "4:2:2")),
        ("JPEG", "RGB", {"progressive": True, "subsampling": 2}, ("jpeg", 3, "4:2:0")),
        ("JPEG", "L", {}, ("jpeg", 1, "gray")),
        ("PNG", "RGB", {}, ("png", 3, "")),
        ("PNG", "LA", {}, ("png", 2, "")),
        ("PNG", "P", {}, ("png", 1, "")),
        ("WEBP", "RGB", {}, ("webp", 3, "")),
        ("WEBP", "RGBA", {"lossless": True}, ("webp", None, "")),
        ("WEBP", "RGB", {"exif": b"Exif\0\0II*\0\x08\0\0\0\0\0"}, ("webp", 3, "")),
        ("GIF", "P", {}, ("gif", 1, "")),
        ("BMP", "RGB", {}, ("bmp", 3, "")),
        ("BMP", "L", {}, ("bmp", 1, "")),
        ("TIFF", "RGB", {}, ("tiff", 3, "")),
        ("TIFF", "L", {"compression": "tiff_lzw"}, ("tiff", 1, "")),
    ],
)
def test_each_format_gives_the_size_that_its_writer_gave_it(format_, mode, options, expected):
    header = read_picture_header(_encoded(format_, mode, **options))
    format_name, components, sampling = expected
    assert (header.format, header.width, header.height) == (format_name, 37, 21)
    assert header.sampling == sampling
    if components is not None:
        assert header.components == components
    assert header.progressive == options.get("progressive", False)


@pytest.mark.parametrize("format_", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_orientation_is_read_from_every_format_that_states_it(format_, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    assert read_picture_header(_encoded(format_, exif=exif)).orientation == orientation


def test_a_big_thumbnail_profile_and_comment_are_stepped_over():
    jpeg = _encoded("JPEG")
    thumbnail = _encoded("JPEG", size=(160, 120))
    segments = b"".join(
        bytes((0xFF, marker)) + struct.pack(">H", 2 + len(body)) + body
        for marker, body in [
            (0xE1, b"Exif\0\0MM\0*\0\0\0\x08" + thumbnail),
            (0xE2, b"ICC_PROFILE\0\1\2" + bytes(65000)),
            (0xE2, b"ICC_PROFILE\0\2\2" + b"\xff\xd9\xff\xc0" * 10000),
            (0xFE, b"\xff\xd8\xff" * 20000),
        ]
    )
    header = read_picture_header(jpeg[:2] + segments + b"\xff\xff\xff" + jpeg[2:])
    assert (header.width, header.height, header.orientation) == (37, 21, 1)


@pytest.mark.parametrize("name", ["colour/gray.jpg", "exif/thumbnail.jpg", "other/palette.png"])
def test_every_cut_of_a_header_is_an_error_or_the_full_header(name):
    data = _bytes(name)
    full = read_picture_header(data)
    outcomes = set()
    for length in range(len(data)):
        try:
            outcomes.add(read_picture_header(data[:length]))
        except PictureHeaderError as exc:
            outcomes.add(exc.true_format)
    assert outcomes <= {full, full.format, "empty", "unknown", "text"}


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"\x08\0\0\0\x10\x01\x01\x11\0", "0 pixels"),
        (b"\x08\0\x10\0\0\x01\x01\x11\0", "0x16 pixels"),
        (b"\x08\0\x10\0\x10\x02\x01\x11\0", "wrong length"),
        (b"\x08\0\x10\0\x10\0", "0 components"),
        (b"\x08\0\x10\0\x10\x05" + b"\x01\x11\0" * 5, "5 components"),
        (b"\x08\0\x10\0\x10\x01\x01\x50\0", "sampling factors"),
        (b"\x08", "wrong length"),
    ],
)
def test_frames_that_no_jpeg_can_have_are_refused(frame, reason):
    data = b"\xff\xd8\xff\xc0" + struct.pack(">H", 2 + len(frame)) + frame + b"\xff\xda\0\x02"
    with pytest.raises(PictureHeaderError, match=reason):
        read_picture_header(data)


@pytest.mark.parametrize("marker", [0xC0, 0xC1, 0xC2, 0xC3, 0xC9, 0xCA])
def test_codings_beyond_8_bit_huffman_are_marked_other(marker):
    def header(bits):
        frame = bytes((bits,)) + b"\0\x10\0\x20\x01\x01\x11\0"
        segment = bytes((0xFF, marker)) + struct.pack(">H", 2 + len(frame)) + frame
        return read_picture_header(b"\xff\xd8" + segment + b"\xff\xda\0\x02")

    assert header(8).sampling == ("gray" if marker <= 0xC2 else "other")
    assert header(12).sampling == "other"
    assert header(8).progressive == (marker in (0xC2, 0xCA))


@pytest.mark.parametrize(
    ("data", "true_format"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "git-lfs"),
        (b"  \n<!DOCTYPE HTML PUBLIC>", "html"),
        (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "xml"),
        (b"<?xml version='1.0'?><svg xmlns=''></svg>", "svg"),
        (b'{"message": "not found"}', "json"),
        (b"%PDF-1.7", "pdf"),
        (b"PK\x03\x04....", "zip"),
        (b"\x1f\x8b\x08\0", "gzip"),
        (b"\0\0\0\x20ftypavif\0\0\0\0avifmif1", "avif"),
        (b"\0\0\0\x1cftypmif1\0\0\0\0mif1avif", "avif"),
        (b"\0\0\0\x18ftypmp42\0\0\0\0isommp42", "mp4"),
        (b"RIFF\x10\0\0\0WAVEfmt ", "riff"),
        (b"\0\0\0\x0cJXL \r\n\x87\n", "jxl"),
        (b"8BPS\0\x01", "psd"),
        (b"II+\0\x08\0", "bigtiff"),
        (b"hello, this is a note\n", "text"),
        (b"\x13\x37\xab\xcd\xef\x00\x11\x22", "unknown"),
        (b"\xff", "unknown"),
        (b"BMx", "bmp"),
        (b"BM" + b"a text that starts like one, but is none at all", "bmp"),
        (bytes(100_000) + b"\x01", "zeros"),
    ],
)
def test_bytes_that_are_no_picture_are_named(data, true_format):
    with pytest.raises(PictureHeaderError) as caught:
        read_picture_header(data)
    assert caught.value.true_format == true_format
    assert caught.value.reason


def test_kind_packs_and_unpacks():
    header = PictureHeader("jpeg", 640, 480, True, 3, "4:2:0", 6)
    assert header.kind == 1 | 1 << 4 | 3 << 5 | 4 << 8 | 6 << 12
    assert PictureHeader.from_columns(640, 480, header.kind) == header
    assert PictureHeader.from_columns(0, 0, 0) is None


def test_the_error_survives_pickling():
    error = pickle.loads(pickle.dumps(PictureHeaderError("an HTML page", "html")))
    assert (error.reason, error.true_format) == ("an HTML page", "html")


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(sorted(EXPECTED)),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=6),
)
def test_damaged_pictures_raise_only_the_headers_error(name, edits):
    data = bytearray(_bytes(name))
    for at, value in edits:
        if data:
            data[at % len(data)] = value
    try:
        header = read_picture_header(memoryview(data))
    except PictureHeaderError:
        return
    assert header.width >= 1
    assert header.height >= 1
    assert 0 < header.kind < 2**16
    assert PictureHeader.from_columns(header.width, header.height, header.kind) == header


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(
        [
            b"",
            b"\xff\xd8",
            b"\x89PNG\r\n\x1a\n",
            b"RIFF\0\0\0\0WEBP",
            b"GIF89a",
            b"BM",
            b"II*\0",
            b"MM\0*",
            b"\0\0\0\x20ftyp",
            b"<",
        ]
    ),
    st.binary(max_size=200),
)
def test_noise_behind_any_magic_raises_only_the_headers_error(magic, noise):
    with contextlib.suppress(PictureHeaderError):
        assert read_picture_header(magic + noise).kind < 2**16

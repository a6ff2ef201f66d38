"""Names for bytes that are no picture this library reads: what a user needs to be told."""

from __future__ import annotations

from typing import Final

from streamloader.dts.picture_kind import PictureHeaderError

_SNIFF_BYTES: Final = 512

_SIGNATURES: Final[tuple[tuple[bytes, str, str], ...]] = (
    (b"\x00\x05\x16\x07", "an AppleDouble file (macOS metadata, no picture)", "appledouble"),
    (b"\x00\x05\x16\x00", "an AppleSingle file (macOS metadata, no picture)", "applesingle"),
    (b"\x00\x00\x00\x01Bud1", "a macOS folder file (.DS_Store)", "ds_store"),
    (b"version https://git-lfs", "a Git LFS pointer; fetch the real file first", "git-lfs"),
    (b"%PDF", "a PDF document", "pdf"),
    (b"PK\x03\x04", "a ZIP archive", "zip"),
    (b"\x1f\x8b", "gzip data; decompress it first", "gzip"),
    (b"\x28\xb5\x2f\xfd", "Zstandard data; decompress it first", "zstd"),
    (b"Rar!\x1a\x07", "a RAR archive", "rar"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive", "7z"),
    (b"\x1aE\xdf\xa3", "a Matroska or WebM video", "matroska"),
    (b"8BPS", "a Photoshop document", "psd"),
    (b"\x00\x00\x01\x00", "a Windows icon", "ico"),
    (b"\xff\x0a", "a JPEG XL picture, which is not read", "jxl"),
    (b"\x00\x00\x00\x0cJXL \r\n\x87\n", "a JPEG XL picture, which is not read", "jxl"),
    (b"\x00\x00\x00\x0cjP  \r\n\x87\n", "a JPEG 2000 picture, which is not read", "jp2"),
    (b"\xff\x4f\xff\x51", "a JPEG 2000 picture, which is not read", "jp2"),
    (b"II+\0", "a BigTIFF picture, which is not read", "bigtiff"),
    (b"MM\0+", "a BigTIFF picture, which is not read", "bigtiff"),
    (b".DTS", "an original DTS data set file", "dts"),
    (b"\x89DTS\r\n\x1a\n", "a DTS1 shard", "dts1"),
    (b"\x93NUMPY", "a NumPy array file", "npy"),
)

_BRANDS: Final = {
    "heic": ("HEIC", "heic"),
    "heix": ("HEIC", "heic"),
    "hevc": ("HEIC sequence", "heic"),
    "heim": ("HEIC", "heic"),
    "heis": ("HEIC", "heic"),
    "mif1": ("HEIF", "heif"),
    "msf1": ("HEIF sequence", "heif"),
    "avif": ("AVIF", "avif"),
    "avis": ("AVIF sequence", "avif"),
}

_MARKUP: Final[tuple[tuple[str, str, str], ...]] = (
    ("<!doctype html", "an HTML page", "html"),
    ("<html", "an HTML page", "html"),
    ("<svg", "an SVG drawing, which is not read", "svg"),
    ("<error", "an XML error document, as storage servers send", "xml"),
    ("<?xml", "an XML document", "xml"),
    ("{", "a JSON document", "json"),
)


def name_non_picture(view: memoryview) -> PictureHeaderError:
    """The error to raise for bytes that start like no picture format with a reader here."""
    if len(view) == 0:
        return PictureHeaderError("an empty file", "empty")
    start = bytes(view[:_SNIFF_BYTES])
    if not any(start):
        kind = "all zeros, as a broken copy leaves" if _all_zero(view) else "starts with zeros"
        return PictureHeaderError(f"no picture: {kind}", "zeros")
    for magic, reason, name in _SIGNATURES:
        if start.startswith(magic):
            return PictureHeaderError(reason, name)
    if start[4:8] == b"ftyp":
        return _name_by_brand(start)
    if start.startswith(b"RIFF"):
        return PictureHeaderError("a RIFF file that is not WebP (audio or video)", "riff")
    if len(view) < 4:
        return PictureHeaderError(f"{len(view)} bytes, too few for a picture", "unknown")
    return _name_text(start)


def _name_by_brand(start: bytes) -> PictureHeaderError:
    """ISO base media files (ISO/IEC 14496-12): the major brand, then the compatible ones."""
    box_bytes = int.from_bytes(start[:4], "big")
    brands = [start[8:12]]
    brands += [start[at : at + 4] for at in range(16, min(box_bytes, len(start)), 4)]
    known = [_BRANDS[text] for b in brands if (text := b.decode("latin-1")) in _BRANDS]
    # The generic brand says only "some HEIF"; a codec's own brand behind it says more.
    specific = [brand for brand in known if brand[1] != "heif"]
    if not known:
        return PictureHeaderError("a video or audio file (MP4 family)", "mp4")
    title, name = (specific or known)[0]
    return PictureHeaderError(
        f"a {title} picture, which is not read; convert it to JPEG, PNG or WebP", name
    )


def _name_text(start: bytes) -> PictureHeaderError:
    text = start.decode("utf-8", "replace").lstrip("\ufeff \t\r\n").lower()
    for prefix, reason, name in _MARKUP:
        if text.startswith(prefix):
            if name == "xml" and "<svg" in text:
                return PictureHeaderError("an SVG drawing, which is not read", "svg")
            if name == "xml" and "<html" in text:
                return PictureHeaderError("an HTML page", "html")
            return PictureHeaderError(reason, name)
    printable = sum(byte >= 32 or byte in b"\t\r\n" for byte in start)
    if printable == len(start) and all(byte < 127 for byte in start):
        return PictureHeaderError("a text file", "text")
    return PictureHeaderError(f"no known picture format (starts with {start[:8].hex()})", "unknown")


def _all_zero(view: memoryview) -> bool:
    piece_bytes = 1 << 16
    pieces = range(0, len(view), piece_bytes)
    return not any(any(bytes(view[at : at + piece_bytes])) for at in pieces)

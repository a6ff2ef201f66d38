"""What bytes really are, whatever their name said: the word an error message needs."""

from __future__ import annotations

_SIGNATURES: tuple[tuple[bytes, str], ...] = (
    (b"\xff\xd8", "JPEG"),
    (b"\x89PNG", "PNG"),
    (b"GIF8", "GIF"),
    (b"BM", "BMP"),
    (b"\0\0\x01\0", "ICO"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"\xff\x0a", "JPEG XL"),
    (b"\0\0\0\x0cJXL ", "JPEG XL"),
    (b"\0\0\0\x0cjP  ", "JPEG 2000"),
    (b"\xff\x4f\xff\x51", "JPEG 2000"),
    (b"8BPS", "Photoshop document"),
    (b"%!PS", "PostScript program"),
    (b"\xc5\xd0\xd3\xc6", "PostScript program"),
    (b"\x00\x05\x16\x07", "AppleDouble file (metadata of macOS)"),
    (b"\x00\x05\x16\x00", "AppleSingle file (metadata of macOS)"),
    (b"version https://git-lfs", "Git LFS pointer (the picture itself was not fetched)"),
    (b"%PDF", "PDF document"),
    (b"PK\x03\x04", "zip archive"),
    (b"\x1f\x8b", "gzip archive"),
    (b"\x1aE\xdf\xa3", "Matroska or WebM video"),
)
_BRANDS: dict[bytes, str] = {
    b"avif": "AVIF",
    b"avis": "AVIF",
    b"heic": "HEIC",
    b"heix": "HEIC",
    b"heim": "HEIC",
    b"heis": "HEIC",
    b"hevc": "HEIC",
    b"hevx": "HEIC",
    b"mif1": "HEIF",
    b"msf1": "HEIF",
}
_TEXT_PREFIX_BYTES = 256


def true_format(view: memoryview) -> str:
    """A name for what the flat bytes in ``view`` are, by their first bytes.

    Examples: ``"JPEG"``, ``"HTML page"``, ``"empty file"``, ``"unknown format (starts 0a 0b)"``.
    """
    if not len(view):
        return "empty file"
    start = bytes(view[:_TEXT_PREFIX_BYTES])
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "WebP"
    if start[4:8] == b"ftyp":
        return _BRANDS.get(start[8:12], "MP4 or other ISO media file")
    for magic, name in _SIGNATURES:
        if start.startswith(magic):
            return name
    if not any(start) and bytes(view).count(0) == len(view):
        return f"file of {len(view)} zero bytes (as a broken copy leaves it)"
    return _text_format(start) or f"unknown format (starts {start[:8].hex(' ')})"


def _text_format(start: bytes) -> str | None:
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if text.startswith((b"<!doctype html", b"<html", b"<head", b"<body")):
        return "HTML page"
    if b"<svg" in text:
        return "SVG drawing"
    if text.startswith(b"<?xml"):
        return "XML document"
    if text.startswith((b'{"', b"[{")):
        return "JSON document"
    return None

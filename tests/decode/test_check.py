"""A check says of every picture what decoding it would say, without making its pixels."""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from streamloader.decode import PictureFault, check_picture, decode_picture, native_is_built
from streamloader.decode.limits import PictureLimits

HOSTILE = Path(__file__).parents[1] / "hostile"
NAMES = sorted(json.loads((HOSTILE / "expected.json").read_text()))
ROUNDS = 60

KINDS: dict[str, dict[str, Any]] = {
    "4:2:0": {"subsampling": 2},
    "4:4:4": {"subsampling": 0},
    "4:2:2": {"subsampling": 1},
    "progressive": {"progressive": True},
    "progressive 4:4:4": {"progressive": True, "subsampling": 0},
    "optimised": {"optimize": True},
    "restarts": {"restart_marker_blocks": 3},
    "progressive with restarts": {"progressive": True, "restart_marker_rows": 1},
}


def verdict(read: Callable[[bytes], Any], data: bytes) -> str | None:
    """The reason why the bytes are no picture; None if they are one."""
    try:
        read(data)
    except PictureFault as fault:
        return fault.reason
    return None


def jpeg(mode: str, size: tuple[int, int], **options: Any) -> bytes:
    rng = random.Random(str(options) + mode)
    image = Image.effect_noise((size[0] // 4 + 1, size[1] // 4 + 1), rng.randint(20, 120))
    file = io.BytesIO()
    image.resize(size).convert(mode).save(file, format="JPEG", **options)
    return file.getvalue()


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Flip a bit, write a byte or a marker, take bytes out, or cut the end off."""
    at = rng.randrange(2, len(data))
    match rng.randrange(5):
        case 0:
            return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
        case 1:
            return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
        case 2:
            marker = bytes([0xFF, rng.choice([0xD0, 0xD3, 0xD7, 0xD9, 0xDA, 0xC4, 0x00, 0xFF])])
            return data[:at] + marker + data[at + 2 :]
        case 3:
            return data[:at] + data[at + rng.randint(1, 40) :]
    return data[:at] + rng.choice([b"", b"\xff\xd9", b"\0" * 100 + b"\xff\xd9"])


@pytest.mark.parametrize("name", NAMES)
def test_of_every_hostile_picture(name: str) -> None:
    data = (HOSTILE / "images" / name).read_bytes()
    assert verdict(check_picture, data) == verdict(decode_picture, data)


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("kind", KINDS)
def test_of_every_damaged_jpeg(kind: str, mode: str) -> None:
    rng = random.Random(kind + mode)
    refused = 0
    for number in range(ROUNDS):
        size = rng.choice([(1, 1), (7, 9), (17, 16), (64, 48), (90, 33)])
        data = jpeg(mode, size, quality=rng.choice([20, 75, 95]), **KINDS[kind])
        if number:
            data = damaged(data, rng)
        wanted = verdict(decode_picture, data)
        assert verdict(check_picture, data) == wanted, number
        refused += wanted is not None
    assert 0 < refused < ROUNDS


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
def test_limits_hold(file_format: str) -> None:
    file = io.BytesIO()
    Image.new("RGB", (40, 30), (10, 200, 30)).save(file, format=file_format)
    data = file.getvalue()
    check_picture(memoryview(data), PictureLimits(max_pixels=1200))
    with pytest.raises(PictureFault, match="more than max_pixels 1199"):
        check_picture(data, PictureLimits(max_pixels=1199))
    check_picture(data, PictureLimits(max_pixels=1200))


@pytest.mark.skipif(not native_is_built(), reason="the native decoder was not built")
def test_next_to_no_memory_is_taken_for_pixels(tmp_path: Path) -> None:
    path = tmp_path / "large.jpg"
    Image.new("RGB", (8_000, 8_000), (10, 200, 30)).save(path)
    program = (
        "import resource, sys\n"
        "from streamloader.decode import check_picture\n"
        "data = open(sys.argv[1], 'rb').read()\n"
        "usage = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "before = usage()\n"
        "check_picture(data)\n"
        "print(usage() - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 20 * 1024

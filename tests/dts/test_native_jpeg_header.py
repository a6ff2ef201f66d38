"""The native reader of JPEG headers says what the one in Python says, or nothing."""

from __future__ import annotations

import io
import random
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from streamloader.dts import PictureHeaderError, pack_jpegs
from streamloader.dts.jpeg_header import read_jpeg
from streamloader.dts.native_jpeg_header import read_sound_jpeg
from streamloader.dts.native_kernel import lib
from streamloader.dts.picture_kind import PictureHeader

HOSTILE = Path(__file__).parents[1] / "hostile" / "images"
ROUNDS = 400

pytestmark = pytest.mark.skipif(lib is None, reason="nothing native was built")


def in_python(data: bytes) -> PictureHeader | None:
    try:
        return read_jpeg(data)
    except PictureHeaderError:
        return None


def in_c(data: bytes) -> PictureHeader | None:
    return read_sound_jpeg(memoryview(data))


def jpeg(mode: str, **options: object) -> bytes:
    file = io.BytesIO()
    Image.new(mode, (37, 21)).save(file, format="JPEG", **options)
    return file.getvalue()


def exif(orientation: int, order: str) -> bytes:
    made = Image.Exif()
    made.endian = order
    made[0x0112] = orientation
    made[0x010F] = "maker"
    return made.tobytes()


SOUND = [
    *(jpeg(mode, subsampling=kind) for mode in ("RGB", "CMYK") for kind in (0, 1, 2)),
    jpeg("L"),
    jpeg("RGB", progressive=True),
    *(jpeg("RGB", exif=exif(turn, order)) for turn in (0, 1, 6, 8, 9) for order in "<>"),
    jpeg("RGB", comment=b"x" * 60_000),
    jpeg("RGB", icc_profile=bytes(100_000)),
]


@pytest.mark.parametrize("path", sorted(HOSTILE.rglob("*")), ids=lambda p: p.name)
def test_of_hostile_pictures(path: Path) -> None:
    if path.is_file() and path.read_bytes()[:2] == b"\xff\xd8":
        assert in_c(path.read_bytes()) == in_python(path.read_bytes())


@pytest.mark.parametrize("number", range(len(SOUND)))
def test_of_sound_and_damaged_headers(number: int) -> None:
    data, rng = SOUND[number], random.Random(number)
    assert in_c(data) == in_python(data) is not None
    seen: set[bool] = set()
    for _ in range(ROUNDS):
        at = rng.randrange(2, min(len(data), 700))
        changed = bytearray(data)
        changed[at] = rng.choice(
            [0, 1, 2, 0x11, 0xC0, 0xC2, 0xC4, 0xD8, 0xDA, 0xE1, 0xFF, at & 255]
        )
        damaged = bytes(changed[: rng.choice([len(data), at + 1])])
        assert in_c(damaged) == in_python(damaged), damaged[:700]
        seen.add(in_c(damaged) is None)
    assert seen == {True, False}


def test_many_at_once_stop_at_the_first_that_is_none() -> None:
    pieces = [data + bytes(-len(data) % 64) for data in SOUND]
    offsets = np.cumsum([0, *map(len, pieces)])
    lengths = np.array(list(map(len, SOUND)))
    packed = pack_jpegs(memoryview(b"".join(pieces)), offsets, lengths)
    if packed is None:
        pytest.skip("no header of xxHash when this was built")
    for place, data in enumerate(SOUND):
        header = read_jpeg(data)
        assert bytes(packed.picture(place)) == data
        found = (packed.widths[place], packed.heights[place], packed.kinds[place])
        assert found == (header.width, header.height, header.kind)
    spoilt = bytearray(b"".join(pieces))
    spoilt[int(offsets[3]) + 1] = 0
    assert pack_jpegs(memoryview(spoilt), offsets, lengths) is None

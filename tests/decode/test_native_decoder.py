"""The kernel in C: Pillow's pixels, numpy's crops, and no trust in what it reads."""

from __future__ import annotations

import io
import random
import re
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from streamloader.decode import (
    AbortWord,
    CenterCrop,
    Compose,
    NativeDecoder,
    PictureLimits,
    PillowDecoder,
    PixelFormat,
    RandomResizedCrop,
    Resize,
    native_kernel,
    plan_crops,
)
from streamloader.decode.crops import step_key
from streamloader.decode.specs import steps
from streamloader.errors import ConfigError

Pixels = npt.NDArray[np.uint8]

CENTRAL = Compose([Resize(60), CenterCrop(52)])
SAMPLINGS = ["4:4:4", "4:2:2", "4:2:0"]


pytestmark = pytest.mark.usefixtures("native_built")


def decoded(decoder: Any, data: list[bytes], share_of: Any, **fields: Any) -> Pixels:
    out = np.full((len(data), decoder.height, decoder.width, 3), 99, np.uint8)
    assert decoder.decode(share_of(data, out, **fields)) == []
    return out


def difference(spec: Any, data: list[bytes], share_of: Any) -> npt.NDArray[np.int64]:
    native = decoded(NativeDecoder(spec), data, share_of).astype(np.int64)
    return np.abs(native - decoded(PillowDecoder(spec), data, share_of))


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("restart", [0, 3])
@pytest.mark.parametrize("sampling", [*SAMPLINGS, "grey", "cmyk"])
def test_a_crop_without_scaling_has_pillows_pixels(
    sampling: str, restart: int, progressive: bool, photo: Any, encoded: Any, share_of: Any
) -> None:
    options: dict[str, Any] = {"progressive": progressive, "restart_marker_blocks": restart}
    if sampling in SAMPLINGS:
        options["subsampling"] = sampling
    mode = {"grey": "L", "cmyk": "CMYK"}.get(sampling, "RGB")
    # Pillow 13 rounds between the passes in another order where only the height shrinks.
    sizes = [(175 - 7 * i, 91 + 9 * i) for i in range(10)]
    data = [encoded(photo(*size, seed=i).convert(mode), **options) for i, size in enumerate(sizes)]
    for spec in (RandomResizedCrop((50, 60), flip=0.5), CENTRAL, Resize((90, 100))):
        off = difference(spec, data, share_of)
        assert off.max() <= 1
        assert off.mean() <= 0.1


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("scale", [2, 4, 8])
def test_a_scaled_crop_is_near_pillows_pixels(
    scale: int, sampling: str, photo: Any, encoded: Any, share_of: Any
) -> None:
    image = photo(64 * scale + 5, 64 * scale + 3).resize((128 * scale + 11, 128 * scale + 5))
    data = [encoded(image, subsampling=sampling, quality=90)]
    off = difference(RandomResizedCrop((40, 48), scale=(0.7, 1.0), flip=0.5), data * 4, share_of)
    assert off.mean() <= 1.0
    assert (off > 8).mean() <= 0.02


@pytest.mark.parametrize("size", [(1, 1), (2, 1), (1, 64), (7, 5), (17, 33), (33, 17), (700, 1)])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_odd_sizes_are_cropped_right(
    size: tuple[int, int], sampling: str, photo: Any, encoded: Any, share_of: Any
) -> None:
    data = [encoded(photo(*size), subsampling=sampling)]
    for spec in (RandomResizedCrop(20, flip=0.5), CenterCrop(9), Resize((5, 31))):
        assert difference(spec, data, share_of).max() <= 1


@pytest.mark.parametrize("simd", ["plain", "sse4.1", "avx2", "avx512"])
def test_all_vector_widths_give_the_same_bits(
    simd: str, photo: Any, encoded: Any, share_of: Any
) -> None:
    sizes = [(300 - 13 * i, 90 + 21 * i) for i in range(8)]
    data = [encoded(photo(*size, seed=i)) for i, size in enumerate(sizes)]
    for size in [(64, 64), (3, 5), (1, 1), (50, 211), (9, 22)]:
        spec = RandomResizedCrop(size, scale=(0.05, 1.0), flip=0.5)
        try:
            decoder = NativeDecoder(spec, simd=simd)
        except ConfigError:
            pytest.skip(f"this processor has no {simd}")
        best = decoded(NativeDecoder(spec), data, share_of)
        assert np.array_equal(decoded(decoder, data, share_of), best)


@st.composite
def specs(draw: Any) -> Any:
    side = st.integers(1, 400)
    size = st.one_of(side, st.tuples(side, side))
    ratio = st.floats(0.02, 50.0).flatmap(lambda low: st.tuples(st.just(low), st.floats(low, 60.0)))
    scale = st.floats(0.001, 1.0).flatmap(lambda low: st.tuples(st.just(low), st.floats(low, 1.0)))
    flip = st.floats(0.0, 1.0)
    random_crop = st.builds(RandomResizedCrop, size, scale=scale, ratio=ratio, flip=flip)
    any_step = st.one_of(random_crop, st.builds(Resize, size), st.builds(CenterCrop, size))
    return Compose([*draw(st.lists(any_step, max_size=3)), draw(random_crop)])


@settings(max_examples=300, deadline=None)
@given(
    spec=specs(),
    width=st.integers(1, 65_500),
    height=st.integers(1, 65_500),
    sample=st.integers(0, 2**40),
    seed=st.integers(0, 2**63),
)
def test_crops_have_the_same_bits_in_c_and_in_numpy(
    spec: Any, width: int, height: int, sample: int, seed: int
) -> None:
    plan = plan_crops(
        spec, np.array([width]), np.array([height]), seed=seed, epoch=3, samples=np.array([sample])
    )
    flat = tuple(steps(spec))
    keys = tuple(step_key(seed, 3, number) for number in range(len(flat)))
    task = native_kernel.Task(flat, keys, (1, 1), None, PictureLimits())
    box = native_kernel.plan(task, width, height, sample)
    assert box == (*plan.boxes[0].tolist(), bool(plan.flips[0]))


def without_tables(data: bytes) -> bytes:
    """The JPEG without its Huffman tables, as the frames of a motion JPEG are."""
    kept, position = [data[:2]], 2
    while data[position + 1] != 0xDA:
        end = position + 2 + int.from_bytes(data[position + 2 : position + 4], "big")
        if data[position + 1] != 0xC4:
            kept.append(data[position:end])
        position = end
    return b"".join(kept) + data[position:]


def test_nothing_of_a_picture_is_left_for_the_next(photo: Any, encoded: Any, share_of: Any) -> None:
    plain, tuned = encoded(photo(50, 40)), encoded(photo(60, 60, seed=1), optimize=True)
    bare = without_tables(plain)
    decoder = NativeDecoder(Resize((40, 50)))
    alone = decoded(decoder, [plain], share_of)[0]
    after_others = decoded(decoder, [tuned, bare, tuned, bare], share_of)
    assert np.array_equal(after_others[1], alone)
    assert np.array_equal(after_others[3], alone)


@pytest.mark.parametrize("grey", [False, True])
def test_a_scan_broken_above_the_last_needed_row_is_refused(
    grey: bool, photo: Any, encoded: Any, share_of: Any
) -> None:
    image = photo(160, 120).convert("L" if grey else "RGB")
    whole = encoded(image, restart_marker_blocks=2)
    scan = whole.index(b"\xff\xda") + 14
    lost_interval = whole.index(b"\xff\xd1", scan)
    broken = {
        "its scan ends early": whole[: len(whole) // 2].rstrip(b"\xff") + b"\xff\xd9",
        "premature end of data segment": whole[:scan] + whole[lost_interval:],
        "no end-of-image marker": whole[:-2],
    }
    out = np.full((3, 20, 20, 3), 9, np.uint8)
    faults = NativeDecoder(Resize((20, 20))).decode(share_of(list(broken.values()), out))
    assert [fault.row for fault in faults] == [0, 1, 2]
    for fault, reason in zip(faults, broken, strict=True):
        assert reason in fault.reason
    assert not out.any()


def test_a_harmless_warning_changes_nothing(photo: Any, encoded: Any, share_of: Any) -> None:
    data = encoded(photo(50, 40))
    stray = data[:-2] + b"\0\0\0" + data[-2:]
    decoder = NativeDecoder(Resize((20, 20)))
    assert np.array_equal(*decoded(decoder, [data, stray], share_of))


@pytest.mark.parametrize(
    ("marker", "patch", "reason"),
    [
        (b"\xff\xc0", (4, 12), "broken JPEG: Unsupported JPEG data precision 12|12 bits a sample"),
        (b"\xff\xc0", (1, 0xC3), "broken JPEG: "),
        (b"\xff\xc0", (9, 2), "broken JPEG: .*marker length|2 colour components"),
    ],
)
def test_kinds_that_cannot_be_decoded_are_named(
    marker: bytes, patch: tuple[int, int], reason: str, photo: Any, encoded: Any, share_of: Any
) -> None:
    data = bytearray(encoded(photo(20, 20)))
    data[data.index(marker) + patch[0]] = patch[1]
    out = np.full((1, 8, 8, 3), 7, np.uint8)
    (fault,) = NativeDecoder(Resize((8, 8))).decode(share_of([bytes(data)], out))
    assert re.search(reason, fault.reason)
    assert not out.any()


def test_an_abort_word_is_seen_within_a_call(photo: Any, encoded: Any, share_of: Any) -> None:
    data, count = encoded(photo(600, 600)), 3000
    decoder = NativeDecoder(Resize((16, 16)))
    abort = AbortWord()
    out = np.full((count, 16, 16, 3), 77, np.uint8)
    rows = np.arange(count)
    whole = share_of([data], out, abort=abort)
    whole = replace(
        whole,
        offsets=np.zeros(count, np.int64),
        lengths=np.full(count, len(data)),
        samples=rows,
        rows=rows,
    )
    faults: list[Any] = []
    worker = threading.Thread(target=lambda: faults.extend(decoder.decode(whole)))
    worker.start()
    while (out[0] == 77).all():
        assert worker.is_alive()
    abort.set()
    worker.join()
    untouched = (out == 77).all(axis=(1, 2, 3))
    assert not faults
    assert 0 < untouched.sum() < count
    assert (np.diff(untouched.astype(int)) >= 0).all(), "in order, and none after the abort"


@pytest.mark.parametrize("flag", [threading.Event(), AbortWord()])
def test_an_abort_before_the_call_leaves_all_rows(
    flag: Any, photo: Any, encoded: Any, share_of: Any
) -> None:
    flag.set()
    out = np.full((2, 8, 8, 3), 77, np.uint8)
    data = [encoded(photo(20, 20)), encoded(photo(20, 20), "PNG")]
    assert NativeDecoder(Resize((8, 8))).decode(share_of(data, out, abort=flag)) == []
    assert (out == 77).all()


def test_scratch_is_bounded_by_the_crop_and_comes_back(
    photo: Any, encoded: Any, share_of: Any
) -> None:
    scratch = native_kernel.open_scratch()
    task = native_kernel.Task((Resize((16, 16)),), (0,), (16, 16), None, PictureLimits())
    wide, small = encoded(Image.new("RGB", (60_000, 200))), encoded(photo(300, 200))
    kept = []
    for data in (small, wide, small):
        share = share_of([data], np.zeros((1, 16, 16, 3), np.uint8))
        status, _, _ = native_kernel.decode_share(scratch, task, share, None)
        assert status.tolist() == [native_kernel.lib.SL_DECODED]
        kept.append(native_kernel.scratch_bytes(scratch))
    assert kept[0] < 64 << 10
    assert kept[1] == 0
    assert kept[2] == kept[0]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_float_rows_of_bad_pictures_are_zero(dtype: Any, share_of: Any) -> None:
    pixel_format = PixelFormat(dtype, (0.5, 0.5, 0.5), None)
    out = np.full((2, 8, 8, 3), 7, pixel_format.numpy_dtype)
    decoder = NativeDecoder(Resize((8, 8)), pixel_format)
    assert len(decoder.decode(share_of([b"\xff\xd8\xff\xe0", b"nothing"], out))) == 2
    assert not out.any()


@pytest.mark.parametrize("progressive", [False, True])
def test_random_damage_ends_in_rows_or_faults(
    progressive: bool, photo: Any, encoded: Any, share_of: Any
) -> None:
    data = encoded(photo(90, 70), progressive=progressive, restart_marker_blocks=5)
    draw = random.Random(progressive)
    damaged = []
    for _ in range(300):
        copy = bytearray(data)
        for _ in range(draw.randint(1, 4)):
            copy[draw.randrange(len(copy))] = draw.randrange(256)
        damaged.append(bytes(copy[: draw.randint(len(copy) // 2, 2 * len(copy))]))
    out = np.full((300, 24, 24, 3), 7, np.uint8)
    decoder = NativeDecoder(RandomResizedCrop(24, flip=0.5), limits=PictureLimits(100_000))
    faults = decoder.decode(share_of(damaged, out))
    assert 0 < len(faults) < 300
    assert not out[[fault.row for fault in faults]].any()


def test_a_simd_that_no_processor_has_is_refused() -> None:
    with pytest.raises(ConfigError, match="no simd 'mmx'"):
        NativeDecoder(CenterCrop(8), simd="mmx")


def test_the_whole_picture_is_pillows(photo: Any, encoded: Any, decode_picture: Any) -> None:
    data = encoded(photo(123, 77), subsampling="4:2:0")
    assert np.array_equal(decode_picture(data), np.asarray(Image.open(io.BytesIO(data))))

"""Shares of batches, by each decoder: what is written where, and what becomes of a bad picture."""

from __future__ import annotations

import io
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from streamloader.decode import (
    CenterCrop,
    Compose,
    Decoder,
    PictureLimits,
    PillowDecoder,
    PixelFormat,
    RandomResizedCrop,
    Resize,
    RowFault,
    Share,
    WorkerPool,
    plan_crops,
)
from streamloader.decode import picture as picture_module
from streamloader.errors import ConfigError
from streamloader.monitor import Counters

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.fixture(scope="module")
def pictures(photo: Any, encoded: Any) -> list[bytes]:
    """40 pictures of many sizes: more than are planned at once."""
    kinds = ["JPEG", "JPEG", "PNG", "WEBP"]
    return [encoded(photo(30 + i, 70 - i, seed=i), kinds[i % len(kinds)]) for i in range(40)]


def by_pillow(data: bytes, box: Any, flip: bool, width: int, height: int) -> npt.NDArray[np.uint8]:
    image = Image.open(io.BytesIO(data)).convert("RGB")
    image = image.resize((width, height), Image.Resampling.BILINEAR, box=tuple(box))
    if flip:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.asarray(image)


@pytest.mark.parametrize(
    "spec",
    [
        RandomResizedCrop((24, 20), flip=0.5),
        Compose([Resize(32), CenterCrop(28)]),
        Resize((16, 48)),
        CenterCrop(64),
    ],
)
def test_pixels_are_pillows_own_resize_of_the_planned_box(
    spec: Any, pictures: list[bytes], share_of: Any
) -> None:
    decoder = PillowDecoder(spec)
    out = np.full((45, decoder.height, decoder.width, 3), 99, np.uint8)
    rows = np.arange(40)[::-1] + 3
    assert decoder.decode(share_of(pictures, out, rows=rows, samples=rows * 10)) == []
    sizes = np.array([Image.open(io.BytesIO(data)).size for data in pictures])
    plan = plan_crops(spec, sizes[:, 0], sizes[:, 1], seed=7, epoch=3, samples=rows * 10)
    for place, data in enumerate(pictures):
        want = by_pillow(data, plan.boxes[place], plan.flips[place], plan.width, plan.height)
        assert np.array_equal(out[rows[place]], want)
    assert (out[:3] == 99).all(), "rows of others stay untouched"
    assert (out[43:] == 99).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_float_pixels_are_the_normalised_uint8_pixels(
    decoder_class: Any, dtype: Any, pictures: list[bytes], share_of: Any
) -> None:
    spec = RandomResizedCrop(16, flip=0.5)
    pixels = np.zeros((4, 16, 16, 3), np.uint8)
    decoder_class(spec).decode(share_of(pictures[:4], pixels))
    pixel_format = PixelFormat(dtype, MEAN, STD)
    out = np.zeros(pixels.shape, pixel_format.numpy_dtype)
    assert decoder_class(spec, pixel_format).decode(share_of(pictures[:4], out)) == []
    want = (pixels.astype(np.float32) / np.float32(255) - np.float32(MEAN)) / np.float32(STD)
    if dtype == "bfloat16":
        # To nearest: at most half a unit in the eighth bit, of the float32 the bits stand for.
        got = (out.astype(np.uint32) << 16).view(np.float32)
        assert (np.abs(got - want) <= np.abs(want) * 2.0**-8).all()
    else:
        assert np.array_equal(out, want.astype(dtype))


class DecodeJob:
    """A batch whose rows are dealt to shares, as the loader deals them."""

    def __init__(self, decoder: Decoder, whole: Share, num_shares: int) -> None:
        self.num_shares = num_shares
        self.faults: list[RowFault] = []
        self.finished = threading.Event()
        self.error: BaseException | None = None
        self._decoder = decoder
        self._whole = whole

    def run(self, share_no: int) -> None:
        mine = slice(share_no, None, self.num_shares)
        whole = self._whole
        share = Share(
            data=whole.data,
            offsets=whole.offsets[mine],
            lengths=whole.lengths[mine],
            samples=whole.samples[mine],
            rows=whole.rows[mine],
            out=whole.out,
            seed=whole.seed,
            epoch=whole.epoch,
        )
        self.faults += self._decoder.decode(share)

    def done(self) -> None:
        self.finished.set()

    def failed(self, error: BaseException) -> None:
        self.error = error
        self.finished.set()


def test_bytes_do_not_depend_on_workers_or_on_the_split(
    decoder_class: Any, pictures: list[bytes], share_of: Any
) -> None:
    decoder = decoder_class(RandomResizedCrop(24, flip=0.5), PixelFormat("float16", MEAN, STD))
    data = [*pictures[:7], b"no picture", *pictures[8:]]
    seen = []
    for workers, num_shares in [(1, 1), (2, 2), (4, 4), (16, 16), (4, 7), (3, 40)]:
        out = np.full((40, 24, 24, 3), 5, np.float16)
        job = DecodeJob(decoder, share_of(data, out), num_shares)
        with WorkerPool(workers) as pool:
            pool.submit(job)
            assert job.finished.wait(30)
        assert job.error is None
        assert [fault.row for fault in job.faults] == [7]
        seen.append(out.tobytes())
    assert len(set(seen)) == 1


def test_a_bad_picture_is_reported_and_its_row_is_zero(
    decoder_class: Any, pictures: list[bytes], share_of: Any
) -> None:
    bad = [b"", b"<html>", pictures[0][: len(pictures[0]) // 2], pictures[2][:-40], b"\xff\xd8\xff"]
    data = [*bad, *pictures[:3]]
    decoder = decoder_class(Resize((8, 8)))
    out = np.full((8, 8, 8, 3), 77, np.uint8)
    faults = decoder.decode(share_of(data, out, samples=np.arange(8) + 100))
    assert sorted((fault.row, fault.sample) for fault in faults) == [(i, 100 + i) for i in range(5)]
    assert all(fault.reason for fault in faults)
    assert (out[:5] == 0).all()
    alone = np.empty((3, 8, 8, 3), np.uint8)
    decoder.decode(share_of(pictures[:3], alone))
    assert np.array_equal(out[5:], alone)


def test_every_hostile_picture_ends_as_expected_in_a_share(
    decoder_class: Any, expected: dict[str, Any], hostile_images: Path, share_of: Any
) -> None:
    names = sorted(expected)
    data = [(hostile_images / name).read_bytes() for name in names]
    out = np.full((len(names), 32, 48, 3), 11, np.uint8)
    faults = decoder_class(Resize((32, 48))).decode(share_of(data, out))
    refused = {names[fault.row]: fault for fault in faults}
    assert set(refused) == {name for name in names if expected[name]["outcome"] == "reject"}
    for row, name in enumerate(names):
        want = expected[name]
        if name in refused:
            assert refused[name].sample == row
            assert (out[row] == 0).all()
        elif (want["width"], want["height"]) == (48, 32):
            got = out[row].reshape(-1, 3).mean(axis=0)
            assert got == pytest.approx(want["mean_rgb"], abs=want["tol"])


def test_the_pixel_limit_of_the_decoder_counts(
    decoder_class: Any, pictures: list[bytes], share_of: Any
) -> None:
    out = np.empty((1, 4, 4, 3), np.uint8)
    faults = decoder_class(Resize((4, 4)), limits=PictureLimits(2099)).decode(
        share_of(pictures[:1], out)
    )
    assert [(fault.row, fault.sample) for fault in faults] == [(0, 0)]
    assert "claims 30x70 pixels, more than max_pixels 2099" in faults[0].reason


@pytest.mark.parametrize("as_event", [True, False])
def test_an_abort_is_seen_before_the_next_picture(
    as_event: bool, pictures: list[bytes], share_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = threading.Event()
    loaded = []
    load = picture_module.load_rgb

    def load_three(picture: Any) -> Image.Image:
        loaded.append(picture)
        if len(loaded) == 3:
            stop.set()
        return load(picture)

    monkeypatch.setattr("streamloader.decode.pillow_decoder.load_rgb", load_three)
    out = np.full((40, 8, 8, 3), 77, np.uint8)
    share = share_of(pictures, out, abort=stop if as_event else stop.is_set)
    assert PillowDecoder(Resize((8, 8))).decode(share) == []
    assert len(loaded) == 3
    assert (out[3:] == 77).all()


def test_one_picture_at_a_time_has_its_pixels_in_memory(
    pictures: list[bytes], share_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[weakref.ref[Any]] = []
    load = picture_module.load_rgb

    def load_alone(picture: Any) -> Image.Image:
        assert not any(image() for image in decoded), "the one before was freed"
        decoded.append(weakref.ref(picture.image))
        return load(picture)

    monkeypatch.setattr("streamloader.decode.pillow_decoder.load_rgb", load_alone)
    out = np.empty((40, 8, 8, 3), np.uint8)
    assert PillowDecoder(Resize((8, 8))).decode(share_of(pictures, out)) == []
    assert len(decoded) == 40


def test_want_of_memory_is_not_blamed_on_the_picture(
    pictures: list[bytes], share_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(picture: Any) -> Image.Image:
        raise MemoryError

    monkeypatch.setattr("streamloader.decode.pillow_decoder.load_rgb", load)
    out = np.empty((1, 8, 8, 3), np.uint8)
    with pytest.raises(MemoryError) as caught:
        PillowDecoder(Resize((8, 8))).decode(share_of(pictures[:1], out))
    assert "sample 0, 30x70 pixels" in caught.value.__notes__[0]


def test_pictures_are_counted(decoder_class: Any, pictures: list[bytes], share_of: Any) -> None:
    counters = Counters()
    out = np.empty((3, 8, 8, 3), np.uint8)
    decoder = decoder_class(Resize((8, 8)), counters=counters)
    decoder.decode(share_of([pictures[0], b"bad", pictures[1]], out))
    assert counters.count("decode.pictures") == 3


def test_an_empty_share_is_nothing_to_do(decoder_class: Any, share_of: Any) -> None:
    out = np.full((2, 8, 8, 3), 5, np.uint8)
    assert decoder_class(Resize((8, 8))).decode(share_of([], out)) == []
    assert (out == 5).all()


@pytest.mark.parametrize(
    "out",
    [
        np.empty((2, 8, 8, 3), np.float32),
        np.empty((2, 8, 9, 3), np.uint8),
        np.empty((2, 3, 8, 8), np.uint8),
        np.empty((2, 8, 8), np.uint8),
    ],
)
def test_a_batch_of_another_layout_is_refused(
    decoder_class: Any, out: npt.NDArray[Any], pictures: list[bytes], share_of: Any
) -> None:
    with pytest.raises(ConfigError, match=r"fills batches \[B, 8, 8, 3\] of uint8, got"):
        decoder_class(Resize((8, 8))).decode(share_of(pictures[:1], out))


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("lengths", [1]),
        ("samples", [1, 2, 3]),
        ("offsets", [-1, 0]),
        ("lengths", [-1, 0]),
        ("lengths", [1, 10**6]),
        ("rows", [0, 2]),
        ("rows", [-1, 0]),
    ],
)
def test_a_share_that_reaches_outside_its_buffers_is_refused(
    field: str, values: list[int], pictures: list[bytes], share_of: Any
) -> None:
    out = np.empty((2, 8, 8, 3), np.uint8)
    with pytest.raises(ConfigError, match="got "):
        share_of(pictures[:2], out, **{field: np.array(values, np.int64)})


def test_a_read_only_batch_is_refused(
    decoder_class: Any, pictures: list[bytes], share_of: Any
) -> None:
    out = np.zeros((1, 8, 8, 3), np.uint8)
    out.flags.writeable = False
    with pytest.raises(ConfigError, match="must be writable"):
        decoder_class(Resize((8, 8))).decode(share_of(pictures[:1], out))


def test_a_batch_whose_rows_are_not_packed_is_filled_too(
    decoder_class: Any, pictures: list[bytes], share_of: Any
) -> None:
    decoder = decoder_class(Resize((8, 8)))
    packed = np.zeros((5, 8, 8, 3), np.uint8)
    decoder.decode(share_of(pictures[:4], packed))
    planes = np.zeros((5, 3, 8, 8), np.uint8)
    strided = np.zeros((10, 8, 8, 3), np.uint8)
    for out in (planes.transpose(0, 2, 3, 1), strided[::2]):
        assert decoder.decode(share_of(pictures[:4], out)) == []
        assert np.array_equal(out, packed)
    assert not strided[1::2].any()


def test_more_scans_than_allowed_are_refused_before_they_cost_time(
    decoder_class: Any, photo: Any, encoded: Any, share_of: Any
) -> None:
    data = encoded(photo(400, 400), progressive=True)
    last_scan = data.rindex(b"\xff\xda")
    many = data[:-2] + data[last_scan:-2] * 1000 + data[-2:]
    out = np.zeros((2, 8, 8, 3), np.uint8)
    start_s = time.thread_time()
    faults = decoder_class(Resize((8, 8))).decode(share_of([data, many], out))
    assert time.thread_time() - start_s < 0.5
    assert [(fault.row, fault.reason) for fault in faults] == [
        (
            1,
            "JPEG with more than 100 scans, each a pass over the picture; convert it, or raise "
            "max_scans",
        )
    ]


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_a_picture_with_too_many_scans_passes_where_the_limit_is_raised(
    decoder_class: Any, mode: str, photo: Any, encoded: Any, share_of: Any
) -> None:
    data = encoded(photo(60, 40).convert(mode), progressive=True)
    scans = data.count(b"\xff\xda")
    assert scans == {"RGB": 10, "L": 6}[mode]
    out = np.zeros((1, 40, 60, 3), np.uint8)
    share = share_of([data], out)
    limits = PictureLimits(max_scans=scans - 1)
    (fault,) = decoder_class(Resize((40, 60)), limits=limits).decode(share)
    assert fault.reason.startswith(f"JPEG with more than {scans - 1} scans, each a pass over")
    assert not out.any()
    limits = PictureLimits(max_scans=scans)
    assert decoder_class(Resize((40, 60)), limits=limits).decode(share) == []
    assert np.array_equal(out[0], np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))


def test_a_transform_without_one_output_size_is_refused_at_once(decoder_class: Any) -> None:
    with pytest.raises(ConfigError, match="add CenterCrop"):
        decoder_class(Resize(256))


@pytest.mark.parametrize("name", ["max_pixels", "max_scans"])
@pytest.mark.parametrize("value", [0, -1, 2**63, 1.5, True, "9"])
def test_limits_that_are_no_whole_numbers_from_one_up_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"{name} must be a whole number .*, got {value!r}$"):
        PictureLimits(**{name: value})

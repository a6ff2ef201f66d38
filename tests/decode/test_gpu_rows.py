"""Which pictures an engine may be given, where they lie, and the rows made of them."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from streamloader.decode import (
    CropPlan,
    PixelFormat,
    RandomResizedCrop,
    Share,
    native_is_built,
    plan_crops,
)
from streamloader.decode.gpu import (
    ROW_DTYPE,
    TABLE_WORDS,
    RowMaker,
    check_share,
    choose_engine_rows,
    is_engine_kind,
    plan_engine_batch,
    plan_pictures,
    stage_rows,
)
from streamloader.dts.pictures import read_picture_header
from streamloader.errors import ConfigError

torch = pytest.importorskip("torch")

EVERY_DEVICE = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
        ],
    ),
]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def photograph(width: int, height: int, seed: int = 0) -> Image.Image:
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (9, 11, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))
    noise = rng.integers(-20, 21, smooth.shape)
    return Image.fromarray(np.clip(smooth + noise, 0, 255).astype(np.uint8))


def jpeg(image: Image.Image, **options) -> bytes:
    out = io.BytesIO()
    image.save(out, "JPEG", **{"quality": 90, **options})
    return out.getvalue()


PLAIN = jpeg(photograph(100, 80))


def verdict(data: bytes, *, width: int = 100, height: int = 80, kind: int | None = None) -> bool:
    kind = read_picture_header(PLAIN).kind if kind is None else kind
    arena = np.frombuffer(b"\xff" * 7 + data + b"\xff" * 9, np.uint8)
    columns = np.array([width]), np.array([height]), np.array([kind], np.uint16)
    sound, crops = plan(arena, np.array([7]), np.array([len(data)]), columns, native=False)
    if native_is_built():
        there, same = plan(arena, np.array([7]), np.array([len(data)]), columns)
        assert np.array_equal(sound, there)
        assert np.array_equal(crops.boxes, same.boxes)
        assert np.array_equal(crops.flips, same.flips)
    return bool(sound[0])


def plan(data, offsets, lengths, columns, native=None):
    count = len(offsets)
    share = Share(
        data=data,
        offsets=offsets,
        lengths=lengths,
        samples=np.arange(count),
        rows=np.arange(count),
        out=np.empty((count, 1)),
        seed=1,
        epoch=2,
    )
    return plan_pictures(RandomResizedCrop(32, flip=0.5), share, *columns, native=native)


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize("options", [{}, {"exif": Image.Exif().tobytes()}, {"comment": b"x" * 999}])
def test_a_plain_jpeg_is_for_the_engine(subsampling: str, options) -> None:
    data = jpeg(photograph(100, 80), subsampling=subsampling, **options)
    kind = read_picture_header(data).kind
    assert is_engine_kind(np.array([kind], np.uint16))[0]
    assert verdict(data, kind=kind)


@pytest.mark.parametrize(
    "data",
    [
        jpeg(photograph(100, 80), progressive=True),
        jpeg(photograph(100, 80).convert("L")),
        jpeg(photograph(100, 80).convert("CMYK")),
    ],
    ids=["progressive", "grey", "CMYK"],
)
def test_what_no_engine_decodes_is_seen_in_the_kind_and_in_the_bytes(data: bytes) -> None:
    assert not is_engine_kind(np.array([read_picture_header(data).kind], np.uint16))[0]
    assert not verdict(data)


def test_a_png_is_not_for_the_engine() -> None:
    out = io.BytesIO()
    photograph(100, 80).save(out, "PNG")
    assert not is_engine_kind(np.array([read_picture_header(out.getvalue()).kind], np.uint16))[0]
    assert not verdict(out.getvalue())


def changed(at: int, *values: int) -> bytes:
    data = bytearray(PLAIN)
    data[at : at + len(values)] = bytes(values)
    return bytes(data)


def segment(code: int) -> int:
    return PLAIN.index(bytes([0xFF, code]))


def without(code: int) -> bytes:
    data = PLAIN
    while (at := data.find(bytes([0xFF, code]), 0, data.index(b"\xff\xda"))) >= 0:
        data = data[:at] + data[at + 2 + int.from_bytes(data[at + 2 : at + 4], "big") :]
    return data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        PLAIN[:1],
        PLAIN[:-1],
        PLAIN[: len(PLAIN) // 2],
        PLAIN + b"\0",
        changed(0, 0),
        without(0xDB),
        without(0xC4),
        without(0xC0),
        changed(segment(0xC0) + 2, 0xFF, 0xFF),
        changed(segment(0xC0) + 4, 12),
        changed(segment(0xC0) + 5, 0xFF, 0xFF),
        changed(segment(0xC0) + 10, *b"R"),
        changed(segment(0xC0) + 11, 0x41),
        changed(segment(0xC0) + 1, 0xC1),
        changed(segment(0xDA) + 4, 1),
        changed(segment(0xDA) + 2, 0, 1),
        changed(segment(0xDB) + 2, 0, 0),
    ],
)
def test_a_header_that_is_odd_in_any_way_is_left_to_the_cpu(data: bytes) -> None:
    if data == changed(segment(0xC0) + 10, *b"R"):
        data = data.replace(b"R", b"R", 1)
        frame = bytearray(data)
        start = segment(0xC0)
        frame[start + 13], frame[start + 16] = b"GB"
        data = bytes(frame)
    assert not verdict(data)


def test_a_size_that_is_not_that_of_the_columns_is_left_to_the_cpu() -> None:
    assert verdict(PLAIN)
    assert not verdict(PLAIN, width=99)
    assert not verdict(PLAIN, height=81)


@pytest.mark.parametrize("transform", [0, 2])
def test_adobe_colours_that_are_not_ycbcr_are_left_to_the_cpu(transform: int) -> None:
    adobe = b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00"
    assert verdict(PLAIN[:2] + adobe + b"\x01" + PLAIN[2:])
    assert not verdict(PLAIN[:2] + adobe + bytes([transform]) + PLAIN[2:])


@pytest.mark.slow
def test_no_bytes_make_the_check_read_outside_or_pass_another_size() -> None:
    rng = np.random.default_rng(0)
    head = PLAIN.index(b"\xff\xda") + 14
    kind = read_picture_header(PLAIN).kind
    copies = np.tile(np.frombuffer(PLAIN, np.uint8), (20_000, 1))
    for row in copies:
        row[rng.integers(0, head, 3)] = rng.integers(0, 256, 3)
    count, length = copies.shape
    places = (copies.reshape(-1), np.arange(count) * length, np.full(count, length))
    columns = (np.full(count, 100), np.full(count, 80), np.full(count, kind, np.uint16))
    sound, crops = plan(*places, columns, native=False)
    if native_is_built():
        there, same = plan(*places, columns)
        assert np.array_equal(sound, there)
        assert np.array_equal(crops.boxes, same.boxes)
    assert 0 < sound.sum() < count
    for row in copies[sound]:
        header = read_picture_header(row.tobytes())
        assert (header.width, header.height) == (100, 80)


def choose(count: int = 4000, share: float = 1.0, **columns):
    kind = read_picture_header(PLAIN).kind
    options = {"max_pixels": 10**6, "max_bytes": 5000, "slab_bytes": 1 << 22}
    return choose_engine_rows(
        columns.get("kinds", np.full(count, kind, np.uint16)),
        columns.get("widths", np.full(count, 100)),
        columns.get("heights", np.full(count, 80)),
        np.arange(count, dtype=np.int64),
        columns.get("lengths", np.full(count, 5000)),
        share=share,
        **options,
    )


@pytest.mark.parametrize("share", [0.0, 0.25, 0.6, 1.0])
def test_the_share_is_kept_and_belongs_to_the_sample(share: float) -> None:
    engine, unable = choose(share=share)
    assert engine.mean() == pytest.approx(share, abs=0.03)
    assert not unable.any()
    assert np.array_equal(choose(100, share=share)[0], engine[:100])


@pytest.mark.parametrize(
    "columns",
    [
        {"widths": np.array([63])},
        {"heights": np.array([20_000])},
        {"widths": np.array([2_000]), "heights": np.array([1_000])},
        {"kinds": np.array([0], np.uint16)},
        {"lengths": np.array([5001])},
    ],
)
def test_what_an_engine_cannot_take_goes_to_the_cpu_and_is_counted(columns) -> None:
    engine, unable = choose(1, **columns)
    assert not engine[0]
    assert unable[0]


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan"), True, "0.5"])
def test_a_share_outside_0_to_1_is_refused(share) -> None:
    with pytest.raises(ConfigError, match="gpu_decode_share"):
        check_share(share)


def test_chunks_fit_their_slab_and_hold_every_picture_once() -> None:
    rng = np.random.default_rng(1)
    count, slab_bytes = 200, 700_000
    widths, heights = rng.integers(64, 480, (2, count))
    table = np.zeros(count, ROW_DTYPE)
    crops = CropPlan(np.tile([0.0, 0.0, 9.0, 9.0], (count, 1)), np.zeros(count, bool), 32, 32)
    rows = rng.permutation(count)
    batch = plan_engine_batch(
        table, rows, rows * 10, rows + 5, widths, heights, crops, slab_bytes=slab_bytes
    )
    assert batch.bounds[0] == 0
    assert batch.bounds[-1] == count
    for number, pictures in batch.chunks():
        starts = batch.images["channel"][pictures, 0].astype(np.int64)
        ends = starts + widths[pictures] * heights[pictures] * 3
        assert starts[0] == 0
        assert ends[-1] <= slab_bytes
        assert (starts[1:] >= ends[:-1]).all()
        assert (starts % 256 == 0).all()
        assert (table["chunk"][rows[pictures]] == number).all()
        assert np.array_equal(table["offset"][rows[pictures]], starts)


def test_a_batch_without_pictures_for_the_engine_has_no_chunk() -> None:
    empty = np.empty(0, np.int64)
    crops = CropPlan(np.empty((0, 4)), np.empty(0, bool), 32, 32)
    batch = plan_engine_batch(
        np.zeros(4, ROW_DTYPE), empty, empty, empty, empty, empty, crops, slab_bytes=100
    )
    assert batch.num_chunks == 0


def rows_of(
    pictures: list[Image.Image],
    crops: CropPlan,
    device: str,
    pixel_format: PixelFormat,
    *,
    triton: bool | None = None,
):
    """Rows made of decoded pictures: the first half of a batch; nothing and staged are the rest."""
    count = len(pictures)
    widths, heights = (np.array(side) for side in zip(*(p.size for p in pictures), strict=True))
    table = np.zeros(count + 2, ROW_DTYPE)
    batch = plan_engine_batch(
        table,
        np.arange(count),
        np.arange(count),
        np.arange(count),
        widths,
        heights,
        crops,
        slab_bytes=1 << 20,
    )
    stage_rows(table, np.array([count + 1]), np.array([1]))
    staged = torch.arange(2 * crops.height * crops.width * 3, dtype=torch.int64) % 251
    staged = staged.to(torch.uint8).view(2, crops.height, crops.width, 3).to(device)
    maker = RowMaker(device, (crops.height, crops.width), pixel_format, triton=triton)
    out = torch.full((count + 2, crops.height, crops.width, 3), 77, dtype=maker.bits_dtype)
    out = out.to(device)
    words = torch.from_numpy(table.view(np.int32).reshape(-1, TABLE_WORDS)).to(device)
    for number, chunk in batch.chunks():
        slab = torch.zeros(1 << 20, dtype=torch.uint8)
        for place in range(chunk.start, chunk.stop):
            pixels = torch.from_numpy(np.array(pictures[place]).reshape(-1))
            start = int(batch.images["channel"][place, 0])
            slab[start : start + len(pixels)] = pixels
        maker.make(words, staged, slab.to(device), out, number)
    return out.cpu(), staged.cpu(), batch.num_chunks


@pytest.mark.parametrize("device", EVERY_DEVICE)
@pytest.mark.parametrize("triton", [None, False])
@pytest.mark.parametrize("size", [(32, 32), (48, 40)])
def test_rows_are_those_of_pillow(device: str, triton, size) -> None:
    pictures = [photograph(70 + 37 * n, 64 + 23 * n, n) for n in range(12)]
    widths, heights = (np.array(side) for side in zip(*(p.size for p in pictures), strict=True))
    spec = RandomResizedCrop(size, flip=0.5)
    samples = np.arange(len(pictures), dtype=np.int64)
    crops = plan_crops(spec, widths, heights, seed=3, epoch=1, samples=samples)
    assert 0 < crops.flips.sum() < len(pictures)
    out, staged, chunks = rows_of(pictures, crops, device, PixelFormat(), triton=triton)
    assert chunks > 1
    for n, picture in enumerate(pictures):
        box = tuple(crops.boxes[n])
        wanted = picture.resize((size[1], size[0]), Image.Resampling.BILINEAR, box)
        if crops.flips[n]:
            wanted = wanted.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        difference = np.abs(out[n].numpy().astype(int) - np.asarray(wanted).astype(int))
        assert difference.max() <= 1
        assert (difference > 0).mean() < 0.04
    assert (out[-2] == 0).all()
    assert torch.equal(out[-1], staged[1])


@pytest.mark.parametrize("device", EVERY_DEVICE)
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
def test_float_rows_hold_the_values_of_the_cpu_path(device: str, name) -> None:
    pixel_format = PixelFormat(name, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
    pictures = [photograph(90, 80)]
    crops = CropPlan(np.array([[3.5, 2.0, 80.0, 70.25]]), np.zeros(1, bool), 24, 24)
    levels, staged, _ = rows_of(pictures, crops, device, PixelFormat())
    values, _, _ = rows_of(pictures, crops, device, pixel_format)
    tables = torch.from_numpy(pixel_format.tables().view(f"i{values.itemsize}"))
    for channel in range(3):
        for row in (0, 2):
            wanted = tables[channel][levels[row, :, :, channel].long()]
            assert torch.equal(values[row, :, :, channel], wanted)
    maker = RowMaker(device, (24, 24), pixel_format)
    out = torch.empty(staged.shape, dtype=maker.bits_dtype, device=device)
    maker.convert(staged.to(device), out)
    assert torch.equal(out[1].cpu(), values[2])

"""Masks and boxes get exactly the crop that their picture got."""

from __future__ import annotations

import io
import math
import re
import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import ExifTags, Image

from streamloader.decode import (
    AppliedCrops,
    CenterCrop,
    Compose,
    Joint,
    MaskDecoder,
    NativeDecoder,
    PictureLimits,
    PillowDecoder,
    RandomResizedCrop,
    Resize,
    Share,
    decode_jointly,
    move_boxes,
    output_size,
    plan_crops,
)
from streamloader.decode import mask as mask_module
from streamloader.decode import pillow_decoder as pillow_decoder_module
from streamloader.errors import ConfigError

SPEC = RandomResizedCrop((20, 24), flip=0.5)
SIZES = [(30 + 3 * i, 70 - 2 * i) for i in range(12)]


def values(width: int, height: int, kind: str) -> npt.NDArray[Any]:
    """Numbers that no interpolation gives back: every neighbour differs, zeros are rare."""
    numbers = np.random.default_rng(width * 1000 + height)
    limit = {"1": 2, "I;16": 65_536, "I": 2**31}.get(kind, 256)
    return numbers.integers(0, limit, (height, width))


def stored_mask(array: npt.NDArray[Any], kind: str) -> bytes:
    """A PNG, or a TIFF where PNG has no such mode, of the given mode of Pillow."""
    if kind in ("I;16", "I"):
        image = Image.fromarray(array.astype(np.uint16 if kind == "I;16" else np.int32))
    elif kind == "1":
        image = Image.fromarray((array * 255).astype(np.uint8)).convert("1")
    else:
        image = Image.fromarray(array.astype(np.uint8))
    if kind in ("P", "PA"):
        image.putpalette([(i * 7 + 3) % 256 for i in range(768)])
    if kind == "LA":
        image = Image.merge("LA", [image, Image.new("L", image.size, 9)])
    if kind == "PA":
        image = image.convert("PA")
    stream = io.BytesIO()
    image.save(stream, "TIFF" if kind in ("I", "PA") else "PNG")
    return stream.getvalue()


def crops_of(sizes: list[tuple[int, int]], spec: Any = SPEC) -> AppliedCrops:
    """What a decoder notes for pictures of these sizes in a share of the fixture."""
    widths, heights = np.array(sizes).T
    samples = np.arange(len(sizes))
    plan = plan_crops(spec, widths, heights, seed=7, epoch=3, samples=samples)
    crops = AppliedCrops.empty(len(sizes))
    crops.note(samples, widths, heights, plan)
    return crops


@pytest.mark.parametrize("joint", [Joint(SPEC, masks=["a", "b"], boxes=["c"]), Joint(SPEC)])
def test_a_joint_draws_what_its_spec_alone_draws(joint: Joint) -> None:
    assert output_size(joint) == output_size(SPEC)
    widths, heights = np.array(SIZES).T
    draw = {"seed": 7, "epoch": 3, "samples": np.arange(len(SIZES))}
    alone, jointly = (plan_crops(s, widths, heights, **draw) for s in (SPEC, joint))
    assert np.array_equal(alone.boxes, jointly.boxes)
    assert np.array_equal(alone.flips, jointly.flips)
    assert hash(joint) == hash(Joint(SPEC, masks=tuple(joint.masks), boxes=tuple(joint.boxes)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"spec": Resize(8)}, "add CenterCrop"),
        ({"spec": Joint(SPEC)}, "no Joint itself, got Joint"),
        ({"spec": None}, "a transform is .*got None"),
        ({"masks": "mask"}, "masks, a tuple of field names, got 'mask'"),
        ({"boxes": (3,)}, r"boxes, a tuple of field names, got \(3,\)"),
        ({"masks": ("m", "m")}, "each field once"),
        ({"masks": ("m",), "boxes": ("m",)}, r"both for \['m'\]"),
        ({"mask_dtype": "uint16"}, "mask_dtype, one of uint8, int32, got 'uint16'"),
    ],
)
def test_a_wrong_joint_is_refused_with_the_value(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Joint(**({"spec": SPEC} | arguments))


def test_a_joint_is_no_part_of_a_compose() -> None:
    with pytest.raises(ConfigError, match="Compose takes"):
        Compose([Joint(SPEC)])  # type: ignore[list-item]  # the mistake under test


def test_a_decoder_notes_the_crops_that_it_applied_and_gives_the_same_pixels(
    decoder_class: Any, photo: Any, encoded: Any, share_of: Any
) -> None:
    pictures = [encoded(photo(*size, seed=i)) for i, size in enumerate(SIZES)]
    pictures[4] = b"no picture"
    plain, noting = (np.zeros((15, 20, 24, 3), np.uint8) for _ in range(2))
    rows = np.arange(12) + 2
    decoder_class(SPEC).decode(share_of(pictures, plain, rows=rows))
    crops = AppliedCrops.empty(15)
    decoder_class(Joint(SPEC)).decode(share_of(pictures, noting, rows=rows, crops=crops))
    assert np.array_equal(plain, noting)
    want = crops_of(SIZES)
    good = np.arange(12) != 4
    assert np.array_equal(crops.sizes[rows][good], np.array(SIZES)[good])
    assert np.array_equal(crops.boxes[rows][good], want.boxes[good])
    assert np.array_equal(crops.flips[rows][good], want.flips[good])


def turned(image: Image.Image, orientation: int) -> bytes:
    """A JPEG whose EXIF asks viewers to turn it."""
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    stream = io.BytesIO()
    image.save(stream, "JPEG", exif=exif)
    return stream.getvalue()


@pytest.fixture(scope="module")
def mixed_pictures(photo: Any, encoded: Any) -> list[bytes]:
    """JPEGs with and without an orientation among other formats and broken ones."""
    kinds = ["JPEG", "PNG", "WEBP", "JPEG", "TIFF"]
    pictures = [encoded(photo(*size, seed=i), kinds[i % 5]) for i, size in enumerate(SIZES)]
    pictures += [turned(photo(41, 90, seed=i), orientation=i) for i in range(1, 9)]
    whole = encoded(photo(50, 60))
    pictures[2:2] = [whole[: len(whole) // 2], b"", whole[:-2], b"<html>", b"\xff\xd8\xff"]
    return [*pictures, encoded(photo(3000, 2000)), encoded(photo(1, 1)), whole[:60], whole]


@pytest.mark.parametrize(
    "spec",
    [
        SPEC,
        Compose([Resize(40), CenterCrop(32)]),
        Compose([RandomResizedCrop(50, flip=0.7), CenterCrop((20, 30))]),
        Compose([CenterCrop(45), RandomResizedCrop(8, ratio=(0.1, 9.0), flip=0.3)]),
        Resize((9, 120)),
        CenterCrop(80),
    ],
)
@pytest.mark.parametrize("abort", [None, threading.Event()])
@pytest.mark.usefixtures("native_built")
def test_both_decoders_note_the_same_crops(
    spec: Any, abort: Any, mixed_pictures: list[bytes], share_of: Any
) -> None:
    count = len(mixed_pictures)
    rows = np.random.default_rng(1).permutation(count + 4)[:count]
    noted, bad = [], []
    for kind in (NativeDecoder, PillowDecoder):
        crops = AppliedCrops.empty(count + 4)
        out = np.zeros((count + 4, *output_size(spec), 3), np.uint8)
        share = share_of(
            mixed_pictures, out, rows=rows, samples=rows * 31, crops=crops, abort=abort
        )
        bad.append({fault.row for fault in kind(Joint(spec)).decode(share)})
        noted.append(crops)
    assert bad[0] == bad[1]
    assert len(bad[0]) == 6
    good = [row for row in rows.tolist() if row not in bad[0]]
    for name in ("sizes", "boxes", "flips"):
        native, pillow = (getattr(crops, name)[good] for crops in noted)
        assert native.tobytes() == pillow.tobytes()
    unused = sorted(set(range(count + 4)) - set(rows.tolist()))
    assert not noted[0].sizes[unused].any(), "rows of others stay untouched"
    assert noted[0].boxes[good].any()


@pytest.mark.parametrize("spec", [SPEC, Compose([Resize(64), CenterCrop(56)]), Resize((60, 50))])
@pytest.mark.parametrize("scale", [1, 8])
def test_picture_mask_and_boxes_show_the_same_place(
    spec: Any, scale: int, decoder_class: Any, share_of: Any, encoded: Any
) -> None:
    """A white rectangle; at scale 8 the native decoder reads the picture coarser."""
    height, width = output_size(spec)
    numbers = np.random.default_rng(5)
    pictures, masks, boxes = [], [], []
    for _ in range(12):
        wide, high = (int(side) * scale for side in numbers.integers(90, 140, 2))
        x0, y0 = (int(side) * scale for side in numbers.integers(10, 40, 2))
        x1, y1 = x0 + 40 * scale, y0 + 45 * scale
        values = np.zeros((high, wide), np.uint8)
        values[y0:y1, x0:x1] = 255
        pictures.append(encoded(Image.fromarray(values).convert("RGB"), quality=95))
        masks.append(encoded(Image.fromarray(values // 51), "PNG"))
        boxes.append((x0, y0, x1, y1))
    pixels, mask = np.zeros((12, height, width, 3), np.uint8), np.zeros((12, height, width), "u1")
    crops = AppliedCrops.empty(12)
    faults = decode_jointly(
        {"image": share_of(pictures, pixels)},
        {"mask": share_of(masks, mask)},
        crops,
        picture_decoder=decoder_class(Joint(spec, masks=("mask",), boxes=("boxes",))),
        mask_decoder=MaskDecoder(height, width),
    )
    assert faults == {}
    moved = move_boxes(np.array(boxes, np.float64), np.arange(12), crops, height, width)
    seen = 0
    for row in range(12):
        x0, y0, x1, y1 = moved[row]
        across, down = np.arange(width) + 0.5, np.arange(height) + 0.5
        inside = ((x0 < across) & (across < x1)) & ((y0 < down) & (down < y1))[:, None]
        assert np.array_equal(mask[row], inside * np.uint8(5))
        # The filter makes edges soft: a pixel that lies wholly within or without is not in doubt.
        for sure, white in ((_shrunk(inside), True), (_shrunk(~inside), False)):
            bright = pixels[row, :, :, 0][sure] > 127
            assert (bright == white).all()
            seen += len(bright) * white
    assert seen > 1000


def _shrunk(area: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Without the pixels that touch another area."""
    padded = np.pad(area, 1, mode="edge")
    rows = padded[:-2] & padded[1:-1] & padded[2:]
    kept: npt.NDArray[np.bool_] = rows[:, :-2] & rows[:, 1:-1] & rows[:, 2:]
    return kept


@pytest.mark.parametrize("kind", ["L", "P", "1", "LA", "PA", "I;16", "I"])
@pytest.mark.parametrize(
    "spec", [SPEC, Compose([Resize(40), CenterCrop(32)]), Resize((9, 120)), CenterCrop(80)]
)
def test_a_mask_is_pillows_nearest_resize_of_the_stored_values(
    kind: str, spec: Any, share_of: Any
) -> None:
    height, width = output_size(spec)
    dtype = "int32" if kind.startswith("I") else "uint8"
    arrays = [values(*size, kind) for size in SIZES]
    crops = crops_of(SIZES, spec)
    out = np.full((12, height, width), 77, dtype)
    share = share_of([stored_mask(array, kind) for array in arrays], out, crops=crops)
    assert MaskDecoder(height, width, dtype).decode(share) == []  # type: ignore[arg-type]  # a str
    for row, array in enumerate(arrays):
        image = Image.fromarray(array.astype(np.int32 if kind == "I" else np.uint16))
        if not kind.startswith("I"):
            image = Image.fromarray(array.astype(np.uint8))
        box = tuple(crops.boxes[row])
        want = np.asarray(image.resize((width, height), Image.Resampling.NEAREST, box))
        assert np.array_equal(out[row], want[:, ::-1] if crops.flips[row] else want)
    assert crops.flips.any() == (spec is SPEC)


@given(st.data())
def test_a_mask_is_sampled_at_the_centres_of_its_pixels(data: Any) -> None:
    width, height = (data.draw(st.integers(1, 40)) for _ in range(2))
    edges = [
        sorted(data.draw(st.floats(0, 1)) * side for _ in range(2)) for side in (width, height)
    ]
    if min(edges[0][1] - edges[0][0], edges[1][1] - edges[1][0]) < 1e-3:
        return
    crops = AppliedCrops.empty(1)
    crops.sizes[0] = (width, height)
    crops.boxes[0] = (edges[0][0], edges[1][0], edges[0][1], edges[1][1])
    crops.flips[0] = data.draw(st.booleans())
    array = values(width, height, "L")
    out = np.zeros((1, 7, 9), np.uint8)
    decoder = MaskDecoder(7, 9)
    assert decoder.decode(one_mask(stored_mask(array, "L"), out, crops)) == []
    for y in range(7):
        for x in range(9):
            column = 8 - x if crops.flips[0] else x
            at_x = edges[0][0] + (column + 0.5) * (edges[0][1] - edges[0][0]) / 9
            at_y = edges[1][0] + (y + 0.5) * (edges[1][1] - edges[1][0]) / 7
            if max(abs(at_x - round(at_x)), abs(at_y - round(at_y))) < 1e-9:
                continue  # on the line between two pixels either is nearest
            near = {
                array[math.floor(at_y + dy), math.floor(at_x + dx)]
                for dx in (-1e-9, 1e-9)
                for dy in (-1e-9, 1e-9)
                if 0 <= at_x + dx < width and 0 <= at_y + dy < height
            }
            assert out[0, y, x] in near


def one_mask(data: bytes, out: npt.NDArray[Any], crops: AppliedCrops) -> Any:
    first = np.zeros(1, np.int64)
    lengths = np.array([len(data)])
    return Share(memoryview(data), first, lengths, first, first, out, seed=0, epoch=0, crops=crops)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (stored_mask(values(30, 70, "I;16"), "I;16"), "more than 8 bits.*mask_dtype='int32'"),
        (stored_mask(values(30, 71, "L"), "L"), "30x71 pixels, where the picture .* has 30x70"),
        (stored_mask(values(30, 70, "L"), "L")[:-30], "PNG"),
        (b"<html>", "HTML page"),
    ],
)
def test_a_mask_that_cannot_be_used_is_a_fault_with_its_reason(data: bytes, reason: str) -> None:
    out = np.full((1, 20, 24), 77, np.uint8)
    (fault,) = MaskDecoder(20, 24).decode(one_mask(data, out, crops_of([(30, 70)])))
    assert (fault.row, fault.sample) == (0, 0)
    assert re.search(reason, fault.reason)
    assert (out == 0).all()


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_a_coloured_mask_is_a_fault(kind: str, photo: Any, encoded: Any) -> None:
    out = np.full((1, 20, 24), 77, np.uint8)
    share = one_mask(encoded(photo(30, 70), kind), out, crops_of([(30, 70)]))
    (fault,) = MaskDecoder(20, 24).decode(share)
    assert fault.reason.startswith(f"{kind} with R-G-B pixels, as a mask")


def test_the_limits_hold_for_masks_too(photo: Any, encoded: Any) -> None:
    data = encoded(photo(30, 70).convert("L"), progressive=True)
    out, crops = np.zeros((1, 20, 24), np.uint8), crops_of([(30, 70)])
    for limits, reason in (
        (PictureLimits(max_pixels=2099), "claims 30x70 pixels, more than max_pixels 2099"),
        (PictureLimits(max_scans=5), "more than 5 scans"),
    ):
        (fault,) = MaskDecoder(20, 24, limits=limits).decode(one_mask(data, out, crops))
        assert reason in fault.reason
    limits = PictureLimits(max_pixels=2100, max_scans=6)
    assert MaskDecoder(20, 24, limits=limits).decode(one_mask(data, out, crops)) == []


def test_a_batch_of_another_layout_or_without_crops_is_refused(share_of: Any) -> None:
    data = [stored_mask(values(30, 70, "L"), "L")]
    crops = crops_of([(30, 70)])
    for out in (np.zeros((1, 20, 24), np.int32), np.zeros((1, 20, 24, 3), np.uint8)):
        with pytest.raises(ConfigError, match=r"fill batches \[B, 20, 24\] of uint8, got"):
            MaskDecoder(20, 24).decode(share_of(data, out, crops=crops))
    with pytest.raises(ConfigError, match="the share needs crops"):
        MaskDecoder(20, 24).decode(share_of(data, np.zeros((1, 20, 24), np.uint8)))
    with pytest.raises(ConfigError, match="each of the 2 rows of its batch, got 1"):
        share_of(data, np.zeros((2, 20, 24), np.uint8), crops=crops)


def test_want_of_memory_is_not_blamed_on_the_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(picture: Any, convert: Any) -> Image.Image:
        raise MemoryError

    monkeypatch.setattr(mask_module, "load_as", load)
    share = one_mask(
        stored_mask(values(30, 70, "L"), "L"), np.zeros((1, 20, 24), np.uint8), crops_of([(30, 70)])
    )
    with pytest.raises(MemoryError) as caught:
        MaskDecoder(20, 24).decode(share)
    assert "mask of sample 0, 30x70 pixels" in caught.value.__notes__[0]


def test_the_first_fault_of_a_sample_is_its_reason_and_others_stay_whole(
    decoder_class: Any, photo: Any, encoded: Any, share_of: Any
) -> None:
    left = [encoded(photo(40, 30, seed=i)) for i in range(6)]
    right = [encoded(photo(40, 30, seed=i)) for i in range(6)]
    masks = [stored_mask(values(40, 30, "L"), "L")] * 6
    left[1] = b"no picture"
    right[1] = right[2] = b"no picture either"
    right[3] = encoded(photo(41, 30))
    masks[3] = masks[4] = stored_mask(values(30, 40, "L"), "L")
    joint = Joint(SPEC, masks=("mask",))
    pixels = [np.zeros((6, 20, 24, 3), np.uint8) for _ in range(2)]
    mask = np.zeros((6, 20, 24), np.uint8)
    faults = decode_jointly(
        {"left": share_of(left, pixels[0]), "right": share_of(right, pixels[1])},
        {"mask": share_of(masks, mask)},
        AppliedCrops.empty(6),
        picture_decoder=decoder_class(joint),
        mask_decoder=MaskDecoder(20, 24),
    )
    assert sorted(faults) == [1, 2, 3, 4]
    assert faults[1].startswith("field 'left': unknown format")
    assert faults[2].startswith("field 'right': unknown format")
    assert faults[3].startswith("field 'right': 41x30 pixels, where")
    assert faults[3].count("40x30") == 1
    assert faults[4].startswith("field 'mask': 30x40 pixels, where")
    for row in (0, 5):
        assert np.array_equal(pixels[0][row], pixels[1][row])
        assert mask[row].any()


@pytest.mark.parametrize("at", ["picture", "mask"])
def test_an_abort_ends_the_call_without_faults_of_what_was_not_read(
    at: str, photo: Any, encoded: Any, share_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = threading.Event()
    owner, name = {
        "picture": (pillow_decoder_module, "load_rgb"),
        "mask": (mask_module, "load_as"),
    }[at]
    load = getattr(owner, name)

    def load_and_stop(*arguments: Any) -> Any:
        stop.set()
        return load(*arguments)

    monkeypatch.setattr(owner, name, load_and_stop)
    pictures = [encoded(photo(40, 30, seed=i)) for i in range(3)]
    left, right = (share_of(pictures, np.zeros((3, 20, 24, 3), np.uint8), abort=stop),) * 2
    masks = [stored_mask(values(40, 30, "L"), "L")] * 3
    mask = np.full((3, 20, 24), 77, np.uint8)
    faults = decode_jointly(
        {"left": left, "right": right},
        {"mask": share_of(masks, mask, abort=stop)},
        AppliedCrops.empty(3),
        picture_decoder=PillowDecoder(SPEC),
        mask_decoder=MaskDecoder(20, 24),
    )
    assert faults == {}
    assert (mask[1:] == 77).all()


coordinate = st.floats(-300, 300, width=32)


@given(
    boxes=st.lists(st.tuples(coordinate, coordinate, coordinate, coordinate), max_size=6),
    cut=st.tuples(*[st.floats(0, 100, width=16)] * 2, *[st.floats(0.5, 100, width=16)] * 2),
    flip=st.booleans(),
    size=st.tuples(st.integers(1, 300), st.integers(1, 300)),
)
def test_boxes_are_moved_as_a_slow_reference_moves_them(
    boxes: list[Any], cut: Any, flip: bool, size: tuple[int, int]
) -> None:
    height, width = size
    left, top, cut_width, cut_height = cut
    crops = AppliedCrops.empty(3)
    crops.boxes[2] = (left, top, left + cut_width, top + cut_height)
    crops.flips[2] = flip
    rows = np.full(len(boxes), 2)
    moved = move_boxes(np.array(boxes, np.float32).reshape(-1, 4), rows, crops, height, width)
    assert (moved.dtype, moved.shape) == (np.float32, (len(boxes), 4))
    for got, (x0, y0, x1, y1) in zip(moved, boxes, strict=True):
        across = [(x - left) * width / cut_width for x in (x0, x1)]
        down = [(y - top) * height / cut_height for y in (y0, y1)]
        if flip:
            across = [width - across[1], width - across[0]]
        want = [
            min(max(value, 0), limit)
            for value, limit in zip(
                (across[0], down[0], across[1], down[1]), (width, height) * 2, strict=True
            )
        ]
        assert got == pytest.approx(want, rel=1e-6, abs=1e-4)


def test_a_box_outside_the_crop_keeps_its_place_without_area() -> None:
    crops = AppliedCrops.empty(2)
    crops.boxes[:] = (10, 10, 30, 30)
    crops.flips[1] = True
    boxes = np.array([[0, 12, 8, 20], [40, 12, 50, 20], [12, 40, 20, 50], [10, 10, 20, 30]] * 2)
    moved = move_boxes(boxes.astype(np.float32), np.repeat([0, 1], 4), crops, 20, 20)
    area = (moved[:, 2] - moved[:, 0]) * (moved[:, 3] - moved[:, 1])
    assert area.tolist() == [0, 0, 0, 200] * 2
    assert moved[3].tolist() == [0, 0, 10, 20]
    assert moved[7].tolist() == [10, 0, 20, 20]


def test_not_a_number_stays_not_a_number_without_a_warning(
    recwarn: pytest.WarningsRecorder,
) -> None:
    crops = AppliedCrops.empty(1)
    crops.boxes[:] = (0, 0, 4, 4)
    boxes = np.array([[np.nan] * 4, [-np.inf, 0, np.inf, 1]], np.float32)
    moved = move_boxes(boxes, np.zeros(2, np.int64), crops, 4, 4)
    assert np.isnan(moved[0]).all()
    assert moved[1].tolist() == [0, 0, 4, 1]
    assert not recwarn.list

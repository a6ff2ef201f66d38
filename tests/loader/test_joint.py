"""Pictures, masks and boxes of a data set under one crop, from the writer to the batch."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
import torch
from PIL import Image

from streamloader import (
    CenterCrop,
    ConfigError,
    DatasetWriter,
    Joint,
    RandomResizedCrop,
    SampleError,
    StreamLoader,
)

SPEC = RandomResizedCrop((32, 40), scale=(0.3, 1.0), flip=0.5)
FIELDS = {
    "image": "picture",
    "mask": "picture",
    "boxes": "float32:[-1]",
    "pair": ("float64", (2, 4)),
    "many": ("float32", (6, 4)),
    "label": "int64",
}
NUM_SAMPLES = 23


def png(image):
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


CUT = png(Image.linear_gradient("L"))[:200]


def sample(number, mask_size=None, **changed):
    """A white rectangle on black, the same one as index 5 in the mask and as the first box."""
    rng = np.random.default_rng(number)
    width, height = (int(side) for side in rng.integers(60, 120, 2))
    x0, y0 = (int(side) for side in rng.integers(5, 25, 2))
    x1, y1 = width - int(rng.integers(5, 25)), height - int(rng.integers(5, 25))
    image = np.zeros((height, width, 3), np.uint8)
    image[y0:y1, x0:x1] = 255
    mask = Image.fromarray((image[:, :, 0] // 51).astype(np.uint8))
    mask.putpalette([200, 30, 90] * 9)
    if mask_size is not None:
        mask = mask.crop((0, 0, *mask_size))
    boxes = np.array([[x0, y0, x1, y1]] + [[-9, -9, -1, -1]] * (number % 3), np.float32)
    values = {
        "image": png(Image.fromarray(image)),
        "mask": png(mask),
        "boxes": boxes.reshape(-1),
        "pair": np.array([boxes[0]] * 2),
        "many": np.repeat(boxes[:1], 6, axis=0),
        "label": number,
    }
    return values | changed


def write(path, samples, fields=FIELDS):
    with DatasetWriter(path, fields, block_samples=4, shard_bytes=30_000) as writer:
        for number, values in enumerate(samples):
            writer.write({name: values[name] for name in fields}, key=f"s/{number}")
    return path


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    path = tmp_path_factory.mktemp("scenes") / "set"
    return write(path, [sample(number) for number in range(NUM_SAMPLES)])


def joint(spec=SPEC, **options):
    return Joint(spec, **{"masks": ("mask",), "boxes": ("boxes", "pair", "many"), **options})


def loader(path, **options):
    wanted = {"batch_size": 6, "transform": joint(), "shuffle": True, "device": "cpu"}
    return StreamLoader(str(path), **{**wanted, **options})


def test_mask_and_boxes_lie_where_the_picture_shows_them(scenes):
    with loader(scenes) as stream:
        batches = list(stream)
    seen = 0
    for batch in batches:
        rows = len(batch["index"])
        assert batch["image"].shape == (rows, 3, 32, 40)
        assert (batch["mask"].dtype, batch["mask"].shape) == (torch.uint8, (rows, 32, 40))
        assert (batch["pair"].dtype, batch["pair"].shape) == (torch.float32, (rows, 2, 4))
        assert batch["many"].shape == (rows, 6, 4)
        for row in range(rows):
            mask = batch["mask"][row].numpy()
            assert set(np.unique(mask)) <= {0, 5}
            inside = batch["image"][row, 0].numpy() > 127
            assert (inside == (mask == 5)).mean() > 0.93, "but for the soft edge"
            boxes = batch["boxes"][row]
            assert (boxes.dtype, boxes.shape) == (np.float32, (1 + batch["label"][row] % 3, 4))
            assert (boxes[1:, 2] - boxes[1:, 0] == 0).all()
            assert np.array_equal(batch["pair"][row], np.repeat(boxes[:1], 2, axis=0))
            assert np.array_equal(batch["many"][row], np.repeat(boxes[:1], 6, axis=0))
            ys, xs = np.nonzero(mask)
            if len(xs):
                edges = [xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]
                assert np.abs(boxes[0] - edges).max() <= 0.5 + 1e-5
                seen += 1
    assert seen > 20


def test_pictures_are_those_of_a_loader_without_masks_and_boxes(scenes, tmp_path):
    alone = write(
        tmp_path / "alone",
        [sample(number) for number in range(NUM_SAMPLES)],
        {"image": "picture", "label": "int64"},
    )
    with loader(scenes) as stream, loader(alone, transform=SPEC) as plain:
        for got, want in zip(stream, plain, strict=True):
            assert torch.equal(got["index"], want["index"])
            assert torch.equal(got["image"], want["image"])


def test_a_joint_is_decoded_by_the_decoder_of_its_spec_alone(tmp_path):
    jpegs = []
    for number in range(8):
        values = sample(number)
        image, data = Image.open(io.BytesIO(values["image"])), io.BytesIO()
        image.save(data, "JPEG", quality=95)
        jpegs.append(values | {"image": data.getvalue()})
    path = write(tmp_path / "set", jpegs)
    fields = {"image": "picture", "label": "int64"}
    alone = write(tmp_path / "alone", jpegs, fields)
    with loader(path) as stream, loader(alone, transform=SPEC) as plain:
        for got, want in zip(stream, plain, strict=True):
            assert torch.equal(got["image"], want["image"])
            agrees = (got["image"][:, 0] > 127) == (got["mask"] == 5)
            assert agrees.float().mean() > 0.93, "but for the soft edge"
        assert stream.stats()["decoder"] == plain.stats()["decoder"]


def test_bytes_do_not_depend_on_the_number_of_workers(scenes):
    runs = []
    for workers in (1, 2, 5):
        with loader(scenes, num_workers=workers, last_batch="partial") as stream:
            runs.append(
                [
                    [batch[name].numpy().tobytes() for name in ("image", "mask", "pair", "many")]
                    + [boxes.tobytes() for boxes in batch["boxes"]]
                    for batch in stream
                ]
            )
    assert runs[0] == runs[1] == runs[2]


def test_float_pictures_leave_masks_as_they_are(scenes):
    with loader(scenes) as stream, loader(scenes, output="float16") as floats:
        got, want = next(iter(floats)), next(iter(stream))
    assert got["image"].dtype == torch.float16
    assert torch.equal(got["mask"], want["mask"])


def test_masks_of_16_bits_need_int32_and_keep_their_values(tmp_path):
    wide = np.arange(48, dtype=np.uint16).reshape(6, 8) * 1000 + 7
    samples = [{"image": png(Image.new("RGB", (8, 6))), "mask": png(Image.fromarray(wide))}] * 2
    path = write(tmp_path / "set", samples, {"image": "picture", "mask": "picture"})
    spec = CenterCrop((6, 8))
    transform = joint(spec, boxes=(), mask_dtype="int32")
    with loader(path, batch_size=2, transform=transform) as stream:
        batch = next(iter(stream))
    assert batch["mask"].dtype == torch.int32
    assert np.array_equal(batch["mask"][1], wide)
    with (
        loader(path, batch_size=2, transform=joint(spec, boxes=())) as stream,
        pytest.raises(SampleError, match="field 'mask': PNG of more than 8 bits"),
    ):
        next(iter(stream))


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (sample(3, mask_size=(50, 40)), r"field 'mask': 50x40 pixels, .* has \d+x\d+; a Joint"),
        (sample(3, boxes=np.zeros(7, np.float32)), "field 'boxes': 7 numbers, which are no boxes"),
        (sample(3, image=CUT, mask=CUT), "field 'image': truncated PNG"),
    ],
)
def test_a_sample_that_does_not_fit_together_is_raised_or_skipped(tmp_path, bad, reason, caplog):
    samples = [sample(number) for number in range(6)]
    samples[3] = bad
    path = write(tmp_path / "set", samples)
    with (
        loader(path, shuffle=False, num_workers=2) as stream,
        pytest.raises(SampleError, match=reason) as raised,
    ):
        next(iter(stream))
    assert (raised.value.sample, raised.value.key) == (3, "s/3")
    with loader(path, shuffle=False, on_error="skip", max_bad_fraction=0.5) as stream:
        batch = next(iter(stream))
    assert re.search(reason, caplog.text)
    assert batch["valid"].tolist() == [True, True, True, False, True, True]
    for name in ("image", "mask", "pair", "many", "boxes"):
        assert np.array_equal(batch[name][3], batch[name][2])


def test_two_pictures_of_a_sample_must_have_one_size(tmp_path):
    fields = {"left": "picture", "right": "picture"}
    small, large = (png(Image.new("RGB", size)) for size in ((30, 20), (31, 20)))
    path = write(tmp_path / "set", [{"left": small, "right": large}], fields)
    with (
        loader(path, batch_size=1, transform=Joint(CenterCrop(8))) as stream,
        pytest.raises(SampleError, match="field 'right': 31x20 pixels, .* has 30x20"),
    ):
        next(iter(stream))


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float64"])
def test_boxes_of_any_float_type_become_float32(tmp_path, kind):
    boxes = np.array([[2, 1, 6, 5], [0, 0, 8, 6]], np.float32)
    fields = {"image": "picture", "flat": f"{kind}:[-1]", "fixed": (kind, (2, 4))}
    values = {"image": png(Image.new("RGB", (8, 6))), "flat": boxes.reshape(-1), "fixed": boxes}
    path = write(tmp_path / "set", [values, values | {"flat": []}], fields)
    transform = Joint(CenterCrop((6, 8)), boxes=("flat", "fixed"))
    with loader(path, batch_size=2, transform=transform, shuffle=False) as stream:
        batch = next(iter(stream))
    assert batch["fixed"].dtype == torch.float32
    assert np.array_equal(batch["fixed"][0], boxes)
    assert np.array_equal(batch["flat"][0], boxes)
    assert (batch["flat"][1].dtype, batch["flat"][1].shape) == (np.float32, (0, 4))


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (joint(masks=("label",)), r"the mask 'label', which is no picture field.*label \(i8\)"),
        (joint(masks=("nothing",)), "names the field 'nothing', which the data set does not have"),
        (
            joint(boxes=("label",)),
            r"the boxes 'label', which must be a float field of shape \[-1\]",
        ),
        (joint(boxes=("nothing",)), "names the field 'nothing'"),
        (joint(masks=("image", "mask")), "no picture field that is no mask; its fields are image"),
    ],
)
def test_fields_that_cannot_be_what_a_joint_names_are_refused(scenes, transform, message):
    with pytest.raises(ConfigError, match=message):
        loader(scenes, transform=transform)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("mask_dtype", ["uint8", "int32"])
def test_a_gpu_gets_the_masks_and_boxes_of_the_cpu(scenes, mask_dtype):
    options = {"transform": joint(mask_dtype=mask_dtype), "output": "float32"}
    with loader(scenes, device="cuda", **options) as gpu, loader(scenes, **options) as cpu:
        for there, here in zip(gpu, cpu, strict=True):
            for name in ("mask", "pair", "many"):
                assert there[name].device.type == "cuda"
                assert there[name].dtype == here[name].dtype
                assert torch.equal(there[name].cpu(), here[name])
            for got, want in zip(there["boxes"], here["boxes"], strict=True):
                assert np.array_equal(got, want)

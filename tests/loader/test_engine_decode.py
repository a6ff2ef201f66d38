"""Batches whose JPEGs are decoded on the device, here in host memory with a stand-in engine."""

from __future__ import annotations

import gc
import io
import logging
import weakref

import numpy as np
import pytest
import torch
from cpu_device import CpuDevice, PillowEngine
from PIL import Image

from streamloader import DatasetWriter, RandomResizedCrop, StreamLoader
from streamloader import loader as loader_module
from streamloader._cuda_delivery import CudaDelivery
from streamloader.errors import ConfigError, SampleError

NUM_SAMPLES = 45
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)


def jpeg(number: int, **options) -> bytes:
    rng = np.random.default_rng(number)
    height, width = int(rng.integers(70, 120)), int(rng.integers(70, 120))
    coarse = rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    if options.pop("gray", False):
        image = image.convert("L")
    out = io.BytesIO()
    image.save(out, options.pop("format", "JPEG"), **{"quality": 92, **options})
    return out.getvalue()


def stored(number: int) -> bytes:
    """Every seventh picture is one that no engine decodes."""
    kinds = ({"progressive": True}, {"format": "PNG"}, {"gray": True})
    return jpeg(number, **kinds[number // 7 % 3]) if number % 7 == 3 else jpeg(number)


def write(path, picture_of=stored, count: int = NUM_SAMPLES) -> str:
    with DatasetWriter(path, {"image": "picture", "label": "int64"}, block_samples=4) as writer:
        for number in range(count):
            writer.write({"image": picture_of(number), "label": number}, key=str(number))
    return str(path)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> str:
    return write(tmp_path_factory.mktemp("engine") / "set")


@pytest.fixture
def engine_loader(monkeypatch):
    """Makes loaders whose device is host memory and whose engine is Pillow."""

    def make(
        url: str,
        *,
        engine: PillowEngine | None = None,
        decode_device: str | None = None,
        device: CpuDevice | None = None,
        **options,
    ) -> StreamLoader:
        device = device or CpuDevice()

        chosen = decode_device or ("cpu" if engine is None else "cuda")

        def delivery(name, rank, pixels, *, decode_device, **rest):
            return CudaDelivery(
                device,
                pixels,
                decode_device=chosen,
                engine=engine,
                **rest,
            )

        monkeypatch.setattr(loader_module, "open_delivery", delivery)
        wanted = {
            "batch_size": 8,
            "transform": RandomResizedCrop(32, flip=0.5),
            "shuffle": True,
            "num_workers": 2,
            "output": "bfloat16",
            "mean": MEAN,
            "std": STD,
        }
        return StreamLoader(url, **{**wanted, **options})

    return make


@pytest.mark.parametrize("feed", ["thread", "process"])
def test_engines_decode_batches_by_arrival_and_each_sample_comes_once(
    dataset, engine_loader, feed
) -> None:
    def images(stream):
        return {
            int(batch["index"][row]): batch["image"][row].float()
            for batch in stream
            for row in batch["valid"].nonzero().flatten().tolist()
        }

    with (
        engine_loader(dataset, engine=PillowEngine(), feed=feed, deterministic=False) as ours,
        engine_loader(dataset) as cpu,
    ):
        there, here = images(ours), images(cpu)
    assert sorted(there) == list(range(NUM_SAMPLES))
    for number, image in here.items():
        assert (there[number] - image).abs().max() < 0.05


@pytest.mark.parametrize("feed", ["thread", "process"])
def test_engine_and_cpu_give_the_same_samples_crops_and_nearly_the_same_pixels(
    dataset, engine_loader, feed
) -> None:
    engine = PillowEngine()
    with (
        engine_loader(dataset, engine=engine, feed=feed, gpu_decode_share=0.5) as ours,
        engine_loader(dataset) as cpu,
    ):
        for there, here in zip(ours, cpu, strict=True):
            assert set(there) == set(here)
            for name in ("index", "label", "valid"):
                assert torch.equal(there[name], here[name])
            assert there["image"].dtype == torch.bfloat16
            assert there["image"].is_contiguous(memory_format=torch.channels_last)
            difference = (there["image"].float() - here["image"].float()).abs()
            assert difference.max() < 0.05
            assert difference.mean() < 0.002
        counts = ours.stats()["counters"]
    assert 0 < counts["decode.pictures_by_engine"] < NUM_SAMPLES
    assert counts["decode.pictures_not_for_engine"] >= NUM_SAMPLES // 7
    assert engine.closed


@pytest.mark.parametrize("output", ["uint8", "float16", "float32"])
def test_every_output_type(dataset, engine_loader, output: str) -> None:
    options = {"output": output} | ({"mean": None, "std": None} if output == "uint8" else {})
    with (
        engine_loader(dataset, engine=PillowEngine(), **options) as ours,
        engine_loader(dataset, **options) as cpu,
    ):
        there, here = next(iter(ours))["image"], next(iter(cpu))["image"]
    assert there.dtype == here.dtype == getattr(torch, output)
    # The CPU decodes at a coarser scale where that suffices: a few levels in a few values.
    difference = (there.float() - here.float()).abs() * (1 / 255 if output == "uint8" else 0.3)
    assert difference.max() < 0.02
    assert difference.mean() < 0.002


def images(loader: StreamLoader) -> dict[int, torch.Tensor]:
    return {
        int(number): image.clone()
        for batch in loader
        for number, image in zip(batch["index"], batch["image"], strict=True)
    }


@pytest.mark.parametrize("feed", ["thread", "process"])
def test_the_bytes_of_a_sample_depend_on_neither_workers_nor_batch_size(
    dataset, engine_loader, feed
) -> None:
    options = {"gpu_decode_share": 0.5}
    with engine_loader(dataset, engine=PillowEngine(), **options) as first:
        wanted = images(first)
    with engine_loader(
        dataset, engine=PillowEngine(), feed=feed, num_workers=3, batch_size=5, **options
    ) as second:
        found = images(second)
    assert set(found) == set(wanted) == set(range(NUM_SAMPLES))
    assert all(torch.equal(found[number], wanted[number]) for number in wanted)


def test_a_share_of_zero_leaves_all_to_the_cpu(dataset, engine_loader) -> None:
    engine = PillowEngine()
    with engine_loader(dataset, engine=engine, gpu_decode_share=0.0) as ours:
        found = images(ours)
    with engine_loader(dataset) as cpu:
        wanted = images(cpu)
    assert engine.calls == []
    assert all(torch.equal(found[number], wanted[number]) for number in wanted)


@pytest.mark.parametrize("feed", ["thread", "process"])
def test_a_batch_that_the_engine_refuses_is_decoded_by_the_cpu(
    dataset, engine_loader, feed
) -> None:
    engine = PillowEngine(refuses=[stored(5)])
    with engine_loader(dataset, engine=engine, feed=feed, gpu_decode_share=1.0) as ours:
        found = images(ours)
        counts = ours.stats()["counters"]
    with engine_loader(dataset) as cpu:
        wanted = images(cpu)
    assert counts["decode.engine_refusals"] >= 1
    for number in wanted:
        assert (found[number].float() - wanted[number].float()).abs().max() < 0.05


def broken(number: int) -> bytes:
    """Sample 17 has a sound header and a scan that no decoder can finish."""
    data = bytearray(jpeg(number))
    if number == 17:
        scan = data.index(b"\xff\xda") + 14
        data[scan + 40 : -2] = b"\x00" * (len(data) - scan - 42)
    return bytes(data)


@pytest.fixture(scope="module")
def broken_dataset(tmp_path_factory) -> str:
    return write(tmp_path_factory.mktemp("broken") / "set", broken)


def cut(number: int) -> bytes:
    """Sample 17 lacks its end."""
    return jpeg(number)[: -300 if number == 17 else None]


@pytest.fixture(scope="module")
def cut_dataset(tmp_path_factory) -> str:
    return write(tmp_path_factory.mktemp("cut") / "set", cut)


@pytest.mark.parametrize("feed", ["thread", "process"])
def test_a_picture_that_was_cut_is_judged_by_the_cpu_and_named(
    cut_dataset, engine_loader, feed
) -> None:
    with (
        engine_loader(cut_dataset, engine=PillowEngine(), feed=feed, gpu_decode_share=1.0) as ours,
        pytest.raises(SampleError, match="truncated JPEG") as error,
    ):
        images(ours)
    assert "17" in str(error.value)


@pytest.mark.parametrize("feed", ["thread", "process"])
def test_a_bad_picture_keeps_the_batch_in_step(cut_dataset, engine_loader, feed) -> None:
    options = {"gpu_decode_share": 1.0, "on_error": "skip", "max_bad_fraction": 1.0, "feed": feed}
    with engine_loader(cut_dataset, engine=PillowEngine(), shuffle=False, **options) as ours:
        batches = list(ours)
        state = ours.state_dict()
    hit = batches[17 // 8]
    assert hit["index"].tolist() == list(range(16, 24))
    assert hit["valid"].tolist() == [number != 17 for number in range(16, 24)]
    assert torch.equal(hit["image"][1], hit["image"][0])
    assert state["skipped"] == 1


@pytest.mark.parametrize("feed", ["thread", "process"])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_picture_that_only_the_engine_finds_bad(
    broken_dataset, engine_loader, feed, on_error
) -> None:
    engine = PillowEngine(refuses=[broken(17)])
    options = {"gpu_decode_share": 1.0, "on_error": on_error, "max_bad_fraction": 1.0, "feed": feed}
    with engine_loader(broken_dataset, engine=engine, shuffle=False, **options) as ours:
        if on_error == "raise":
            with pytest.raises(SampleError) as error:
                list(ours)
            assert "17" in str(error.value)
            assert any("refused" in note for note in error.value.__notes__)
            return
        batches = list(ours)
        state = ours.state_dict()
    hit = batches[2]
    assert hit["valid"].tolist() == [number != 17 for number in range(16, 24)]
    assert torch.equal(hit["image"][1], hit["image"][0])
    assert hit["label"][1] == hit["label"][0]
    assert state["skipped"] == 1


@pytest.mark.parametrize("feed", ["thread", "process"])
def test_held_batches_stay_as_they_are(dataset, engine_loader, feed) -> None:
    with engine_loader(dataset, engine=PillowEngine(), feed=feed, gpu_decode_share=0.7) as ours:
        held = [(batch, batch["image"].clone()) for batch in ours]
    assert all(torch.equal(batch["image"], image) for batch, image in held)


@pytest.mark.parametrize("feed", ["thread", "process"])
def test_static_buffers_have_one_address_over_epochs(dataset, engine_loader, feed) -> None:
    with engine_loader(dataset, engine=PillowEngine(), feed=feed, static_buffers=True) as ours:
        addresses = {batch["image"].data_ptr() for _ in range(2) for batch in ours}
    assert len(addresses) == 1


@pytest.mark.parametrize("feed", ["thread", "process"])
def test_resume_takes_over_the_share_and_continues_bit_by_bit(dataset, engine_loader, feed) -> None:
    with engine_loader(dataset, engine=PillowEngine(), gpu_decode_share=0.3) as first:
        whole = [batch["image"].clone() for batch in first]
        first.set_epoch(0)
        for _, batch in zip(range(3), first, strict=False):
            state = batch.state
    assert state["gpu_decode_share"] == 0.3
    with engine_loader(dataset, engine=PillowEngine(), feed=feed) as second:
        second.load_state_dict(state)
        rest = [batch["image"].clone() for batch in second]
    assert len(rest) == len(whole) - 3
    assert all(map(torch.equal, rest, whole[3:]))


def test_another_decode_path_on_load_warns(dataset, engine_loader, caplog) -> None:
    with engine_loader(dataset, engine=PillowEngine()) as first:
        state = first.state_dict()
    with engine_loader(dataset) as second, caplog.at_level(logging.WARNING):
        second.load_state_dict(state)
    assert "saved by a run that decoded with nvjpeg" in caplog.text


@pytest.fixture
def no_nvjpeg(monkeypatch) -> None:
    def missing():
        raise ConfigError("nvJPEG is not installed (pip install 'streamloader[gpu]')")

    monkeypatch.setattr("streamloader._cuda_delivery.PacedEngine", missing)


def test_auto_decodes_on_the_cpu_where_the_engines_cannot_be_used_and_says_why(
    dataset, engine_loader, no_nvjpeg, caplog
) -> None:
    with (
        caplog.at_level(logging.INFO, "streamloader.loader"),
        engine_loader(dataset, decode_device="auto") as ours,
    ):
        assert len(images(ours)) == NUM_SAMPLES
        assert "nvjpeg" not in ours.stats()["decoder"]
        assert ours.state_dict()["gpu_decode_share"] is None
    assert "chose the CPU: nvJPEG is not installed" in caplog.text


def test_engines_that_were_asked_for_and_are_not_there_are_an_error(
    dataset, engine_loader, no_nvjpeg
) -> None:
    with pytest.raises(ConfigError, match="decode_device='cuda' cannot work: nvJPEG is not inst"):
        engine_loader(dataset, decode_device="cuda")


def test_what_needs_pixels_on_the_host_refuses_the_engine(dataset, engine_loader) -> None:
    with pytest.raises(ConfigError, match="need the pixels on the host"):
        engine_loader(dataset, engine=PillowEngine(), output="uint8", mean=None, std=None, map=dict)


@pytest.mark.parametrize("options", [{"decode_device": "cuda"}, {"static_buffers": True}])
def test_what_needs_a_cuda_device_is_refused_for_the_cpu(dataset, options) -> None:
    with pytest.raises(ConfigError, match="needs a CUDA device"):
        StreamLoader(dataset, batch_size=8, device="cpu", **options)


class RememberingDevice(CpuDevice):
    """Knows the memory that it gave, as long as somebody has it."""

    def __init__(self):
        super().__init__()
        self.given = weakref.WeakSet()

    def allocate(self, nbytes, stream):
        memory = super().allocate(nbytes, stream)
        self.given.add(memory)
        return memory


@pytest.mark.parametrize("feed", ["thread", "process"])
@pytest.mark.parametrize("engine", [None, PillowEngine()])
def test_memory_of_ended_epochs_does_not_wait_for_the_garbage_collector(
    dataset, engine_loader, engine, feed
) -> None:
    device = RememberingDevice()
    gc.disable()
    try:
        with engine_loader(dataset, engine=engine, device=device, feed=feed) as ours:
            counts = []
            for _ in range(4):
                for batch in ours:
                    assert len(batch["image"])
                del batch
                counts.append(len(device.given))
        # Slabs of a decoder live as long as the loader; a run has two or three slots.
        assert max(counts) <= 2 + 2 * 3
    finally:
        gc.enable()

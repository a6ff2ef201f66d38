"""Batches on a real GPU; needs a CUDA device."""

from __future__ import annotations

import pytest
import torch
from picture_sets import NUM_PICTURES, write_pictures

from streamloader import CenterCrop, RandomResizedCrop, StreamLoader

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def loader(dataset, **options):
    wanted = {
        "batch_size": 8,
        "transform": RandomResizedCrop(32),
        "shuffle": True,
        "decode_device": "cpu",
    }
    return StreamLoader(str(dataset), **{**wanted, **options})


def test_the_gpu_is_the_default_device_and_has_the_bytes_of_the_cpu(pictures):
    with loader(pictures) as gpu, loader(pictures, device="cpu") as cpu:
        for there, here in zip(gpu, cpu, strict=True):
            assert there["image"].device.type == "cuda"
            assert there["image"].is_contiguous(memory_format=torch.channels_last)
            for name in here:
                assert torch.equal(there[name].cpu(), here[name])


@pytest.mark.parametrize("feed", ["thread", "process"])
def test_a_mixture_has_the_bytes_of_the_cpu_and_its_data_sets(pictures, tmp_path, feed):
    write_pictures(tmp_path / "small", 20)
    data = {str(pictures): 0.7, str(tmp_path / "small"): 0.3}
    options = {"batch_size": 8, "transform": RandomResizedCrop(32), "shuffle": True}
    with (
        StreamLoader(data, feed=feed, decode_device="cpu", **options) as gpu,
        StreamLoader(data, device="cpu", **options) as cpu,
    ):
        for there, here in zip(gpu, cpu, strict=True):
            assert there["source"].device.type == "cuda"
            for name in here:
                assert torch.equal(there[name].cpu(), here[name]), name


def test_a_consumer_that_never_synchronises_keeps_its_batches(pictures):
    side = torch.cuda.Stream()
    kept = []
    with loader(pictures, prefetch_batches=1) as stream, torch.cuda.stream(side):
        busy = torch.randn(2048, 2048, device="cuda")
        for _ in range(5):
            for batch in stream:
                for _ in range(10):
                    busy = busy @ busy / 2048
                kept.append((batch["index"].clone(), batch["image"].long().sum((1, 2, 3))))
    torch.cuda.synchronize()
    with loader(pictures, device="cpu") as reference:
        wanted = [
            (batch["index"], batch["image"].long().sum((1, 2, 3)))
            for _ in range(5)
            for batch in reference
        ]
    assert len(kept) == len(wanted)
    for (index, total), (wanted_index, wanted_total) in zip(kept, wanted, strict=True):
        assert torch.equal(index.cpu(), wanted_index)
        assert torch.equal(total.cpu(), wanted_total)


def test_held_batches_on_the_device_stay_as_they_are(pictures):
    with loader(pictures, prefetch_batches=1) as stream:
        held = []
        for batch in stream:
            held.append((batch, batch["image"].clone()))
            if len(held) == 6:
                break
    for batch, image in held:
        assert torch.equal(batch["image"], image)


@pytest.mark.parametrize("output", ["float32", "float16", "bfloat16"])
def test_float_outputs_agree_with_the_cpu(pictures, output):
    options = {
        "transform": CenterCrop(32),
        "output": output,
        "mean": (0.5, 0.4, 0.3),
        "std": (0.2, 0.3, 0.4),
    }
    with loader(pictures, **options) as gpu, loader(pictures, device="cpu", **options) as cpu:
        there, here = next(iter(gpu))["image"], next(iter(cpu))["image"]
    assert there.dtype == here.dtype
    assert torch.allclose(there.float().cpu(), here.float(), rtol=1e-2, atol=1e-2)


def test_an_early_break_and_the_next_epoch(pictures):
    with loader(pictures) as stream:
        for _ in range(10):
            next(iter(stream))
        seen = [n for b in stream for n in b["index"][b["valid"]].tolist()]
    assert sorted(seen) == list(range(NUM_PICTURES))


@pytest.mark.parametrize("feed", ["thread", "process"])
def test_batches_by_arrival_are_the_same_samples_on_the_gpu(pictures, feed):
    def images(stream):
        batches = [(b["index"].cpu(), b["valid"].cpu(), b["image"].cpu()) for b in stream]
        return {
            int(index[row]): image[row].numpy().tobytes()
            for index, valid, image in batches
            for row in valid.nonzero().flatten().tolist()
        }

    with (
        loader(pictures, device="cpu") as planned,
        loader(pictures, deterministic=False, feed=feed) as stream,
    ):
        for _ in range(2):
            by_number = images(stream)
            assert len(by_number) == NUM_PICTURES
            assert by_number == images(planned)


@pytest.mark.parametrize("feed", ["thread", "process"])
def test_slots_are_pinned_within_the_budget_and_reported(pictures, feed):
    with loader(pictures, feed=feed) as stream:
        next(iter(stream))
        stats = stream.stats()
    staging = stats["staging"]
    assert staging["pin_refusal"] is None
    assert 0 < staging["pinned_bytes"] <= staging["bytes"]
    assert staging["bytes"] == stats["memory_bytes"]["used"]["slots"]
    if feed == "thread":  # a feed process may have slots that it has not handed over yet
        assert staging["pinned_bytes"] == staging["bytes"]
    assert staging["bytes"] <= staging["budget_bytes"] == stats["memory_bytes"]["plan"]["max_slots"]
    assert staging["node"] in (None, *map(int, staging["pages_by_node"]))

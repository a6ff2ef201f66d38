"""JPEGs decoded by the engines of a real GPU, with consumers that never wait on the host."""

from __future__ import annotations

import io
import threading

import numpy as np
import pytest
import torch
from PIL import Image

from streamloader import CenterCrop, DatasetWriter, RandomResizedCrop, StreamLoader
from streamloader.decode.gpu import GpuDecoder, Nvjpeg
from streamloader.errors import ConfigError

NUM_SAMPLES = 512
BATCH_SIZE = 8
SLEEP_CYCLES = 8_000_000
"""About 5 ms of GPU time, longer than a batch takes to decode."""


def engines() -> bool:
    if not torch.cuda.is_available():
        return False
    torch.zeros(1, device="cuda")
    try:
        Nvjpeg().close()
    except ConfigError:
        return False
    return True


pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not engines(), reason="needs a GPU with JPEG engines, and nvJPEG"),
]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("engine") / "set"
    rng = np.random.default_rng(0)
    kinds = ("4:2:0", "4:4:4", "4:2:2")
    with DatasetWriter(path, {"image": "picture", "label": "int64"}, block_samples=8) as writer:
        for number in range(NUM_SAMPLES):
            height, width = (int(side) for side in rng.integers(150, 500, 2))
            coarse = rng.integers(0, 256, (8, 10, 3), dtype=np.uint8)
            image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
            out = io.BytesIO()
            image.save(out, "JPEG", quality=90, subsampling=kinds[number % 3])
            writer.write({"image": out.getvalue(), "label": number}, key=str(number))
    return str(path)


def open_loader(dataset: str, **options) -> StreamLoader:
    wanted = {
        "batch_size": BATCH_SIZE,
        "transform": CenterCrop(64),
        "shuffle": True,
        "device": "cuda",
        "decode_device": "cuda",
        "gpu_decode_share": 1.0,
        "output": "bfloat16",
        "memory_limit": "256mib",
    }
    return StreamLoader(dataset, **{**wanted, **options})


@pytest.mark.parametrize("transform", [CenterCrop(64), RandomResizedCrop(96, flip=0.5)])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_engines_and_cpu_agree_within_rounding(dataset, transform, share) -> None:
    options = {"transform": transform, "output": "uint8"}
    with (
        open_loader(dataset, gpu_decode_share=share, **options) as engine,
        open_loader(dataset, decode_device="cpu", gpu_decode_share=None, **options) as cpu,
    ):
        for there, here in zip(engine, cpu, strict=True):
            assert torch.equal(there["index"], here["index"])
            assert torch.equal(there["label"], here["label"])
            difference = (there["image"].float() - here["image"].float()).abs()
            # Sharp chroma edges without a resize that would average them: the engines repeat
            # chroma samples, libjpeg interpolates.
            assert difference.mean() < 3.0
            assert difference.mean((1, 2, 3)).max() < 10.0
        counts = engine.stats()["counters"]
    assert counts.get("decode.engine_refusals", 0) == 0
    if share == 1.0:
        # The next epoch may have begun.
        assert counts["decode.pictures_by_engine"] >= NUM_SAMPLES
        assert counts["decode.pictures_by_engine"] == counts["decode.pictures"]


def hashes(image: torch.Tensor) -> torch.Tensor:
    """int64 [B]: of all bits of each picture."""
    bits = image.permute(0, 2, 3, 1).reshape(len(image), -1).view(torch.int16).long()
    weights = torch.arange(1, bits.shape[1] + 1, device=image.device) * 2654435761
    return (bits * weights).sum(1)


def reference(dataset: str, **options) -> torch.Tensor:
    """Hash by sample, each batch decoded and read alone."""
    wanted = torch.zeros(NUM_SAMPLES, dtype=torch.int64, device="cuda")
    with open_loader(dataset, prefetch_batches=1, **options) as loader:
        for batch in loader:
            torch.cuda.synchronize()
            wanted[batch["index"]] = hashes(batch["image"])
            torch.cuda.synchronize()
    return wanted


class Training(threading.Thread):
    """A small training loop on a stream of its own, until told to stop."""

    def __init__(self) -> None:
        super().__init__(name="training")
        self.over = threading.Event()
        self.steps = 0

    def run(self) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            model = torch.nn.Sequential(
                torch.nn.Conv2d(3, 64, 3), torch.nn.ReLU(), torch.nn.Conv2d(64, 64, 3)
            ).cuda()
            pictures = torch.randn(32, 3, 64, 64, device="cuda")
            while not self.over.is_set():
                model(pictures).square().mean().backward()
                self.steps += 1
                if self.steps % 8 == 0:
                    torch.cuda.current_stream().synchronize()


def wrong_pictures(
    dataset: str, wanted: torch.Tensor, batches: int, sleep_cycles: int = SLEEP_CYCLES, **options
) -> int:
    """Reads each batch twice, around a slow kernel, while another stream trains."""
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    training = Training()
    training.start()
    taken = 0
    try:
        with open_loader(dataset, **options) as loader, torch.cuda.stream(torch.cuda.Stream()):
            wrong.record_stream(torch.cuda.current_stream())
            while taken < batches:
                for batch in loader:
                    expected = wanted[batch["index"]]
                    wrong += (hashes(batch["image"]) != expected).sum()
                    torch.cuda._sleep(sleep_cycles)
                    wrong += (hashes(batch["image"]) != expected).sum()
                    taken += 1
                    if taken == batches:
                        break
            torch.cuda.current_stream().synchronize()
    finally:
        training.over.set()
        training.join()
    assert training.steps > 8
    return int(wrong)


def use_the_pipeline_always(monkeypatch) -> None:
    monkeypatch.setattr("streamloader._cuda_delivery.PacedEngine", lambda: Nvjpeg(pipelined=True))


@pytest.mark.parametrize("pipelined", [False, True])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_no_picture_is_overwritten_while_a_training_loop_keeps_the_gpu_busy(
    dataset, share, pipelined, monkeypatch
) -> None:
    wanted = reference(dataset, gpu_decode_share=share)
    if pipelined:
        use_the_pipeline_always(monkeypatch)
    assert wrong_pictures(dataset, wanted, 300, gpu_decode_share=share) == 0


def test_without_the_wait_for_a_free_slab_pictures_are_overwritten(dataset, monkeypatch) -> None:
    wanted = reference(dataset)
    monkeypatch.setattr(GpuDecoder, "_wait_until_free", lambda self, slab: None)
    assert wrong_pictures(dataset, wanted, 100) > 0


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("share", "pipelined"), [(1.0, False), (1.0, True), (0.0, False)])
def test_ten_thousand_batches_without_a_wrong_picture(
    dataset, share, pipelined, monkeypatch
) -> None:
    wanted = reference(dataset, gpu_decode_share=share)
    if pipelined:
        use_the_pipeline_always(monkeypatch)
    found = wrong_pictures(
        dataset, wanted, 10_000, sleep_cycles=200_000, gpu_decode_share=share, prefetch_batches=8
    )
    assert found == 0


def test_a_captured_graph_reads_each_new_batch(dataset) -> None:
    wanted = reference(dataset)
    with open_loader(dataset, static_buffers=True) as loader:
        batches = iter(loader)
        batch = next(batches)
        image, index = batch["image"], batch["index"]
        hashes(image)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            found = hashes(image)
        for _ in range(20):
            batch = next(batches)
            assert batch["image"].data_ptr() == image.data_ptr()
            graph.replay()
            assert torch.equal(found, wanted[index])


def test_damage_inside_a_scan_ends_neither_the_run_nor_the_pictures_around_it(tmp_path) -> None:
    def picture(number: int) -> bytes:
        rng = np.random.default_rng(number)
        coarse = rng.integers(0, 256, (8, 10, 3), dtype=np.uint8)
        image = Image.fromarray(coarse).resize((200, 160), Image.Resampling.BICUBIC)
        out = io.BytesIO()
        image.save(out, "JPEG", quality=90)
        data = bytearray(out.getvalue())
        if number == 21:
            start = data.index(b"\xff\xda") + 60
            data[start : start + 50] = bytes(50)
        return bytes(data)

    with DatasetWriter(tmp_path / "set", {"image": "picture", "label": "int64"}) as writer:
        for number in range(64):
            writer.write({"image": picture(number), "label": number}, key=str(number))
    options = {"shuffle": False, "output": "uint8"}
    with (
        open_loader(str(tmp_path / "set"), **options) as engine,
        open_loader(
            str(tmp_path / "set"),
            decode_device="cpu",
            gpu_decode_share=None,
            on_error="skip",
            max_bad_fraction=1.0,
            **options,
        ) as cpu,
    ):
        for there, here in zip(engine, cpu, strict=True):
            rows = here["valid"]
            difference = (there["image"][rows].float() - here["image"][rows].float()).abs()
            assert difference.mean() < 3.0

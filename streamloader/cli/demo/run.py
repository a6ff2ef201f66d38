"""The demo from end to end: server, pictures, conversion, prefetch, training with a restart."""

from __future__ import annotations

import math
import os
import secrets
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from streamloader import RandomResizedCrop, StreamLoader
from streamloader.cli._output import Output
from streamloader.cli.demo.pictures import make_pictures
from streamloader.cli.demo.report import StageTimes, render_page
from streamloader.cli.demo.train import TrainReport, train_with_restart
from streamloader.cli.s3_server import SeaweedServer
from streamloader.convert import ConvertReport, Progress, convert
from streamloader.errors import ConfigError
from streamloader.fetch.offline import PrefetchOptions, PrefetchReport, prefetch_offline

REPORT_NAME = "report.html"
PREFIX = "pictures"
_COMPILER_CACHE = "TORCHINDUCTOR_CACHE_DIR"


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What one demo run does.

    Args:
        pictures: how many are made.
        epochs: how often the model sees them.
        batch_size: pictures per step.
        crop: side of the training crops, in pixels.
        seed: of the pictures, the order, the crops and the model.
        out: folder of the report.
        keep: folder where pictures, objects and checkpoint stay; a temporary one if None.
    """

    pictures: int = 2000
    epochs: int = 2
    batch_size: int = 32
    crop: int = 80
    seed: int = 0
    out: Path = Path("demo-out")
    keep: Path | None = None


@dataclass(frozen=True, slots=True)
class DemoReport:
    """What one demo run showed; ``seconds`` is its wall time."""

    url: str
    endpoint_url: str
    converted: ConvertReport
    prefetched: PrefetchReport
    trained: TrainReport
    bytes_from_s3: int
    page: Path
    seconds: float

    def failures(self) -> list[str]:
        """A sentence for each promise that the run did not keep."""
        trained, failures = self.trained, []
        if self.prefetched.errors:
            failures.append(f"{len(self.prefetched.errors)} samples failed their checksum")
        if not trained.learned:
            failures.append(
                f"the mean loss of the last {trained.window_steps} steps, {trained.loss_last:.3f}, "
                f"is not within half of the first ones', {trained.loss_first:.3f}"
            )
        if not trained.exactly_once:
            lost, repeated = trained.lost_and_repeated()
            failures.append(f"the restart lost {lost} samples of the epoch and repeated {repeated}")
        return failures

    def to_json(self) -> dict[str, Any]:
        trained = self.trained
        return {
            "s3": self.url,
            "endpoint_url": self.endpoint_url,
            "samples": self.converted.samples,
            "shards": self.converted.shards,
            "bytes": self.converted.bytes_out,
            "convert_s": round(self.converted.seconds, 3),
            "prefetch": self.prefetched.to_dict(),
            "steps": len(trained.losses),
            "loss_first": _finite_or_none(trained.loss_first),
            "loss_last": _finite_or_none(trained.loss_last),
            "learned": trained.learned,
            "restart_step": trained.restart_step,
            "exactly_once": trained.exactly_once,
            "samples_per_s": round(trained.samples_per_s, 1),
            "bytes_from_s3": self.bytes_from_s3,
            "first_batch_s": round(trained.first_batch_s[0], 3),
            "first_batch_after_restart_s": round(trained.first_batch_s[1], 3),
            "report": str(self.page),
            "seconds": round(self.seconds, 1),
        }

    def facts(self) -> dict[str, str]:
        """The same for people, one line each."""
        trained, window = self.trained, self.trained.window_steps
        first, again = trained.first_batch_s
        lost, repeated = trained.lost_and_repeated()
        prefetched = self.prefetched.to_dict()
        once = "every sample exactly once"
        if not trained.exactly_once:
            once = f"{lost} samples lost, {repeated} repeated"
        return {
            "data set": f"{self.converted.samples:,} pictures in {self.url}",
            "prefetch alone": f"{prefetched['samples_per_s']:,.0f} samples/s, "
            f"{prefetched['mb_per_s']:,.0f} MB/s",
            "training": f"{len(trained.losses)} steps, {trained.samples_per_s:,.0f} samples/s",
            "loss": f"{trained.loss_first:.3f} over the first {window} steps, "
            f"{trained.loss_last:.3f} over the last {window}",
            "restart": f"after step {trained.restart_step}, in mid-epoch: {once}",
            "bytes from S3": f"{self.bytes_from_s3:,}",
            "first batch": f"{first:.2f} s, after the restart {again:.2f} s",
            "report": str(self.page),
            "whole demo": f"{self.seconds:.0f} s",
        }


def run_demo(options: DemoOptions, output: Output) -> DemoReport:
    """Run the demo; nothing is left running, and nothing on disk but the report and ``keep``.

    Raises:
        ConfigError: there is no S3 server program, or ``keep`` holds a demo already.
        StreamLoaderError, StorageError: a step failed; the message says which data and where.
    """
    started = time.perf_counter()
    with ExitStack() as stack:
        stack.enter_context(_end_on_termination())
        folder = _work_folder(options, stack)
        stack.enter_context(_compiler_cache_in(folder))
        output.note("starting an S3 server on loopback")
        server = stack.enter_context(SeaweedServer(folder / "objects"))
        bucket = f"demo-{secrets.token_hex(4)}"
        server.create_bucket(bucket)
        url = f"s3://{bucket}/{PREFIX}"

        _paint(options, folder / PREFIX, output)
        converted = _convert(folder / PREFIX, url, server, output)
        prefetched = _prefetch(options, url, server, output)
        trained = _train(options, converted, url, folder, server, output)
        endpoint_url = server.endpoint_url
    report = DemoReport(
        url=url,
        endpoint_url=endpoint_url,
        converted=converted,
        prefetched=prefetched,
        trained=trained,
        bytes_from_s3=sum(stats["counters"]["storage.bytes_read"] for stats in trained.stats),
        page=options.out.resolve() / REPORT_NAME,
        seconds=time.perf_counter() - started,
    )
    _write_page(report)
    return report


def _finite_or_none(value: float) -> float | None:
    """JSON has no NaN, which the loss of a run that diverged is."""
    return value if math.isfinite(value) else None


@contextmanager
def _end_on_termination() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind like Ctrl-C, so that the server and the files go too."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _compiler_cache_in(folder: Path) -> Iterator[None]:
    """Keep torch's compiler, which ``torch.optim`` imports, from leaving a folder in ``/tmp``."""
    if _COMPILER_CACHE in os.environ:
        yield
        return
    os.environ[_COMPILER_CACHE] = str(folder / "compiler-cache")
    try:
        yield
    finally:
        del os.environ[_COMPILER_CACHE]


def _work_folder(options: DemoOptions, stack: ExitStack) -> Path:
    if options.keep is None:
        return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="streamloader-demo-")))
    folder = options.keep.resolve()
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"--keep {folder}: the folder is not empty; name a new one")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _paint(options: DemoOptions, folder: Path, output: Output) -> None:
    output.note(f"painting {options.pictures:,} pictures")
    with output.progress("painting", "pictures") as bar:
        make_pictures(
            folder,
            options.pictures,
            seed=options.seed,
            painted=lambda done: bar.update(done, options.pictures),
        )


def _convert(folder: Path, url: str, server: SeaweedServer, output: Output) -> ConvertReport:
    output.note(f"converting them into {url}")
    with output.progress("converting") as bar:

        def moved(progress: Progress) -> None:
            bar.update(progress.samples, progress.total_samples)

        return convert(folder, url, storage_options=server.storage_options, progress=moved)


def _prefetch(
    options: DemoOptions, url: str, server: SeaweedServer, output: Output
) -> PrefetchReport:
    output.note("reading it once by the fetch path alone")
    wanted = PrefetchOptions(batch_size=options.batch_size, seed=options.seed)
    with output.progress("prefetching") as bar:
        return prefetch_offline(
            url, wanted, storage_options=server.readonly_storage_options, progress=bar.update
        )


def _train(
    options: DemoOptions,
    converted: ConvertReport,
    url: str,
    folder: Path,
    server: SeaweedServer,
    output: Output,
) -> TrainReport:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    output.note(f"training from the bucket on {device}, with a restart in mid-epoch")

    def open_loader() -> StreamLoader:
        return StreamLoader(
            url,
            batch_size=options.batch_size,
            transform=RandomResizedCrop(options.crop, flip=0.5),
            shuffle=True,
            seed=options.seed,
            device=device,
            storage_options=server.readonly_storage_options,
        )

    steps = options.epochs * -(-converted.samples // options.batch_size)
    with output.progress("training", "steps") as bar:
        return train_with_restart(
            open_loader,
            samples=converted.samples,
            num_classes=len(converted.classes),
            epochs=options.epochs,
            checkpoint=folder / "checkpoint.pt",
            seed=options.seed,
            device=device,
            stepped=lambda done, _loss: bar.update(done, steps),
        )


def _write_page(report: DemoReport) -> None:
    trained = report.trained
    assert trained.crops is not None, "a run of at least one step keeps the first pictures"
    page = render_page(
        "streamloader demo",
        facts=report.facts(),
        losses=trained.losses,
        restart_step=trained.restart_step,
        stages=_stage_times(trained.stats[-1]),
        crops=trained.crops,
    )
    report.page.parent.mkdir(parents=True, exist_ok=True)
    report.page.write_text(page, encoding="utf-8")


def _stage_times(stats: dict[str, Any]) -> list[StageTimes]:
    """The stages of the loader that ran the longer part, after the restart."""
    return [
        StageTimes(
            name.removesuffix("_s"),
            times["count"],
            times["p50"],
            times["p95"],
            times["p99"],
            times["max"],
        )
        for name, times in stats["times_ms"].items()
    ]

"""The arguments of a loader, checked once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from streamloader._choice import SamplerWeights, Subset
from streamloader._user_code import UserCode
from streamloader.decode import PictureLimits, PixelFormat, Transform
from streamloader.decode.gpu import check_share
from streamloader.errors import ConfigError
from streamloader.fetch import CacheOptions
from streamloader.order.plan import LAST_BATCH_RULES, LastBatch
from streamloader.source import Source
from streamloader.topology import PIN_WORKERS, PinWorkers

OnError = Literal["raise", "skip"]
Feed = Literal["auto", "thread", "process"]
FEEDS = ("auto", "thread", "process")


@dataclass(frozen=True, slots=True)
class Settings:
    """Arguments of ``StreamLoader`` after validation; see there for their meaning."""

    sources: tuple[Source, ...]
    mixed: bool
    batch_size: int
    transform: Transform | None
    shuffle: bool | str
    seed: int
    subset: Subset | None
    sampler_weights: SamplerWeights | None
    epoch_size: int | None
    last_batch: LastBatch
    num_workers: int | None
    pin_workers: PinWorkers
    prefetch_batches: int
    memory_limit_bytes: int
    limits: PictureLimits
    user_code: UserCode
    pack: tuple[str, ...]
    pixels: PixelFormat
    deterministic: bool
    on_error: OnError
    max_bad_fraction: float
    stall_timeout_s: float
    gpu_decode_share: float | None
    feed: Feed
    cache: CacheOptions | None
    storage_options: Mapping[str, Any] = field(repr=False)

    @property
    def url(self) -> str:
        """Where the data sets lie, for messages."""
        return " and ".join(source.url for source in self.sources)

    def __post_init__(self) -> None:
        if len(self.sources) > 1 and (self.subset is not None or self.sampler_weights is not None):
            raise ConfigError(
                "subset and sampler_weights choose from one data set: leave them out for a mixture,"
                " which draws by the weights of its data sets"
            )
        at_least = {"batch_size": 1, "prefetch_batches": 1}
        if self.num_workers is not None:
            at_least["num_workers"] = 1
        for name, least in at_least.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(f"{name} must be a whole number from {least} up, got {value!r}")
        if self.user_code and self.pixels.dtype == "bfloat16":
            raise ConfigError(
                "numpy has no bfloat16 for map, batch_map and collate: use output='float32' and"
                " convert on the device"
            )
        if self.pin_workers not in PIN_WORKERS:
            raise ConfigError(f"pin_workers must be one of {PIN_WORKERS}, got {self.pin_workers!r}")
        if not isinstance(self.deterministic, bool):
            raise ConfigError(f"deterministic must be True or False, got {self.deterministic!r}")
        if self.on_error not in ("raise", "skip"):
            raise ConfigError(f"on_error must be 'raise' or 'skip', got {self.on_error!r}")
        if self.feed not in FEEDS:
            raise ConfigError(f"feed must be one of {FEEDS}, got {self.feed!r}")
        if not 0 <= self.max_bad_fraction <= 1:
            raise ConfigError(f"max_bad_fraction must lie in [0, 1], got {self.max_bad_fraction!r}")
        if self.gpu_decode_share is not None:
            check_share(self.gpu_decode_share)
        if not (self.stall_timeout_s > 0 and math.isfinite(self.stall_timeout_s)):
            raise ConfigError(
                f"stall_timeout_s must be a positive number, got {self.stall_timeout_s!r}"
            )


def choose_last_batch(last_batch: LastBatch | None, drop_last: bool | None) -> LastBatch:
    """``drop_last=True`` is the familiar name of ``last_batch="drop"``; both is an error."""
    if drop_last is not None and last_batch is not None:
        raise ConfigError("give last_batch or drop_last, not both")
    if drop_last:
        return "drop"
    rule = last_batch or "pad"
    if rule not in LAST_BATCH_RULES:
        raise ConfigError(f"last_batch must be one of {LAST_BATCH_RULES}, got {last_batch!r}")
    return rule

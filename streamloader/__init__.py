"""streamloader trains straight from object storage, and the GPU never waits.

Names are imported when they are first used, so ``import streamloader`` stays cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamloader.batch import Batch
    from streamloader.convert import DatasetWriter
    from streamloader.dataset import Dataset, open_dataset
    from streamloader.decode import CenterCrop, Compose, Joint, RandomResizedCrop, Resize
    from streamloader.errors import (
        ConfigError,
        SampleError,
        ShardError,
        StateMismatch,
        StreamLoaderError,
    )
    from streamloader.loader import StreamLoader
    from streamloader.monitor import pipeline_times
    from streamloader.source import Source

__version__ = "0.1.0"

_HOMES = {
    "Batch": "batch",
    "CenterCrop": "decode",
    "Compose": "decode",
    "ConfigError": "errors",
    "Dataset": "dataset",
    "DatasetWriter": "convert",
    "Joint": "decode",
    "RandomResizedCrop": "decode",
    "Resize": "decode",
    "SampleError": "errors",
    "ShardError": "errors",
    "Source": "source",
    "StateMismatch": "errors",
    "StreamLoader": "loader",
    "StreamLoaderError": "errors",
    "open_dataset": "dataset",
    "pipeline_times": "monitor",
}

__all__ = [
    "Batch",
    "CenterCrop",
    "Compose",
    "ConfigError",
    "Dataset",
    "DatasetWriter",
    "Joint",
    "RandomResizedCrop",
    "Resize",
    "SampleError",
    "ShardError",
    "Source",
    "StateMismatch",
    "StreamLoader",
    "StreamLoaderError",
    "__version__",
    "open_dataset",
    "pipeline_times",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'streamloader' has no attribute {name!r}")
    value = getattr(import_module(f"streamloader.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

"""A device in host memory, whose streams run at once, and an engine that decodes with Pillow."""

from __future__ import annotations

import ctypes
import io
from collections.abc import Collection
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from PIL import Image

from streamloader.decode.gpu import NvjpegError
from streamloader.transfer import SlotLayout


class _Owned:
    def __init__(self, memory: np.ndarray, owner: object) -> None:
        self.owner = (memory, owner)
        self.__array_interface__ = memory.__array_interface__


class CpuDevice:
    """A ``DeviceBackend`` and ``HostPinner``; ``pinned`` has the addresses that are registered."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.pinned: set[int] = set()

    def register(self, address: int, nbytes: int) -> None:
        self.pinned.add(address)

    def unregister(self, address: int) -> None:
        self.pinned.remove(address)

    def new_stream(self) -> Any:
        return None

    current_stream = new_stream

    def on(self, stream: Any) -> Any:
        return nullcontext()

    def handle(self, stream: Any) -> int:
        return 0

    def allocate(self, nbytes: int, stream: Any) -> torch.Tensor:
        return torch.full((nbytes,), 0xEE, dtype=torch.uint8)

    def copy_to_device(self, host: np.ndarray, memory: Any, nbytes: int, stream: Any) -> None:
        memory[:nbytes] = torch.from_numpy(host[:nbytes])

    def copy_on_device(self, source: Any, target: Any, nbytes: int, stream: Any) -> None:
        target[:nbytes] = source[:nbytes]

    def record_event(self, stream: Any) -> None:
        return None

    def stream_wait(self, stream: Any, event: Any) -> None:
        pass

    def synchronize(self, event: Any) -> None:
        pass

    def tensors(self, memory: Any, layout: SlotLayout, rows: int, owner: object) -> dict[str, Any]:
        views = layout.views(np.asarray(_Owned(memory.numpy(), owner)), rows)
        tensors = {name: torch.from_numpy(view) for name, view in views.items()}
        for field in layout.fields:
            if field.torch_dtype is not None:
                tensors[field.name] = tensors[field.name].view(getattr(torch, field.torch_dtype))
        return tensors


class PillowEngine:
    """A ``JpegEngine`` on host memory.

    Args:
        refuses: compressed pictures; a call that has one of them is refused.
    """

    version = "0"

    def __init__(self, refuses: Collection[bytes] = ()) -> None:
        self.refuses = frozenset(refuses)
        self.calls: list[int] = []
        self.closed = False

    def decode(self, addresses: Any, lengths: Any, images: Any, stream: int) -> None:
        self.calls.append(len(addresses))
        pictures = [
            ctypes.string_at(address, length)
            for address, length in zip(addresses.tolist(), lengths.tolist(), strict=True)
        ]
        if self.refuses.intersection(pictures):
            raise NvjpegError("nvjpegDecodeBatched", 3)
        for picture, image in zip(pictures, images, strict=True):
            with Image.open(io.BytesIO(picture)) as opened:
                pixels = np.asarray(opened.convert("RGB"))
            pitch, target = int(image["pitch"][0]), int(image["channel"][0])
            assert pitch == pixels.shape[1] * 3
            ctypes.memmove(target, pixels.tobytes(), pixels.nbytes)

    def close(self) -> None:
        self.closed = True

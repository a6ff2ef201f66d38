"""Batches on a CUDA device: copied by the transfer station, normalised there."""

from __future__ import annotations

from functools import cached_property, partial
from typing import Any

from streamloader._assemble import Filled
from streamloader._delivery import Delivery, as_tensor
from streamloader._epoch import EpochRun
from streamloader.decode import PixelFormat
from streamloader.transfer import CudaBackend, HostMemory, TransferStation

_DEVICE_SLOTS = 2


class CudaDelivery(Delivery):
    """Host slots are pinned; each run has a station of its own, so that ending it is simple.

    Pictures cross the bus as bytes and become floats on the device, unless the user's code
    must see floats on the host. What that code returns is copied without the station.
    """

    def __init__(self, device: str, pixels: PixelFormat, *, on_host: bool) -> None:
        self._backend = CudaBackend(device)
        self._pixels = pixels
        self._on_host = on_host
        slot_pixels = pixels if on_host else PixelFormat()
        gpu = self._backend.device.index
        super().__init__(partial(HostMemory, pin=self._backend), slot_pixels, gpu)

    def begin(self, run: EpochRun) -> None:
        device = str(self._backend.device)
        run.station = TransferStation(device, self.layout, self._backend, _DEVICE_SLOTS)

    def ready(self, run: EpochRun, filled: Filled) -> None:
        assert run.station is not None
        if filled.mapped is not None:
            return
        run.station.send(filled.slot, filled)
        run.taken(filled)

    def deliver(self, run: EpochRun, filled: Filled) -> dict[str, Any]:
        assert run.station is not None
        if filled.mapped is not None:
            return {name: self._moved(value) for name, value in filled.mapped.items()}
        _, batch = run.station.receive(run.settings.stall_timeout_s)
        fields: dict[str, Any] = dict(batch.tensors)
        for field in self.fields.pictures:
            fields[field.name] = self._finish(fields[field.name].permute(0, 3, 1, 2))
        fields.update({name: self._moved(value) for name, value in filled.variable.items()})
        return fields

    def _moved(self, value: Any) -> Any:
        value = as_tensor(value)
        return value.to(self._backend.device) if hasattr(value, "is_pinned") else value

    def _finish(self, pictures: Any) -> Any:
        """uint8 [B, 3, H, W] as the asked type, (x / 255 - mean) / std for a float type."""
        if self._on_host or self._pixels.dtype == "uint8":
            return pictures
        import torch

        mean, std = self._channel_constants
        normal = (pictures.to(torch.float32) / 255 - mean) / std
        return normal.to(getattr(torch, self._pixels.dtype))

    @cached_property
    def _channel_constants(self) -> tuple[Any, Any]:
        """mean and std as float32 [1, 3, 1, 1] on the device."""
        import torch

        mean = torch.tensor(self._pixels.mean or (0.0,) * 3, dtype=torch.float32)
        std = torch.tensor(self._pixels.std or (1.0,) * 3, dtype=torch.float32)
        device = self._backend.device
        return mean.view(1, 3, 1, 1).to(device), std.view(1, 3, 1, 1).to(device)

    def end(self, run: EpochRun) -> None:
        if run.station is not None:
            run.station.close()

    def stats(self) -> dict[str, Any]:
        return {"device": str(self._backend.device)}

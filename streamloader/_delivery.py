"""The last step: a filled slot becomes tensors on the consumer's device."""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from streamloader._assemble import Filled
from streamloader._fields import BatchFields
from streamloader.decode import PixelFormat
from streamloader.errors import ConfigError
from streamloader.transfer import FieldSpec, HostMemory, SlotLayout, lease_arrays

if TYPE_CHECKING:
    from streamloader._epoch import EpochRun


class Delivery(ABC):
    """Takes filled slots of a run in batch order and gives the fields of batches.

    Args:
        memory_factory: makes the memory of a host slot.
        slot_pixels: how pictures lie in the slot.
    """

    def __init__(
        self, memory_factory: Callable[[int], HostMemory], slot_pixels: PixelFormat
    ) -> None:
        self.memory_factory = memory_factory
        self.slot_pixels = slot_pixels
        self._fields: BatchFields | None = None
        self._layout: SlotLayout | None = None

    def open(self, fields: BatchFields, layout: SlotLayout) -> None:
        """Called once, when the data set is known."""
        self._fields = fields
        self._layout = layout

    @property
    def fields(self) -> BatchFields:
        assert self._fields is not None
        return self._fields

    @property
    def layout(self) -> SlotLayout:
        assert self._layout is not None
        return self._layout

    @abstractmethod
    def begin(self, run: EpochRun) -> None:
        """A run is about to start."""

    @abstractmethod
    def ready(self, run: EpochRun, filled: Filled) -> None:
        """A batch is filled; called in batch order in a worker's thread, must not block."""

    @abstractmethod
    def deliver(self, run: EpochRun, filled: Filled) -> dict[str, Any]:
        """Fields of the batch that ``run.take`` gave, on the consumer's device."""

    @abstractmethod
    def end(self, run: EpochRun) -> None:
        """The run is over; gives back what is still held of its slots."""

    @abstractmethod
    def stats(self) -> dict[str, Any]: ...


class CpuDelivery(Delivery):
    """Leases the host slot itself: torch tensors if torch is installed, else numpy arrays."""

    def __init__(self, pixels: PixelFormat) -> None:
        super().__init__(HostMemory, pixels)
        self._torch = importlib.util.find_spec("torch") is not None

    def begin(self, run: EpochRun) -> None:
        """Nothing to prepare."""

    def ready(self, run: EpochRun, filled: Filled) -> None:
        """The consumer takes it where it lies."""

    def deliver(self, run: EpochRun, filled: Filled) -> dict[str, Any]:
        run.taken(filled)
        arrays = lease_arrays(filled.slot)
        pictures = {field.name for field in self.fields.pictures}
        fields: dict[str, Any] = {}
        for spec in self.fields.slot:
            value = self._tensor(arrays[spec.name], spec)
            fields[spec.name] = channels_first(value) if spec.name in pictures else value
        fields.update(filled.variable)
        return fields

    def _tensor(self, array: npt.NDArray[Any], spec: FieldSpec) -> Any:
        if not self._torch:
            return array
        import torch

        tensor = torch.from_numpy(array)
        return tensor.view(getattr(torch, spec.torch_name)) if spec.torch_dtype else tensor

    def end(self, run: EpochRun) -> None:
        """The run gives back the slots that nobody took."""

    def stats(self) -> dict[str, Any]:
        return {"device": "cpu"}


def channels_first(pictures: Any) -> Any:
    """[B, H, W, 3] as [B, 3, H, W] with channels_last strides; no copy."""
    if isinstance(pictures, np.ndarray):
        return pictures.transpose(0, 3, 1, 2)
    return pictures.permute(0, 3, 1, 2)


def open_delivery(device: Any, local_rank: int, pixels: PixelFormat) -> Delivery:
    """The delivery for a device as the user names it; None chooses.

    Raises:
        ConfigError: no such device, or a CUDA device without torch.
    """
    name = str(device) if device is not None else _default_device(local_rank)
    if name == "cpu":
        return CpuDelivery(pixels)
    if name != "cuda" and not name.startswith("cuda:"):
        raise ConfigError(f"device must be 'cpu', 'cuda' or 'cuda:N', got {name!r}")
    if importlib.util.find_spec("torch") is None:
        raise ConfigError(
            f"device={name!r} needs torch: pip install 'streamloader[torch]', or use device='cpu'"
        )
    from streamloader._cuda_delivery import CudaDelivery

    return CudaDelivery(name, pixels)


def _default_device(local_rank: int) -> str:
    if importlib.util.find_spec("torch") is None:
        return "cpu"
    import torch

    if not torch.cuda.is_available():
        return "cpu"
    return f"cuda:{local_rank % torch.cuda.device_count()}"

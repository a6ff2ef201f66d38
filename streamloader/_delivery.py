"""The last step: a filled slot becomes tensors on the consumer's device."""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from streamloader._assemble import Filled, host_fields
from streamloader._fields import BatchFields
from streamloader._routing import Router
from streamloader.decode import Decoder, PixelFormat, Transform
from streamloader.decode.gpu import SLAB_BYTES
from streamloader.errors import ConfigError
from streamloader.fetch import Arena
from streamloader.monitor import Counters
from streamloader.transfer import HostMemory, SlotLayout, lease_arrays

if TYPE_CHECKING:
    from streamloader._run import Run

DecodeDevice = Literal["auto", "cpu", "cuda"]
DECODE_DEVICES = ("auto", "cpu", "cuda")
_DEFAULT_GPU_SHARE = 1.0


class Delivery(ABC):
    """Takes filled slots of a run in batch order and gives the fields of batches.

    Args:
        memory_factory: makes the memory of a host slot, as ``HostMemory`` does.
        slot_pixels: how pictures lie in the slot.
        gpu: number of the GPU for CUDA, None for the CPU.

    Attributes:
        decodes_on_device: engines of a device decode pictures.
    """

    def __init__(
        self,
        memory_factory: Callable[..., HostMemory],
        slot_pixels: PixelFormat,
        gpu: int | None = None,
    ) -> None:
        self.memory_factory = memory_factory
        self.slot_pixels = slot_pixels
        self.gpu = gpu
        self.decodes_on_device = False
        self._fields: BatchFields | None = None
        self._layout: SlotLayout | None = None

    def slot_layout(
        self,
        fields: BatchFields,
        batch_size: int,
        room_bytes: int,  # noqa: ARG002 - for others
    ) -> SlotLayout:
        """What a slot holds: the fields of a batch, and what the delivery needs besides.

        Args:
            room_bytes: for a compressed picture that a device decodes, see ``room_for_picture``.
        """
        return SlotLayout.build(fields.slot, batch_size)

    def open(
        self,
        fields: BatchFields,
        layout: SlotLayout,
        *,
        arena: Arena | None,
        decoder: Decoder | None,  # noqa: ARG002 - for others
        counters: Counters,
    ) -> None:
        """Called once, when the data set is known."""
        self._fields = fields
        self._layout = layout
        self.arena = arena
        self.counters = counters

    def gpu_share(self, asked: float | None) -> float | None:
        """Share of the pictures that the device decodes; None if it decodes none.

        Args:
            asked: by the user; None for the default.
        """
        if not self.decodes_on_device:
            return None
        return _DEFAULT_GPU_SHARE if asked is None else asked

    def router(self, share: float | None, room_bytes: int, counters: Counters) -> Router | None:
        """Divides pictures between the decode workers and the device; None: no such division.

        Args:
            share: asked for by the user; None for the default.
            room_bytes: see ``slot_layout``.
        """
        chosen = self.gpu_share(share)
        return None if chosen is None else Router(chosen, room_bytes, SLAB_BYTES, counters)

    def decode_path(self, decoder: Decoder | None) -> str:
        """What decodes pictures, for reports and the state."""
        return "none" if decoder is None else decoder.name

    @property
    def fields(self) -> BatchFields:
        assert self._fields is not None
        return self._fields

    @property
    def layout(self) -> SlotLayout:
        assert self._layout is not None
        return self._layout

    @abstractmethod
    def begin(self, run: Run) -> None:
        """A run is about to start."""

    @abstractmethod
    def ready(self, run: Run, filled: Filled) -> None:
        """A batch is filled; called in batch order in a worker's thread, must not block."""

    @abstractmethod
    def deliver(self, run: Run, filled: Filled) -> dict[str, Any]:
        """Fields of the batch that ``run.take`` gave, on the consumer's device."""

    def consumer_waits(self, run: Run) -> bool:
        """Whether the training loop waits for a batch of this run at this moment."""
        return run.outbox.consumer_waits

    @abstractmethod
    def end(self, run: Run) -> None:
        """The run is over; gives back what is still held of its slots."""

    def close(self) -> None:  # noqa: B027 - most have nothing to free
        """Frees what lives as long as the loader; no run is active any more. Idempotent."""

    @abstractmethod
    def stats(self) -> dict[str, Any]: ...


class CpuDelivery(Delivery):
    """Leases the host slot itself: torch tensors if torch is installed, else numpy arrays."""

    def __init__(self, pixels: PixelFormat) -> None:
        super().__init__(HostMemory, pixels)
        self._torch = importlib.util.find_spec("torch") is not None

    def begin(self, run: Run) -> None:
        """Nothing to prepare."""

    def ready(self, run: Run, filled: Filled) -> None:
        """The consumer takes it where it lies."""

    def deliver(self, run: Run, filled: Filled) -> dict[str, Any]:
        run.taken(filled)
        if filled.mapped is not None:
            return self._tensors(filled.mapped)
        arrays = lease_arrays(filled.slot)
        return self._tensors(host_fields(self.fields, arrays, filled.variable))

    def _tensors(self, batch: dict[str, Any]) -> dict[str, Any]:
        if not self._torch:
            return batch
        tensors = {name: as_tensor(value) for name, value in batch.items()}
        for spec in self.fields.slot:
            if spec.torch_dtype is not None and spec.name in tensors:
                tensors[spec.name] = as_torch_dtype(tensors[spec.name], spec.torch_dtype)
        return tensors

    def end(self, run: Run) -> None:
        """The run gives back the slots that nobody took."""

    def stats(self) -> dict[str, Any]:
        return {"device": "cpu"}


def as_tensor(value: Any) -> Any:
    """An array of numbers as a tensor that shares its memory; anything else as it is."""
    import torch

    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf":
        return value
    return torch.from_numpy(value if value.flags.writeable else value.copy())


def as_torch_dtype(tensor: Any, name: str) -> Any:
    """The same bits as the torch type that numpy lacks."""
    import torch

    return tensor.view(getattr(torch, name)) if tensor.dtype == torch.uint16 else tensor


def open_delivery(
    device: Any,
    local_rank: int,
    pixels: PixelFormat,
    *,
    transform: Transform | None = None,
    on_host: bool = False,
    decode_device: DecodeDevice = "auto",
    static_buffers: bool = False,
) -> Delivery:
    """The delivery for a device as the user names it; None chooses.

    Args:
        transform: what is done to pictures, None if they stay bytes.
        on_host: pictures must have their final type on the host, for the user's code.
        decode_device: where JPEGs are decoded.
        static_buffers: every batch at the same addresses of the device.

    Raises:
        ConfigError: no such device, a CUDA device without torch, or what was asked for does not
            work on it.
    """
    if decode_device not in DECODE_DEVICES:
        raise ConfigError(f"decode_device must be one of {DECODE_DEVICES}, got {decode_device!r}")
    name = str(device) if device is not None else _default_device(local_rank)
    if name.partition(":")[0] == "cpu":  # torch numbers CPUs too, and there is one
        for option, asked in (
            ("static_buffers=True", static_buffers),
            ("decode_device='cuda'", decode_device == "cuda"),
        ):
            if asked:
                raise ConfigError(f"{option} needs a CUDA device, and batches are for the CPU here")
        return CpuDelivery(pixels)
    if name != "cuda" and not name.startswith("cuda:"):
        raise ConfigError(f"device must be 'cpu', 'cuda' or 'cuda:N', got {name!r}")
    if importlib.util.find_spec("torch") is None:
        raise ConfigError(
            f"device={name!r} needs torch: pip install 'streamloader[torch]', or use device='cpu'"
        )
    from streamloader._cuda_delivery import CudaDelivery
    from streamloader.transfer import CudaBackend

    return CudaDelivery(
        CudaBackend(name),
        pixels,
        transform,
        on_host=on_host,
        decode_device=decode_device,
        static_buffers=static_buffers,
    )


def _default_device(local_rank: int) -> str:
    if importlib.util.find_spec("torch") is None:
        return "cpu"
    import torch

    if not torch.cuda.is_available():
        return "cpu"
    return f"cuda:{local_rank % torch.cuda.device_count()}"

"""CUDA through torch. The only module here that touches torch, and only once it is used."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamloader.errors import ConfigError
from streamloader.transfer.backend import DeviceMemory, Event, Stream, Tensor
from streamloader.transfer.layout import SlotLayout
from streamloader.transfer.memory import PinningError

_HOST_REGISTER_PORTABLE = 1


class _OwnedBytes:
    """Device bytes that torch can wrap without a copy; torch's storage keeps this object."""

    __slots__ = ("__cuda_array_interface__", "_owner")

    def __init__(self, address: int, nbytes: int, owner: object) -> None:
        self._owner = owner
        self.__cuda_array_interface__: dict[str, Any] = {
            "version": 3,
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
        }


class CudaBackend:
    """One CUDA device as a ``DeviceBackend``, and a ``HostPinner`` for its host slots.

    Args:
        device: "cuda:1", or "cuda" for the device that is current now.

    Raises:
        ConfigError: torch sees no such CUDA device.
    """

    def __init__(self, device: str = "cuda") -> None:
        import torch

        wanted = torch.device(device)
        count = torch.cuda.device_count()
        if wanted.type != "cuda" or count == 0 or (wanted.index or 0) >= count:
            raise ConfigError(
                f"torch sees {count} CUDA devices here and none is {device!r}; choose another "
                "device or device='cpu'"
            )
        index = torch.cuda.current_device() if wanted.index is None else wanted.index
        # Any: torch leaves parts of these calls untyped.
        self._torch: Any = torch
        self.device = torch.device("cuda", index)

    def register(self, address: int, nbytes: int) -> None:
        """Page-locks host memory for every device of this process; see ``HostPinner``."""
        # In the device's own context: the default device of a rank is not device 0.
        with self._torch.cuda.device(self.device):
            status = int(
                self._torch.cuda.cudart().cudaHostRegister(address, nbytes, _HOST_REGISTER_PORTABLE)
            )
            if status != 0:
                self._clear_last_error()
                raise PinningError(
                    f"CUDA refused to pin {nbytes} bytes of host memory (error {status}); raise "
                    "the memlock limit of the process or container"
                )

    def unregister(self, address: int) -> None:
        """Undoes :meth:`register`.

        Raises:
            RuntimeError: CUDA refused.
        """
        with self._torch.cuda.device(self.device):
            status = int(self._torch.cuda.cudart().cudaHostUnregister(address))
            if status != 0:
                self._clear_last_error()
                raise RuntimeError(
                    f"CUDA refused to unpin host memory at {address:#x} (error {status}); "
                    "later CUDA calls may fail, restart the process"
                )

    def _clear_last_error(self) -> None:
        # CUDA reports a failed call once more at the next kernel launch, whoever launches it, and
        # torch has no call that clears it. The wheels load the runtime for the whole process.
        get_last_error = getattr(ctypes.CDLL(None), "cudaGetLastError", None)
        if get_last_error is not None:
            get_last_error()

    def new_stream(self) -> Stream:
        return self._torch.cuda.Stream(self.device)

    def on(self, stream: Stream) -> Any:
        """A context in which the calling thread enqueues its work on ``stream``, of this device."""
        return self._torch.cuda.stream(stream)

    def handle(self, stream: Stream) -> int:
        """``stream`` as a cudaStream_t."""
        return int(stream.cuda_stream)

    def current_stream(self) -> Stream:
        return self._torch.cuda.current_stream(self.device)

    def allocate(self, nbytes: int, stream: Stream) -> DeviceMemory:
        with self._torch.cuda.stream(stream):
            return self._torch.empty(nbytes, dtype=self._torch.uint8, device=self.device)

    def copy_to_device(
        self,
        host: NDArray[np.uint8],
        memory: DeviceMemory,
        nbytes: int,
        stream: Stream,
    ) -> None:
        with self._torch.cuda.stream(stream):
            memory[:nbytes].copy_(self._torch.from_numpy(host[:nbytes]), non_blocking=True)

    def copy_on_device(
        self,
        source: DeviceMemory,
        target: DeviceMemory,
        nbytes: int,
        stream: Stream,
    ) -> None:
        with self._torch.cuda.stream(stream):
            target[:nbytes].copy_(source[:nbytes], non_blocking=True)

    def record_event(self, stream: Stream) -> Event:
        # blocking: a host wait sleeps instead of spinning on a core that decoding needs.
        event = self._torch.cuda.Event(blocking=True)
        event.record(stream)
        return event

    def stream_wait(self, stream: Stream, event: Event) -> None:
        stream.wait_event(event)

    def synchronize(self, event: Event) -> None:
        event.synchronize()

    def tensors(
        self, memory: DeviceMemory, layout: SlotLayout, rows: int, owner: object
    ) -> dict[str, Tensor]:
        """See ``DeviceBackend``: every tensor shares one storage, which keeps ``owner``."""
        # The allocator then waits for the consumer's stream before it gives the memory to others.
        memory.record_stream(self._torch.cuda.current_stream(self.device))
        flat = self._torch.as_tensor(
            _OwnedBytes(memory.data_ptr(), memory.numel(), owner), device=self.device
        )
        tensors = {}
        for region in layout.regions:
            field = region.field
            packed = flat[region.offset : region.end].view(getattr(self._torch, field.torch_name))
            tensors[field.name] = packed.view(layout.batch_size, *field.shape)[:rows]
        return {field.name: tensors[field.name] for field in layout.fields}

"""Batches on a CUDA device: copied by the transfer station, their pixels made there."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from streamloader._assemble import Filled
from streamloader._carried import CARRIED_SUFFIX
from streamloader._delivery import DecodeDevice, Delivery, as_tensor
from streamloader._device_filling import DeviceFilling, device_layout
from streamloader._routing import TABLE_SUFFIX, table_spec
from streamloader.decode import Decoder, PixelFormat, Transform, output_size
from streamloader.decode.gpu import GpuDecoder, PacedEngine, RowMaker
from streamloader.errors import ConfigError
from streamloader.fetch import Arena
from streamloader.monitor import Counters
from streamloader.transfer import (
    CudaBackend,
    FieldSpec,
    Filling,
    HostMemory,
    PinnedArray,
    PlainCopy,
    SlotLayout,
    TransferStation,
)

if TYPE_CHECKING:
    from streamloader._fields import BatchFields
    from streamloader._run import Run

logger = logging.getLogger("streamloader.loader")

_DEVICE_SLOTS = 2
_DEVICE_SLOTS_WITH_ENGINES = 3


class CudaDelivery(Delivery):
    """Host slots are pinned; each run has a station of its own, so that ending it is simple.

    Pictures cross the bus as bytes, or compressed for the engines, and become floats on the
    device, unless the user's code must see floats on the host. What that code returns is copied
    without the station.

    Args:
        backend: the device.
        pixels: final form of pictures.
        transform: what is done to them, None if they stay bytes.
        on_host: pictures must have their final form on the host, for the user's code.
        decode_device: "cpu", "cuda", or "auto" for the engines where they can be used.
        static_buffers: every batch at the same addresses.
        engine: decodes JPEGs; None opens nvJPEG where it is wanted.
    """

    def __init__(
        self,
        backend: CudaBackend,
        pixels: PixelFormat,
        transform: Transform | None,
        *,
        on_host: bool,
        decode_device: DecodeDevice = "auto",
        static_buffers: bool = False,
        engine: Any = None,
    ) -> None:
        self._backend = backend
        self._pixels = pixels
        self._on_host = on_host
        self._static_buffers = static_buffers
        self._static_memory: Any = None
        self._maker: RowMaker | None = None
        self._decoder: GpuDecoder | None = None
        self._pinned: PinnedArray | None = None
        slot_pixels = pixels if on_host else PixelFormat()
        super().__init__(partial(HostMemory, pin=backend), slot_pixels, backend.device.index)
        self._engine = engine
        if decode_device != "cpu":
            self._open_engine(transform, decode_device)

    def _open_engine(self, transform: Transform | None, decode_device: DecodeDevice) -> None:
        """Opens the engines, or says why the CPU decodes."""
        try:
            self._check_needs(transform)
            if self._engine is None:
                with self._backend.on(self._backend.current_stream()):
                    self._engine = PacedEngine()
        except ConfigError as reason:
            if decode_device == "cuda":
                raise ConfigError(f"decode_device='cuda' cannot work: {reason}") from reason
            logger.info("decode_device='auto' chose the CPU: %s", reason)
            return
        self.decodes_on_device = True
        if decode_device == "auto":
            logger.info("decode_device='auto' chose the JPEG engines of the GPU")

    def _check_needs(self, transform: Transform | None) -> None:
        from streamloader.decode import Joint

        if transform is None:
            raise ConfigError("without a transform no picture is decoded")
        if isinstance(transform, Joint):
            raise ConfigError("a Joint is decoded on the CPU")
        if self._on_host:
            raise ConfigError("map, batch_map and collate need the pixels on the host")

    def slot_layout(
        self,
        fields: BatchFields,
        batch_size: int,
        room_bytes: int,  # noqa: ARG002 - the engines read in the blocks themselves
    ) -> SlotLayout:
        tables = map(table_spec, fields.pictures) if self.decodes_on_device else ()
        return SlotLayout.build((*fields.slot, *tables), batch_size)

    def open(
        self,
        fields: BatchFields,
        layout: SlotLayout,
        *,
        arena: Arena | None,
        decoder: Decoder | None,
        counters: Counters,
    ) -> None:
        super().open(fields, layout, arena=arena, decoder=decoder, counters=counters)
        if decoder is None or self._on_host or not self._makes_pixels:
            return
        size = output_size(decoder.transform)
        self._maker = RowMaker(self._backend.device, size, self._pixels)
        if self.decodes_on_device:
            if arena is not None:
                self._pinned = PinnedArray(arena.array, self._backend)
            self._decoder = GpuDecoder(self._engine, self._backend, self._maker, counters)

    @property
    def _makes_pixels(self) -> bool:
        return self.decodes_on_device or self._pixels.dtype != "uint8"

    def decode_path(self, decoder: Decoder | None) -> str:
        path = super().decode_path(decoder)
        if not self.decodes_on_device:
            return path
        return f"nvjpeg {getattr(self._engine, 'version', '')}".rstrip() + f" + {path}"

    def begin(self, run: Run) -> None:
        filling = self._filling(run)
        if self._static_buffers and self._static_memory is None:
            # One for all runs: a captured graph outlives an epoch.
            self._static_memory = self._backend.allocate(
                filling.layout.nbytes, self._backend.current_stream()
            )
        run.station = TransferStation(
            str(self._backend.device),
            self.layout,
            self._backend,
            _DEVICE_SLOTS_WITH_ENGINES if self.decodes_on_device else _DEVICE_SLOTS,
            static_buffers=self._static_buffers,
            filling=filling,
            static_memory=self._static_memory,
        )

    def _filling(self, run: Run) -> Filling:
        if self._maker is None:
            return PlainCopy(self.layout, self._backend)
        pictures = self.fields.pictures
        pixels = self._pixels
        final = tuple(
            FieldSpec(spec.name, pixels.numpy_dtype, spec.shape, pixels.torch_dtype)
            for spec in self.fields.slot
            if spec.name in {field.name for field in pictures}
        )
        hidden = frozenset(
            field.name + suffix for field in pictures for suffix in (TABLE_SUFFIX, CARRIED_SUFFIX)
        )
        return DeviceFilling(
            self._backend,
            self.layout,
            device_layout(self.layout, final, hidden),
            pictures,
            maker=self._maker,
            decoder=self._decoder,
            on_late_faults=run.accept_late_faults,
            counters=self.counters,
        )

    def ready(self, run: Run, filled: Filled) -> None:
        assert run.station is not None
        if filled.mapped is not None:
            return
        run.station.send(filled.slot, filled)
        run.taken(filled)

    def deliver(self, run: Run, filled: Filled) -> dict[str, Any]:
        assert run.station is not None
        if filled.mapped is not None:
            return {name: self._moved(value) for name, value in filled.mapped.items()}
        _, batch = run.station.receive(run.settings.stall_timeout_s)
        fields: dict[str, Any] = dict(batch.tensors)
        for field in self.fields.pictures:
            fields[field.name] = fields[field.name].permute(0, 3, 1, 2)
        fields.update({name: self._moved(value) for name, value in filled.variable.items()})
        return fields

    def _moved(self, value: Any) -> Any:
        value = as_tensor(value)
        return value.to(self._backend.device) if hasattr(value, "is_pinned") else value

    def end(self, run: Run) -> None:
        if run.station is not None:
            run.station.close()

    def close(self) -> None:
        if self._decoder is not None:
            self._decoder.close()
        if self._pinned is not None:
            self._pinned.close()

    def stats(self) -> dict[str, Any]:
        stats: dict[str, Any] = {"device": str(self._backend.device)}
        if self._maker is not None:
            stats["pixels_by"] = self._maker.name
        return stats

"""From a filled host slot to a batch on the GPU: copy, engines, and the pixels' final form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from streamloader._assemble import Filled
from streamloader._carried import CARRIED_SUFFIX
from streamloader._routing import TABLE_SUFFIX, EngineWork
from streamloader.decode.gpu import TABLE_WORDS, GpuDecoder, NvjpegError, RowMaker
from streamloader.dts import Field
from streamloader.monitor import Counters
from streamloader.transfer import CudaBackend, FieldSpec, Region, Slot, SlotLayout
from streamloader.transfer.layout import ALIGNMENT_BYTES, GUARD_BYTES

LateFaults = Callable[[Filled, dict[int, str]], None]


def device_layout(
    host: SlotLayout, pictures: tuple[FieldSpec, ...], hidden: frozenset[str]
) -> SlotLayout:
    """A device slot: what is copied of the host slot, and behind it the pictures' final form.

    Args:
        host: layout of the host slots.
        pictures: final form of the fields that lie in the host slot as staged bytes.
        hidden: fields of the host slot that no consumer sees.
    """
    final = {spec.name: spec for spec in pictures}
    regions = [
        region
        for region in host.regions
        if region.field.name not in final and region.field.name not in hidden
    ]
    end = max(region.end for region in copied_regions(host)) + GUARD_BYTES
    for spec in pictures:
        offset = -(-end // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        regions.append(Region(spec, offset, spec.row_bytes * host.batch_size))
        end = regions[-1].end + GUARD_BYTES
    fields = tuple(final.get(f.name, f) for f in host.fields if f.name not in hidden)
    return SlotLayout(
        host.batch_size, fields, tuple(regions), -(-end // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    )


def copied_regions(host: SlotLayout) -> list[Region]:
    """Regions of a host slot that the device gets: all but the engines' compressed pictures."""
    return [r for r in host.regions if not r.field.name.endswith(CARRIED_SUFFIX)]


@dataclass(frozen=True, slots=True)
class PictureViews:
    """Tensors that look into a device slot.

    Attributes:
        table: int32 [n, 16]; None where no engines are used.
        staged: uint8 [B, H, W, 3].
        out: [n, H, W, 3] of the row maker's ``bits_dtype``.
    """

    table: Any
    staged: Any
    out: Any

    def first(self, rows: int) -> PictureViews:
        """The same for a batch of fewer rows."""
        if rows == len(self.out):
            return self
        table = None if self.table is None else self.table[:rows]
        return PictureViews(table, self.staged, self.out[:rows])


class DeviceFilling:
    """Fills device slots whose pictures are made on the device; a ``transfer.Filling``.

    Args:
        backend: the device.
        host_layout: of the host slots.
        layout: of the device slots, from ``device_layout``.
        pictures: the picture fields.
        maker: makes rows from staged bytes.
        decoder: decodes on the device, if engines are used.
        on_late_faults: told the bad rows that turned up only here; brings the slot in order, or
            raises what ends the run.
        counters: told the number of batches that the engines refused as ``decode.engine_refusals``.
    """

    def __init__(
        self,
        backend: CudaBackend,
        host_layout: SlotLayout,
        layout: SlotLayout,
        pictures: tuple[Field, ...],
        *,
        maker: RowMaker,
        decoder: GpuDecoder | None,
        on_late_faults: LateFaults,
        counters: Counters,
    ) -> None:
        self.layout = layout
        self._backend = backend
        self._copied = copied_regions(host_layout)
        self._pictures = tuple(field.name for field in pictures)
        self._maker = maker
        self._decoder = decoder
        self._on_late_faults = on_late_faults
        self._counters = counters
        self._final = {r.field.name: r for r in layout.regions if r.field.name in self._pictures}
        self._hosted = {region.field.name: region for region in host_layout.regions}
        self._views: dict[int, dict[str, PictureViews]] = {}

    def fill(self, host: Slot, tag: object, memory: Any, stream: Any) -> int:
        """See ``Filling``."""
        assert isinstance(tag, Filled)
        work = tag.engine
        moved = self._copy(host, work, memory, stream)
        views = self._views_of(memory)
        if work is None:
            with self._backend.on(stream):
                for picture in views.values():
                    shown = picture.first(host.rows)
                    self._maker.convert(shown.staged[: host.rows], shown.out)
            return moved
        try:
            self._decode(host, work, views, stream)
        except NvjpegError as refusal:
            moved += self._redo(refusal, host, tag, memory, stream)
        work.release()
        return moved

    def close(self) -> None:
        """See ``Filling``."""
        self._views.clear()

    def _copy(self, host: Slot, work: EngineWork | None, memory: Any, stream: Any) -> int:
        """Enqueues one copy of all that is used of the host slot."""
        end = 0
        for region in self._copied:
            name, rows = region.field.name, host.rows
            if work is not None and name in work.batches:
                rows = work.stagings[name].num_staged
            if rows:
                end = max(end, region.offset + rows * region.field.row_bytes)
        self._backend.copy_to_device(host.array, memory, end, stream)
        return end

    def _decode(
        self, host: Slot, work: EngineWork, views: dict[str, PictureViews], stream: Any
    ) -> None:
        assert self._decoder is not None
        for name, batch in work.batches.items():
            picture, address = views[name].first(host.rows), work.memories[name].ctypes.data
            self._decoder.fill(batch, address, picture.table, picture.staged, picture.out, stream)

    def _redo(
        self, refusal: NvjpegError, host: Slot, filled: Filled, memory: Any, stream: Any
    ) -> int:
        """The batch without the engines: they refuse a whole chunk and do not say which picture."""
        self._counters.add("decode.engine_refusals")
        # The copy that runs still reads the slot.
        self._backend.synchronize(self._backend.record_event(stream))
        assert filled.engine is not None
        faults = filled.engine.redo()
        if faults:
            try:
                self._on_late_faults(filled, faults)
            except BaseException as error:
                error.add_note(f"the GPU's engines had refused the batch: {refusal}")
                raise
        moved = self._copy(host, filled.engine, memory, stream)
        with self._backend.on(stream):
            for picture in self._views_of(memory).values():
                shown = picture.first(host.rows)
                # Nothing is in a slab, so what stands for it is never read.
                self._maker.make(shown.table, shown.staged, memory, shown.out, 0)
        return moved

    def _views_of(self, memory: Any) -> dict[str, PictureViews]:
        """By picture field; made once for each device slot, of which there are few."""
        views = self._views.get(memory.data_ptr())
        if views is None:
            views = {name: self._make_views(memory, name) for name in self._pictures}
            self._views[memory.data_ptr()] = views
        return views

    def _make_views(self, memory: Any, picture: str) -> PictureViews:
        import torch

        rows = self.layout.batch_size
        final, hosted = self._final[picture], self._hosted[picture]
        staged = memory[hosted.offset : hosted.end].view(rows, *hosted.field.shape)
        out = memory[final.offset : final.end].view(self._maker.bits_dtype)
        table = None
        region = self._hosted.get(picture + TABLE_SUFFIX)
        if region is not None:
            words = memory[region.offset : region.end].view(torch.int32)
            table = words.view(rows, TABLE_WORDS)
        return PictureViews(table, staged, out.view(rows, *final.field.shape))

"""Rows of a batch on the GPU: crop, antialiased resize, mirror, normalise and cast in one launch.

The numbers are those of the CPU path: Pillow's triangle filter over the box, across and then down,
each rounded to a byte, then the value that stands for the byte. In Triton where it works, else the
same in plain torch.
"""

from __future__ import annotations

import importlib.util
import logging
from typing import Any

import numpy as np

from streamloader.decode.gpu.route import ROW_DTYPE, TABLE_WORDS, Source
from streamloader.decode.pixel_format import PixelFormat
from streamloader.decode.specs import Size

_LOG = logging.getLogger("streamloader.decode")

_BITS_DTYPES = {1: "uint8", 2: "int16", 4: "int32"}


class RowMaker:
    """Makes rows of one size and pixel format on one device.

    Args:
        device: a torch device; on a CPU, and with ``triton=False``, torch does it.
        size: (height, width) in pixels.
        pixel_format: the numbers in the batch.
        triton: False leaves Triton out; None takes it where it works.
    """

    def __init__(
        self, device: Any, size: Size, pixel_format: PixelFormat, *, triton: bool | None = None
    ) -> None:
        import torch

        self._torch: Any = torch
        self._size = size
        self.pixel_format = pixel_format
        values = np.ascontiguousarray(pixel_format.tables())
        # The bits only: a row is made of copies of these values, whatever type they are.
        self.bits_dtype = getattr(torch, _BITS_DTYPES[values.itemsize])
        bits = torch.from_numpy(
            values.view(np.dtype(f"i{values.itemsize}" if values.itemsize > 1 else "u1"))
        )
        self._lookup = bits.to(device)
        self._kernels: Any = None
        if triton is not False and torch.device(device).type == "cuda":
            self._kernels = self._compile(device)

    @property
    def name(self) -> str:
        """ "triton" or "torch", for reports."""
        return "torch" if self._kernels is None else "triton"

    def _compile(self, device: Any) -> Any:
        """The kernels, run once; None where Triton is missing or cannot compile."""
        if importlib.util.find_spec("triton") is None:
            return None
        try:
            from streamloader.decode.gpu import triton_kernels

            torch, (height, width) = self._torch, self._size
            # Triton launches on the device that is current, wherever the tensors are.
            with torch.cuda.device(device):
                row = torch.zeros((1, height, width, 3), dtype=torch.uint8, device=device)
                out = torch.empty_like(row, dtype=self.bits_dtype)
                table = torch.zeros((1, TABLE_WORDS), dtype=torch.int32, device=device)
                triton_kernels.make_rows(table, row, row.view(-1), out, self._lookup, 0)
                triton_kernels.convert(row, out, self._lookup)
                torch.cuda.synchronize(device)
        except Exception as error:  # noqa: BLE001 - whatever a compiler may lack, torch does it too
            _LOG.warning(
                "Triton cannot compile here (%s: %s), so plain torch makes the rows, more slowly; "
                "it needs a C compiler and the headers of Python",
                type(error).__name__,
                str(error).splitlines()[0] if str(error) else "",
            )
            return None
        return triton_kernels

    def make(self, table: Any, staged: Any, slab: Any, out: Any, chunk: int) -> None:
        """Enqueues the rows whose pictures are in ``slab``; with chunk 0 also all others.

        Args:
            table: int32 [n, 16] on the device, ``ROW_DTYPE`` each.
            staged: uint8 [B, H, W, 3], pictures that are resized already.
            slab: uint8, decoded pictures of this chunk.
            out: [n, H, W, 3] of ``bits_dtype``.
            chunk: number of the chunk in ``slab``.
        """
        if self._kernels is not None:
            self._kernels.make_rows(table, staged, slab, out, self._lookup, chunk)
        else:
            self._make_plainly(table, staged, slab, out, chunk)

    def convert(self, pictures: Any, out: Any) -> None:
        """Enqueues ``out``, [n, H, W, 3] of ``bits_dtype``, from uint8 pictures of that shape."""
        if self._kernels is not None:
            self._kernels.convert(pictures, out, self._lookup)
        else:
            self._write(pictures, out)

    def _write(self, pictures: Any, out: Any) -> None:
        for channel in range(3):
            levels = pictures[..., channel].reshape(-1).to(self._torch.int32)
            values = self._torch.index_select(self._lookup[channel], 0, levels)
            out[..., channel] = values.view(out.shape[:-1])

    def _make_plainly(self, table: Any, staged: Any, slab: Any, out: Any, chunk: int) -> None:
        entries = table.cpu().numpy().reshape(-1).view(ROW_DTYPE)
        for row, entry in enumerate(entries):
            if entry["source"] == Source.DECODED:
                if entry["chunk"] == chunk:
                    self._write(self._resample(entry, slab), out[row])
            elif chunk == 0 and entry["source"] == Source.STAGED:
                self._write(staged[int(entry["place"])], out[row])
            elif chunk == 0:
                out[row] = 0

    def _resample(self, entry: Any, slab: Any) -> Any:
        """uint8 [H, W, 3] from the picture of ``entry``."""
        torch, (height, width) = self._torch, self._size
        first, pitch, lines = (int(entry[name]) for name in ("offset", "pitch", "height"))
        stored = slab[first : first + pitch * lines].view(lines, pitch // 3, 3)
        device = slab.device
        down = _weights(torch, entry["y0"], entry["scale_y"], height, lines, device)
        across = _weights(torch, entry["x0"], entry["scale_x"], width, int(entry["width"]), device)
        if entry["flip"]:
            across = across.flip(0)
        pixels = stored.to(torch.float64).permute(2, 0, 1)
        narrow = torch.floor(pixels @ across.T + 0.5)
        return torch.floor(down @ narrow + 0.5).to(torch.uint8).permute(1, 2, 0)


def _weights(torch: Any, start: float, scale: float, size: int, stored: int, device: Any) -> Any:
    """float64 [size, stored]: the share of each stored pixel in each output pixel.

    The triangle filter of Pillow's ``Image.resize(..., BILINEAR, box)``: its support grows with the
    scale, ends are rounded to whole pixels, and what lies outside the picture has no weight.
    """
    start, scale = float(start), float(scale)
    reach = max(scale, 1.0)
    centres = (
        start + (torch.arange(size, dtype=torch.float64, device=device)[:, None] + 0.5) * scale
    )
    places = torch.arange(stored, dtype=torch.float64, device=device)[None, :]
    weights = (1.0 - ((places - centres + 0.5) / reach).abs()).clamp(min=0.0)
    within = (places >= torch.trunc(centres - reach + 0.5)) & (
        places < torch.trunc(centres + reach + 0.5)
    )
    weights = torch.where(within, weights, torch.zeros_like(weights))
    return weights / weights.sum(1, keepdim=True)

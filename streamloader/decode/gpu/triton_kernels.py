"""The kernels of ``fused.RowMaker`` in Triton. Imported only where Triton is there."""

# Kernels are compiled by Triton, whose decorator and arguments have no types.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from streamloader.decode.gpu.route import TABLE_WORDS, Source

# Globals that a kernel reads must be constants of Triton.
_WORDS = tl.constexpr(TABLE_WORDS)
_STAGED = tl.constexpr(int(Source.STAGED))
_DECODED = tl.constexpr(int(Source.DECODED))
_CONVERT_BLOCK = 4096


# Chunks differ in nothing but their number: one binary serves all.
@triton.jit(do_not_specialize=["chunk"])
def _rows_kernel(
    table,
    table_floats,
    staged,
    slab,
    out,
    lookup,
    chunk,
    HEIGHT: tl.constexpr,  # noqa: N803 - Triton's way to write compile-time constants
    WIDTH: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    """One line of one row: program (line, row)."""
    line = tl.program_id(0)
    row = tl.program_id(1)
    entry = row * _WORDS
    source = tl.load(table + entry)
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    target = out + (row.to(tl.int64) * HEIGHT + line) * (WIDTH * 3) + columns * 3
    if source == _DECODED:
        if tl.load(table + entry + 1) == chunk:
            picture = slab + tl.load(table + entry + 2).to(tl.int64)
            pitch = tl.load(table + entry + 3)
            stored_width = tl.load(table + entry + 4)
            stored_height = tl.load(table + entry + 5)
            flip = tl.load(table + entry + 6)
            scale_x = tl.load(table_floats + entry + 10)
            scale_y = tl.load(table_floats + entry + 11)
            reach_x = tl.maximum(scale_x, 1.0)
            reach_y = tl.maximum(scale_y, 1.0)
            from_left = tl.where(flip != 0, WIDTH - 1 - columns, columns)
            centre_x = tl.load(table_floats + entry + 8) + (from_left + 0.5) * scale_x
            centre_y = tl.load(table_floats + entry + 9) + (line + 0.5) * scale_y
            left = tl.maximum((centre_x - reach_x + 0.5).to(tl.int32), 0)
            right = tl.minimum((centre_x + reach_x + 0.5).to(tl.int32), stored_width)
            top = tl.maximum((centre_y - reach_y + 0.5).to(tl.int32), 0)
            bottom = tl.minimum((centre_y + reach_y + 0.5).to(tl.int32), stored_height)
            taps = (2.0 * reach_x + 2.0).to(tl.int32)
            sum_x = tl.zeros((BLOCK,), tl.float32)
            for tap in range(0, taps):
                x = left + tap
                weight = tl.maximum(1.0 - tl.abs((x + 0.5 - centre_x) / reach_x), 0.0)
                sum_x += tl.where(x < right, weight, 0.0)
            share_x = 1.0 / tl.where(sum_x > 0.0, sum_x, 1.0)
            sum_y = 0.0
            red = tl.zeros((BLOCK,), tl.float32)
            green = tl.zeros((BLOCK,), tl.float32)
            blue = tl.zeros((BLOCK,), tl.float32)
            for y in range(top, bottom):
                weight_y = tl.maximum(1.0 - tl.abs((y + 0.5 - centre_y) / reach_y), 0.0)
                sum_y += weight_y
                across_red = tl.zeros((BLOCK,), tl.float32)
                across_green = tl.zeros((BLOCK,), tl.float32)
                across_blue = tl.zeros((BLOCK,), tl.float32)
                stored = picture + y * pitch
                for tap in range(0, taps):
                    x = left + tap
                    used = inside & (x < right)
                    weight = tl.maximum(1.0 - tl.abs((x + 0.5 - centre_x) / reach_x), 0.0)
                    pixel = stored + x * 3
                    across_red += weight * tl.load(pixel, mask=used, other=0).to(tl.float32)
                    across_green += weight * tl.load(pixel + 1, mask=used, other=0).to(tl.float32)
                    across_blue += weight * tl.load(pixel + 2, mask=used, other=0).to(tl.float32)
                # Rounded to a byte between the two directions, as Pillow does.
                red += weight_y * tl.floor(across_red * share_x + 0.5)
                green += weight_y * tl.floor(across_green * share_x + 0.5)
                blue += weight_y * tl.floor(across_blue * share_x + 0.5)
            share_y = 1.0 / sum_y
            red_level = tl.minimum((red * share_y + 0.5).to(tl.int32), 255)
            green_level = tl.minimum((green * share_y + 0.5).to(tl.int32), 255)
            blue_level = tl.minimum((blue * share_y + 0.5).to(tl.int32), 255)
            tl.store(target, tl.load(lookup + red_level), mask=inside)
            tl.store(target + 1, tl.load(lookup + 256 + green_level), mask=inside)
            tl.store(target + 2, tl.load(lookup + 512 + blue_level), mask=inside)
    elif chunk == 0:
        there = inside & (source == _STAGED)
        place = tl.load(table + entry + 7).to(tl.int64)
        pixel = staged + (place * HEIGHT + line) * (WIDTH * 3) + columns * 3
        for channel in range(0, 3):
            level = tl.load(pixel + channel, mask=there, other=0).to(tl.int32)
            value = tl.load(lookup + channel * 256 + level, mask=there, other=0)
            tl.store(target + channel, value, mask=inside)


@triton.jit
def _convert_kernel(
    pictures,
    out,
    lookup,
    count,
    BLOCK: tl.constexpr,  # noqa: N803
):
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = places < count
    level = tl.load(pictures + places, mask=inside, other=0).to(tl.int32)
    channel = (places % 3).to(tl.int32)
    tl.store(out + places, tl.load(lookup + channel * 256 + level), mask=inside)


def make_rows(table: Any, staged: Any, slab: Any, out: Any, lookup: Any, chunk: int) -> None:
    """See ``RowMaker.make``."""
    import torch

    rows, height, width, _ = out.shape
    _rows_kernel[(height, rows)](
        table,
        table.view(torch.float32),
        staged,
        slab,
        out,
        lookup,
        chunk,
        HEIGHT=height,
        WIDTH=width,
        BLOCK=triton.next_power_of_2(width),
        num_warps=4,
    )


def convert(pictures: Any, out: Any, lookup: Any) -> None:
    """See ``RowMaker.convert``."""
    count = out.numel()
    _convert_kernel[(triton.cdiv(count, _CONVERT_BLOCK),)](
        pictures, out, lookup, count, BLOCK=_CONVERT_BLOCK, num_warps=8
    )

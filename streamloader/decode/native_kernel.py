"""The kernel in C as functions on arrays: a thin binding, and whether it was built."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from streamloader.decode.crops import exp_halvings
from streamloader.decode.faults import PictureFault
from streamloader.decode.limits import PictureLimits
from streamloader.decode.share import AbortWord, Share
from streamloader.decode.specs import RandomResizedCrop, Resize, Size, Step, size_of
from streamloader.errors import ConfigError

try:
    from streamloader.decode._native import ffi as ffi
    from streamloader.decode._native import lib as lib
except ImportError as error:
    MISSING: ImportError | None = error
else:
    MISSING = None


# sl_box and sl_crop: what was done to a picture, all zero if its header was refused or never read.
_BOX = np.dtype(
    [("x0", "f8"), ("y0", "f8"), ("x1", "f8"), ("y1", "f8"), ("flip", "i4")], align=True
)
CROP = np.dtype([("width", "i4"), ("height", "i4"), ("box", _BOX)], align=True)


class Task:
    """A transform in C, with the limits on pictures and the numbers that stand for pixels.

    Args:
        steps: of the transform, without nesting.
        keys: of the random numbers of each step.
        size: (height, width) of each picture in the batch.
        tables: [3, 256], what stands for each byte value in each channel; None for the bytes.
        limits: of a picture, checked on its header.
    """

    __slots__ = ("_owned", "pointer")

    def __init__(
        self,
        steps: tuple[Step, ...],
        keys: tuple[int, ...],
        size: Size,
        tables: npt.NDArray[Any] | None,
        limits: PictureLimits,
    ) -> None:
        c_steps = ffi.new("sl_step[]", max(1, len(steps)))
        for number, step in enumerate(steps):
            _fill_step(c_steps[number], step, keys[number])
        table = ffi.NULL if tables is None else ffi.from_buffer(np.ascontiguousarray(tables))
        self.pointer = ffi.new("sl_task *")
        self.pointer.steps = c_steps
        self.pointer.num_steps = len(steps)
        self.pointer.height, self.pointer.width = size
        self.pointer.element_bytes = 1 if tables is None else tables.itemsize
        self.pointer.table = table
        self.pointer.max_pixels = limits.max_pixels
        self.pointer.max_scans = limits.max_scans
        self._owned = (c_steps, table)


def open_scratch(simd: str | None = None) -> Any:
    """The memory of one thread, freed with the last reference to it.

    Raises:
        ConfigError: this processor has no such ``simd``.
    """
    opened = lib.sl_open(ffi.NULL if simd is None else simd.encode())
    if opened != ffi.NULL:
        return ffi.gc(opened, lib.sl_close)
    if simd is None:
        raise MemoryError("no memory for a decoder's state")
    raise ConfigError(f"this processor or build has no simd {simd!r}; leave it out for the best")


def decode_share(
    scratch: Any, task: Task, share: Share, abort: AbortWord | None
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8], npt.NDArray[np.void]]:
    """Fills the rows of the share's JPEGs; each row of ``share.out`` must be C-contiguous.

    Returns:
        int32 [n], an ``sl_status`` each; uint8 [n, SL_MESSAGE_BYTES], the reasons of faults;
        ``CROP`` [n], what was done to each.
    """
    count = len(share.offsets)
    status = np.empty(count, np.int32)
    messages = np.zeros((count, lib.SL_MESSAGE_BYTES), np.uint8)
    crops = np.empty(count, CROP)
    columns = [
        np.ascontiguousarray(values, np.int64)
        for values in (share.offsets, share.lengths, share.samples, share.rows)
    ]
    c_share = ffi.new("sl_share *")
    c_share.count = count
    data = ffi.from_buffer("uint8_t[]", share.data)
    c_share.data = data
    c_share.offsets, c_share.lengths, c_share.samples, c_share.rows = (
        ffi.from_buffer("int64_t[]", values) for values in columns
    )
    c_share.out = ffi.cast("uint8_t *", share.out.ctypes.data)
    c_share.row_stride = share.out.strides[0]
    c_share.abort = ffi.NULL if abort is None else ffi.from_buffer("int32_t[]", abort.word)
    c_share.status = ffi.from_buffer("int32_t[]", status)
    c_share.messages = ffi.from_buffer("char[]", messages)
    c_share.crops = ffi.from_buffer("sl_crop[]", crops)
    lib.sl_decode_share(scratch, task.pointer, c_share)
    return status, messages, crops


def check(scratch: Any, task: Task, view: memoryview) -> bool:
    """Whether ``view`` holds a JPEG; one that does can be decoded.

    Raises:
        PictureFault: it is a broken JPEG, or one beyond the limits of the task.
    """
    message = ffi.new("char[]", lib.SL_MESSAGE_BYTES)
    data = ffi.from_buffer("uint8_t[]", view)
    status = lib.sl_check(scratch, task.pointer, data, len(view), message)
    if status == lib.SL_NO_MEMORY:
        raise MemoryError(text_of(ffi.string(message)))
    if status == lib.SL_FAULT:
        raise PictureFault(text_of(ffi.string(message)))
    return bool(status == lib.SL_DECODED)


def plan(task: Task, width: int, height: int, sample: int) -> tuple[float, ...]:
    """(x0, y0, x1, y1, flip) of a picture of this size, as ``plan_crops`` gives them."""
    pointer = task.pointer
    box = lib.sl_plan(pointer.steps, pointer.num_steps, width, height, sample)
    return box.x0, box.y0, box.x1, box.y1, bool(box.flip)


def plan_engine(
    task: Task,
    share: Share,
    widths: npt.NDArray[np.int64],
    heights: npt.NDArray[np.int64],
    luma: npt.NDArray[np.uint8],
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.void]]:
    """Checks the headers of JPEGs that engines of a GPU might decode, and plans their boxes.

    Args:
        widths, heights: int64 [n], that the headers have to state.
        luma: uint8 [n], sampling factors of the first component that they have to state.

    Returns:
        bool [n], whether a header is sound; boxes [n] of the kernel's layout, of the sound ones.
    """
    count = len(share.offsets)
    sound = np.zeros(count, np.uint8)
    boxes = np.zeros(count, _BOX)
    columns = [
        np.ascontiguousarray(values, np.int64)
        for values in (share.offsets, share.lengths, share.samples, widths, heights)
    ]
    luma = np.ascontiguousarray(luma)
    c_share = ffi.new("sl_engine_share *")
    c_share.count = count
    data = ffi.from_buffer("uint8_t[]", share.data)
    c_share.data = data
    c_share.offsets, c_share.lengths, c_share.samples, c_share.widths, c_share.heights = (
        ffi.from_buffer("int64_t[]", values) for values in columns
    )
    c_share.luma = ffi.from_buffer("uint8_t[]", luma)
    c_share.sound = ffi.from_buffer("uint8_t[]", sound)
    c_share.boxes = ffi.cast("sl_box *", boxes.ctypes.data)
    lib.sl_plan_engine(task.pointer.steps, task.pointer.num_steps, c_share)
    return sound.view(np.bool_), boxes


def scratch_bytes(scratch: Any) -> int:
    """Memory held between calls, in bytes."""
    return int(lib.sl_scratch_bytes(scratch))


def read_size(view: memoryview, limits: PictureLimits) -> Size | None:
    """(height, width) of the JPEG in ``view``, or None if it is none.

    Raises:
        PictureFault: its header is broken, or breaks a limit.
    """
    task = Task((), (), (1, 1), None, limits)
    width, height = ffi.new("int32_t *"), ffi.new("int32_t *")
    message = ffi.new("char[]", lib.SL_MESSAGE_BYTES)
    data = ffi.from_buffer("uint8_t[]", view)
    status = lib.sl_read_size(open_scratch(), task.pointer, data, len(view), width, height, message)
    if status == lib.SL_NOT_JPEG:
        return None
    reason = text_of(ffi.string(message))
    if status == lib.SL_NO_MEMORY:
        raise MemoryError(reason)
    if status == lib.SL_FAULT:
        raise PictureFault(reason)
    return height[0], width[0]


def simd_name(scratch: Any) -> str:
    """Which vector instructions a decoder with this memory uses."""
    return text_of(ffi.string(lib.sl_simd(scratch)))


def libjpeg_name() -> str:
    """The libjpeg that the kernel was built for, such as "libjpeg-turbo 2.1.5"."""
    return text_of(ffi.string(lib.sl_libjpeg()))


def text_of(message: bytes) -> str:
    """A message of C up to its first zero byte."""
    return message.split(b"\0", 1)[0].decode("utf-8", "replace")


def _fill_step(c_step: Any, step: Step, key: int) -> None:
    if isinstance(step, Resize) and isinstance(step.size, int):
        c_step.kind = lib.SL_RESIZE_SHORT_SIDE
        c_step.height = step.size
        return
    c_step.height, c_step.width = size_of(step.size)
    if isinstance(step, Resize):
        c_step.kind = lib.SL_RESIZE
    elif isinstance(step, RandomResizedCrop):
        logarithms = [math.log(limit) for limit in step.ratio]
        c_step.kind = lib.SL_RANDOM_RESIZED_CROP
        c_step.scale = step.scale
        c_step.ratio = step.ratio
        c_step.log_ratio = logarithms
        c_step.exp_halvings = exp_halvings(max(map(abs, logarithms)))
        c_step.flip = step.flip
        c_step.key = key
    else:
        c_step.kind = lib.SL_CENTER_CROP

"""The decoder for JPEG in C: a worker's share in one call, without the interpreter lock."""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

from streamloader.decode import native_kernel
from streamloader.decode.crops import AppliedCrops, CropPlan, step_key
from streamloader.decode.faults import PictureFault, RowFault
from streamloader.decode.limits import DEFAULT_LIMITS, PictureLimits
from streamloader.decode.picture import Pixels
from streamloader.decode.pillow_decoder import PillowDecoder
from streamloader.decode.pixel_format import PixelFormat
from streamloader.decode.share import AbortWord, Share
from streamloader.decode.specs import Resize, Transform, steps
from streamloader.errors import ConfigError
from streamloader.monitor import Counters


class NativeDecoder:
    """A ``Decoder`` in C for the JPEGs of a share; the rest it leaves to Pillow.

    Only what the crop needs is decoded, at the coarsest of the scales 1, 1/2, 1/4, 1/8 that still
    covers the target, and resized with Pillow's antialiased bilinear filter. Each thread has its
    own scratch memory.

    Args:
        transform, pixel_format, limits, counters: those of ``open_decoder``.
        simd: "plain", "sse4.1", "avx2" or "avx512"; None is the best of this processor. All give
            the same bits.

    Raises:
        ConfigError: the kernel was not built, or this processor has no such ``simd``.
    """

    name = "native"

    def __init__(
        self,
        transform: Transform,
        pixel_format: PixelFormat | None = None,
        limits: PictureLimits = DEFAULT_LIMITS,
        *,
        counters: Counters | None = None,
        simd: str | None = None,
    ) -> None:
        if native_kernel.MISSING is not None:
            raise ConfigError(
                "the native decoder was not built; install the headers of libjpeg-turbo (Debian: "
                "libjpeg-dev), then streamloader again"
            ) from native_kernel.MISSING
        self._others = PillowDecoder(transform, pixel_format, limits)
        self.transform = transform
        self.height, self.width = self._others.height, self._others.width
        self.pixel_format = self._others.pixel_format
        self.limits = limits
        self.simd = native_kernel.simd_name(native_kernel.open_scratch(simd))
        self._counters = counters
        self._own = threading.local()

    def decode(self, share: Share) -> list[RowFault]:
        """As of ``Decoder``.

        With an ``AbortWord``, or none, the share is one call without the interpreter lock; other
        flags need the interpreter, so each picture is a call.
        """
        share.check_out(self.height, self.width, self.pixel_format.numpy_dtype)
        if not share.out[:1].flags.c_contiguous:
            return self._decode_by_way_of_packed_rows(share)
        if share.abort is None or isinstance(share.abort, AbortWord):
            return self._decode_at_once(share, share.abort)
        faults: list[RowFault] = []
        for place in range(len(share.offsets)):
            if share.aborted:
                break
            faults += self._decode_at_once(share.part(slice(place, place + 1)), None)
        return faults

    def _decode_by_way_of_packed_rows(self, share: Share) -> list[RowFault]:
        packed = np.ascontiguousarray(share.out)
        faults = self.decode(share.into(packed))
        share.out[share.rows] = packed[share.rows]
        return faults

    def _decode_at_once(self, share: Share, abort: AbortWord | None) -> list[RowFault]:
        own = self._own_state(share.seed, share.epoch)
        status, messages, crops = native_kernel.decode_share(own.scratch, own.task, share, abort)
        if share.crops is not None:
            self._note(share, share.crops, crops)
        lib = native_kernel.lib
        faults = []
        for place in np.flatnonzero(status >= lib.SL_FAULT).tolist():
            sample = int(share.samples[place])
            reason = native_kernel.text_of(messages[place].tobytes())
            if status[place] == lib.SL_NO_MEMORY:
                raise MemoryError(
                    f"{reason}, while decoding sample {sample}; lower max_pixels or num_workers"
                )
            faults.append(RowFault(int(share.rows[place]), sample, reason))
        others = np.flatnonzero(status == lib.SL_NOT_JPEG)
        if len(others):
            faults += self._others.decode(share.part(others))
        if self._counters is not None:
            started = len(status) - int(np.count_nonzero(status == lib.SL_NOT_STARTED))
            self._counters.add("decode.pictures", started)
            self._counters.add("decode.pictures_by_pillow", len(others))
        return faults

    def _note(self, share: Share, applied: AppliedCrops, crops: npt.NDArray[np.void]) -> None:
        read = np.flatnonzero(crops["width"])
        crops = crops[read]
        box = crops["box"]
        boxes = np.stack([box[edge] for edge in ("x0", "y0", "x1", "y1")], axis=1)
        plan = CropPlan(boxes, box["flip"] != 0, self.height, self.width)
        widths, heights = (crops[side].astype(np.int64) for side in ("width", "height"))
        applied.note(share.rows[read], widths, heights, plan)

    def _own_state(self, seed: int, epoch: int) -> threading.local:
        """This thread's memory in C, and the transform with the random keys of the epoch."""
        own = self._own
        if not hasattr(own, "scratch"):
            own.scratch = native_kernel.open_scratch(self.simd)
            own.task_of = None
        if own.task_of != (seed, epoch):
            flat = tuple(steps(self.transform))
            uint8 = self.pixel_format.dtype == "uint8"
            own.task = native_kernel.Task(
                flat,
                tuple(step_key(seed, epoch, number) for number in range(len(flat))),
                (self.height, self.width),
                None if uint8 else self.pixel_format.tables(),
                self.limits,
            )
            own.task_of = (seed, epoch)
        return own


_own_scratch = threading.local()


def check_jpeg(view: memoryview, limits: PictureLimits) -> bool:
    """Whether ``view`` holds a JPEG; one that does can be decoded.

    Reads every code of the picture and computes next to no pixels, without the interpreter lock.

    Args:
        view: one compressed picture, a flat view of bytes.
        limits: of the picture.

    Raises:
        PictureFault: a broken JPEG: where ``decode_jpeg`` raises it, and with the same words.
        MemoryError: no memory for a picture within the limits.
    """
    if not hasattr(_own_scratch, "scratch"):
        _own_scratch.scratch = native_kernel.open_scratch()
        _own_scratch.tasks = {}
    task = _own_scratch.tasks.get(limits)
    if task is None:
        task = native_kernel.Task((), (), (1, 1), None, limits)
        _own_scratch.tasks = {limits: task}
    return native_kernel.check(_own_scratch.scratch, task, view)


def decode_jpeg(view: memoryview, limits: PictureLimits) -> Pixels | None:
    """The whole picture as uint8 [height, width, 3], or None if it is no JPEG.

    Args:
        view: one compressed picture, a flat view of bytes.
        limits: of the picture.

    Raises:
        PictureFault: a broken picture.
        MemoryError: no memory for a picture within the limits.
    """
    size = native_kernel.read_size(view, limits)
    if size is None:
        return None
    pixels = np.empty((1, *size, 3), np.uint8)
    first = np.zeros(1, np.int64)
    share = Share(
        data=view,
        offsets=first,
        lengths=np.full(1, len(view), np.int64),
        samples=first,
        rows=first,
        out=pixels,
        seed=0,
        epoch=0,
    )
    for fault in NativeDecoder(Resize(size), limits=limits).decode(share):
        raise PictureFault(fault.reason)
    whole: Pixels = pixels[0]
    return whole

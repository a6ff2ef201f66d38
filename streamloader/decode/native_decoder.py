"""The decoder for JPEG in C: a worker's share in one call, without the interpreter lock."""

from __future__ import annotations

import threading

import numpy as np

from streamloader.decode import native_kernel
from streamloader.decode.crops import step_key
from streamloader.decode.faults import PictureFault, RowFault
from streamloader.decode.picture import MAX_PIXELS, MAX_SCANS, Pixels
from streamloader.decode.pillow_decoder import PillowDecoder
from streamloader.decode.pixel_format import PixelFormat
from streamloader.decode.share import AbortWord, Share
from streamloader.decode.specs import Joint, Resize, Transform, steps
from streamloader.errors import ConfigError
from streamloader.monitor import Counters


class NativeDecoder:
    """Decodes the JPEGs of a share in C and leaves the rest to Pillow, in the same contract.

    Only what the crop needs is decoded, at the coarsest of the scales 1, 1/2, 1/4, 1/8 that still
    covers the target, and resized with Pillow's antialiased bilinear filter. One decoder may serve
    any number of threads: each has its own scratch memory.

    Args:
        transform: what to do to each picture; its output size must not depend on the picture.
        pixel_format: the numbers in the batch.
        max_pixels: a picture whose header claims more is a fault, before memory is taken for it.
        max_scans: a JPEG with more is a fault: each is a pass over the picture.
        counters: told the number of pictures read as ``decode.pictures``, faults included, and
            those of them that Pillow read as ``decode.pictures_by_pillow``.
        simd: "plain", "sse4.1", "avx2" or "avx512"; None is the best of this processor. All give
            the same bits.

    Raises:
        ConfigError: the kernel was not built, the transform is a ``Joint``, or this processor has
            no such ``simd``.
    """

    name = "native"

    def __init__(
        self,
        transform: Transform,
        pixel_format: PixelFormat | None = None,
        max_pixels: int = MAX_PIXELS,
        *,
        max_scans: int = MAX_SCANS,
        counters: Counters | None = None,
        simd: str | None = None,
    ) -> None:
        if native_kernel.MISSING is not None:
            raise ConfigError(
                "the native decoder was not built; install the headers of libjpeg-turbo (Debian: "
                "libjpeg-dev), then streamloader again"
            ) from native_kernel.MISSING
        if isinstance(transform, Joint):
            raise ConfigError("the native decoder takes no Joint; PillowDecoder does")
        self._others = PillowDecoder(transform, pixel_format, max_pixels, max_scans=max_scans)
        self.transform = transform
        self.height, self.width = self._others.height, self._others.width
        self.pixel_format = self._others.pixel_format
        self.max_pixels = max_pixels
        self.max_scans = max_scans
        self.simd = native_kernel.simd_name(native_kernel.open_scratch(simd))
        self._counters = counters
        self._own = threading.local()

    def decode(self, share: Share) -> list[RowFault]:
        """Fills the share's rows of ``share.out``.

        The call looks at ``share.abort`` before each picture; after an abort the remaining rows
        are as they were. With an ``AbortWord``, or none, the share is one call without the
        interpreter lock; other flags need the interpreter, so each picture is a call.

        Returns:
            The pictures that could not be decoded, whose rows are now zero.

        Raises:
            ConfigError: ``share.out`` is not [B, height, width, 3] of the pixel format.
            MemoryError: no memory for a picture within the limits.
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
        status, messages = native_kernel.decode_share(own.scratch, own.task, share, abort)
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
                self.max_pixels,
                self.max_scans,
            )
            own.task_of = (seed, epoch)
        return own


def decode_jpeg(
    view: memoryview, *, max_pixels: int = MAX_PIXELS, max_scans: int = MAX_SCANS
) -> Pixels | None:
    """The whole picture as uint8 [height, width, 3], or None if it is no JPEG.

    Args:
        view: one compressed picture, a flat view of bytes.
        max_pixels: a header that claims more is refused before memory for pixels is taken.
        max_scans: a JPEG with more is refused.

    Raises:
        PictureFault: a broken picture.
        MemoryError: no memory for a picture within the limits.
    """
    size = native_kernel.read_size(view, max_pixels, max_scans)
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
    decoder = NativeDecoder(Resize(size), max_pixels=max_pixels, max_scans=max_scans)
    for fault in decoder.decode(share):
        raise PictureFault(fault.reason)
    whole: Pixels = pixels[0]
    return whole

"""nvJPEG's batched decoder on the GPU's JPEG engines: a thin binding, found at run time.

The library is opened by name, so nothing is compiled and an installation without it still works.
A call leaves the interpreter lock to others for as long as it runs.
"""

from __future__ import annotations

import importlib.util
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cffi
import numpy as np
import numpy.typing as npt

from streamloader.errors import ConfigError, StreamLoaderError

IMAGE_DTYPE = np.dtype([("channel", "<u8", (4,)), ("pitch", "<u8", (4,))])
"""nvjpegImage_t: device address and bytes a line of each plane; interleaved RGB uses the first."""

_BACKEND_HARDWARE = 3
_OUTPUT_RGBI = 5
_MAX_CPU_THREADS = 1
_NO_PIPELINE = 1
# Newest first; a library newer than the driver refuses to open, and the next one is tried.
_LIBRARIES = (
    ("libnvjpeg.so.13", "cu13/lib"),
    ("libnvjpeg.so.12", "nvjpeg/lib"),
)
_STATUS_NAMES = {
    1: "not initialised",
    2: "invalid parameter",
    3: "bad JPEG",
    4: "JPEG not supported",
    5: "no memory",
    6: "execution failed",
    7: "this GPU lacks what the call needs",
    8: "internal error",
    9: "not supported by the implementation",
    10: "incomplete bit stream",
}

ffi = cffi.FFI()
ffi.cdef(
    """
    typedef struct nvjpegHandle *nvjpegHandle_t;
    typedef struct nvjpegJpegState *nvjpegJpegState_t;
    int nvjpegGetProperty(int type, int *value);
    int nvjpegCreateEx(int backend, void *device_allocator, void *pinned_allocator,
                       unsigned int flags, nvjpegHandle_t *handle);
    int nvjpegDestroy(nvjpegHandle_t handle);
    int nvjpegGetHardwareDecoderInfo(nvjpegHandle_t handle, unsigned int *engines,
                                     unsigned int *cores_per_engine);
    int nvjpegJpegStateCreate(nvjpegHandle_t handle, nvjpegJpegState_t *state);
    int nvjpegJpegStateDestroy(nvjpegJpegState_t state);
    int nvjpegDecodeBatchedInitialize(nvjpegHandle_t handle, nvjpegJpegState_t state,
                                      int batch_size, int max_cpu_threads, int output_format);
    int nvjpegDecodeBatched(nvjpegHandle_t handle, nvjpegJpegState_t state,
                            const unsigned char *const *data, const size_t *lengths,
                            void *destinations, void *stream);
    """
)


class NvjpegError(StreamLoaderError):
    """nvJPEG refused a call.

    Args:
        call: which.
        status: its nvjpegStatus_t.
    """

    def __init__(self, call: str, status: int) -> None:
        self.status = status
        super().__init__(f"{call} gave status {status} ({_STATUS_NAMES.get(status, 'unknown')})")


class Nvjpeg:
    """The JPEG engines of the GPU that is current in the calling thread.

    One thread at a time may call it. Close it before the CUDA context ends.

    Args:
        pipelined: let the library wait for its colour kernels while the engines go on. A sixth
            faster on an idle GPU; but beside a training step each of these waits lasts until the
            busy processors come to it, and the engines were a third as fast.

    Raises:
        ConfigError: no library, a driver too old for it, or a GPU without JPEG engines; the
            message says which.
    """

    def __init__(self, *, pipelined: bool = False) -> None:
        self._lib, self._handle = _open(0 if pipelined else _NO_PIPELINE)
        try:
            self.engines = self._count_engines()
            if not self.engines:
                raise ConfigError("this GPU has no JPEG engines (A100, H100 and later have them)")
            state = ffi.new("nvjpegJpegState_t *")
            self._check("nvjpegJpegStateCreate", self._handle, state)
        except BaseException:
            self._lib.nvjpegDestroy(self._handle)
            raise
        self._state = state[0]
        self._batch_size = 0
        self._close = weakref.finalize(self, _close, self._lib, self._handle, self._state)
        # At exit the driver may be gone already, and the end of the process frees everything.
        self._close.atexit = False

    @property
    def version(self) -> str:
        """Of the library, such as "13.0.1"."""
        value = ffi.new("int *")
        parts = []
        for which in range(3):
            self._check("nvjpegGetProperty", which, value)
            parts.append(str(value[0]))
        return ".".join(parts)

    def _count_engines(self) -> int:
        engines, cores = ffi.new("unsigned int *"), ffi.new("unsigned int *")
        status = self._lib.nvjpegGetHardwareDecoderInfo(self._handle, engines, cores)
        return int(engines[0]) if status == 0 else 0

    def decode(
        self,
        addresses: npt.NDArray[np.uint64],
        lengths: npt.NDArray[np.uint64],
        images: npt.NDArray[np.void],
        stream: int,
    ) -> None:
        """Decodes n baseline JPEGs to interleaved RGB, in one call.

        The engines do not keep the order of a stream: when this is called nothing may be pending
        on ``stream``, and the memory of ``images`` must be free on the host's knowledge. The
        pixels are there, and the compressed bytes no longer read, once the host has waited for
        ``stream`` afterwards.

        Args:
            addresses: [n], of the compressed pictures in host memory.
            lengths: [n], in bytes.
            images: [n] of ``IMAGE_DTYPE``.
            stream: a cudaStream_t of the GPU that was current when this was made.

        Raises:
            NvjpegError: refused; nothing is known of the pixels then.
        """
        count = len(addresses)
        if count != self._batch_size:
            self._batch_size = 0
            self._check(
                "nvjpegDecodeBatchedInitialize",
                self._handle,
                self._state,
                count,
                _MAX_CPU_THREADS,
                _OUTPUT_RGBI,
            )
            self._batch_size = count
        try:
            self._check(
                "nvjpegDecodeBatched",
                self._handle,
                self._state,
                ffi.cast("const unsigned char *const *", _address(addresses, np.uint64)),
                ffi.cast("const size_t *", _address(lengths, np.uint64)),
                ffi.cast("void *", _address(images, IMAGE_DTYPE)),
                ffi.cast("void *", stream),
            )
        except NvjpegError:
            # Initialising again is also how a failed batch is reset.
            self._batch_size = 0
            raise

    def _check(self, call: str, *arguments: Any) -> None:
        status = getattr(self._lib, call)(*arguments)
        if status != 0:
            raise NvjpegError(call, status)

    def close(self) -> None:
        """Frees the decoder. May be called twice."""
        self._close()


def _address(array: npt.NDArray[Any], dtype: npt.DTypeLike) -> int:
    if array.dtype != dtype or not array.flags.c_contiguous:
        raise ValueError(f"nvJPEG takes contiguous arrays of {dtype}, got {array.dtype}")
    return array.ctypes.data


def _open(flags: int) -> tuple[Any, Any]:
    """The first library that opens and takes a handle on the GPU's engines."""
    reasons = []
    for name in _candidates():
        try:
            lib = ffi.dlopen(name)
        except OSError:
            continue
        handle = ffi.new("nvjpegHandle_t *")
        status = lib.nvjpegCreateEx(_BACKEND_HARDWARE, ffi.NULL, ffi.NULL, flags, handle)
        if status == 0:
            return lib, handle[0]
        reasons.append(f"{name}: {NvjpegError('nvjpegCreateEx', status)}")
    if not reasons:
        raise ConfigError("nvJPEG is not installed (pip install 'streamloader[gpu]')")
    raise ConfigError(
        f"nvJPEG cannot use the JPEG engines here ({'; '.join(reasons)}): the GPU has none, or its"
        " driver is older than the library"
    )


def _candidates() -> Iterator[str]:
    """Where the library may be: the loader's path first, then the wheels of NVIDIA."""
    spec = importlib.util.find_spec("nvidia")
    roots = [] if spec is None else list(spec.submodule_search_locations or ())
    for name, folder in _LIBRARIES:
        yield name
        for root in roots:
            path = Path(root, folder, name)
            if path.is_file():
                yield str(path)


def _close(lib: Any, handle: Any, state: Any) -> None:
    lib.nvjpegJpegStateDestroy(state)
    lib.nvjpegDestroy(handle)

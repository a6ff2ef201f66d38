"""Many local files read in one call, packed as the records of a shard."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamloader.convert.run_memory import RunMemory

try:
    from streamloader.convert._native import ffi, lib
except ImportError:
    ffi = lib = None


Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class PackedFiles:
    """Whole files, one behind the other.

    Args:
        data: with zeros behind each, up to the start of the next and at the end.
        offsets: int64 ``[n + 1]``, where each starts in ``data``, and its end.
        lengths: int64 ``[n]``, bytes of each without the zeros.
    """

    data: memoryview
    offsets: Int64Array
    lengths: Int64Array


def read_packed_files(
    root: str, paths: Sequence[str], lengths: Int64Array, memory: RunMemory
) -> PackedFiles | None:
    """Read whole local files in one call, without Python's lock.

    Args:
        root: of the paths, with a slash at its end.
        paths: of the files.
        lengths: int64 ``[n]``, bytes that each must have.
        memory: of the run, empty.

    Returns:
        None where one is not as it was listed, or there is not enough memory, or where nothing
        native was built.
    """
    piece = memory.take_packed(lengths)
    if lib is None or piece is None:
        return None
    data, offsets = piece
    joined = b"".join(os.fsencode(root + path) + b"\0" for path in paths)
    done = lib.sl_read_files(
        len(paths),
        joined,
        ffi.from_buffer("int64_t[]", np.ascontiguousarray(lengths)),
        ffi.from_buffer("uint8_t[]", data),
        ffi.from_buffer("int64_t[]", offsets),
    )
    return PackedFiles(data, offsets, lengths) if done == len(paths) else None

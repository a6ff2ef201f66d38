"""Memory that files are read into, used again: fresh memory costs several times the read itself."""

from __future__ import annotations

import mmap
import threading

import numpy as np
import numpy.typing as npt

#: Of every piece, as of every record of a shard. Besides, some processors copy to addresses just
#: behind a page's beginning, where large allocations lie, at a quarter of their speed.
RUN_ALIGN = 64


class RunMemory:
    """Memory of one run of samples; what was taken stays as it is until ``clear``.

    Args:
        nbytes: what is kept for later runs.
    """

    def __init__(self, nbytes: int) -> None:
        self._view = memoryview(mmap.mmap(-1, nbytes) if nbytes else b"")
        self._used = 0

    def take(self, nbytes: int) -> memoryview:
        """Return ``nbytes`` of writable memory, of any content; beyond what is kept it is fresh."""
        end = self._used + nbytes
        if end > len(self._view):
            return memoryview(bytearray(nbytes))
        piece = self._view[self._used : end]
        self._used = -(-end // RUN_ALIGN) * RUN_ALIGN
        return piece

    def take_packed(
        self, lengths: npt.NDArray[np.int64]
    ) -> tuple[memoryview, npt.NDArray[np.int64]] | None:
        """Return memory for several pieces, one behind the other, and where each starts.

        Args:
            lengths: int64 ``[n]``, of the pieces.

        Returns:
            the memory of all, and int64 ``[n + 1]`` offsets in it, multiples of ``RUN_ALIGN``;
            None where what is kept is too small.
        """
        offsets = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(-(-lengths // RUN_ALIGN) * RUN_ALIGN, out=offsets[1:])
        end = self._used + int(offsets[-1])
        if end > len(self._view):
            return None
        piece = self._view[self._used : end]
        self._used = end
        return piece, offsets

    def clear(self) -> None:
        """Give everything back: what was taken may be overwritten from now on."""
        self._used = 0


class MemoryPool:
    """Memories that no run uses at the moment; for any thread.

    Args:
        nbytes: of each.
    """

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._free: list[RunMemory] = []
        self._lock = threading.Lock()

    def borrow(self) -> RunMemory:
        """Return an empty memory."""
        with self._lock:
            if self._free:
                return self._free.pop()
        return RunMemory(self._nbytes)

    def give_back(self, memory: RunMemory) -> None:
        """Take a memory whose pieces nobody looks at any more."""
        memory.clear()
        with self._lock:
            self._free.append(memory)

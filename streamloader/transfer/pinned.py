"""Pinning of memory that something else has allocated."""

from __future__ import annotations

import logging
import os
import weakref

import numpy as np
from numpy.typing import NDArray

from streamloader.transfer.memory import HostPinner, PinningError

logger = logging.getLogger("streamloader.transfer")


class PinnedArray:
    """Keeps an array registered for DMA until :meth:`close`, or until this object is gone.

    A refusal is no error: the array stays pageable, and one warning says why.

    Args:
        array: uint8, contiguous; kept alive while it is registered.
        pinner: registers it.
    """

    def __init__(self, array: NDArray[np.uint8], pinner: HostPinner) -> None:
        address = array.ctypes.data
        self._unpin: weakref.finalize[..., PinnedArray] | None = None
        try:
            pinner.register(address, array.nbytes)
        except PinningError as error:
            logger.warning("blocks stay in pageable memory, and decoding is slower: %s", error)
            return
        self._unpin = weakref.finalize(self, _unregister, pinner, address, array, os.getpid())
        # The end of the process returns everything, and the driver may be gone by then.
        self._unpin.atexit = False

    @property
    def pinned(self) -> bool:
        """Whether the array is registered."""
        return self._unpin is not None and self._unpin.alive

    def close(self) -> None:
        """Unregisters. May be called twice.

        Raises:
            RuntimeError: the driver refused to unregister.
        """
        if self._unpin is not None:
            self._unpin()


def _unregister(pinner: HostPinner, address: int, array: NDArray[np.uint8], owner_pid: int) -> None:
    # A forked child has neither the driver's context nor the registration.
    if os.getpid() == owner_pid:
        pinner.unregister(address)
    del array

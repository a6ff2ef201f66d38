"""The host memory of a slot: mapped, touched on the right NUMA node, then registered for DMA.

In this order because pages land on the node of the thread that touches them first and stay there
once they are registered.
"""

from __future__ import annotations

import mmap
import os
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from streamloader.errors import ConfigError
from streamloader.topology import NumaNode, bind_thread


class PinningError(Exception):
    """The driver refused to register memory; the memory is usable, its copies are slower."""


class HostPinner(Protocol):
    """Registers host memory with a device driver, so that copies from it are DMA."""

    def register(self, address: int, nbytes: int) -> None:
        """Registers ``nbytes`` bytes from ``address``.

        Raises:
            PinningError: refused; no error state is left behind in the driver.
        """
        ...

    def unregister(self, address: int) -> None:
        """Undoes :meth:`register`; needed before the memory is unmapped."""
        ...


class HostMemory:
    """One anonymous mapping, page aligned, touched, zeroed and, if asked for, pinned.

    Args:
        nbytes: size.
        pin: registers the memory for DMA; None leaves it pageable. A refusal is no error: the
            memory stays pageable and ``pin_refusal`` says why.
        node: NUMA node on which the pages shall lie; a thread on its CPUs touches them. None
            touches from the calling thread, and so does a refusal to go there, which is no error:
            ``node_refusal`` says why.
        descriptor: a file of ``nbytes`` bytes to map instead, shared with whoever else maps it; it
            may be closed afterwards.
        touch: False leaves the pages to the process that made the file.

    Raises:
        ConfigError: a size below 1.
        OSError: the system has no such amount of memory.

    The memory lives until :meth:`close`, or until this object is gone, and in both cases as long as
    an array looks into it.

    Attributes:
        nbytes, address: size, and where it begins.
        node: as given.
        pin_refusal, node_refusal: why the memory is not registered, or was touched elsewhere; None
            where it was done or not asked for.
    """

    def __init__(
        self,
        nbytes: int,
        *,
        pin: HostPinner | None = None,
        node: NumaNode | None = None,
        descriptor: int | None = None,
        touch: bool = True,
    ) -> None:
        if nbytes < 1:
            raise ConfigError(f"host memory needs at least 1 byte, got {nbytes}")
        self.nbytes = nbytes
        self.node = node
        self.pin_refusal: str | None = None
        self.node_refusal: str | None = None
        if descriptor is None:
            mapping = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        else:
            mapping = mmap.mmap(descriptor, nbytes, flags=mmap.MAP_SHARED)
        self._array: NDArray[np.uint8] | None = np.frombuffer(mapping, np.uint8)
        self.address: int = self._array.ctypes.data
        if node is None:
            if touch:
                _touch(self._array)
        else:
            # Neighbours of one kind become one mapping, and pages are counted by mapping. No core
            # dump needs the slots, and what a dump leaves out stays apart from all the rest.
            mapping.madvise(mmap.MADV_DONTDUMP)
            self.node_refusal = _touch_on_node(self._array, node)
        self._unpin: weakref.finalize[..., HostMemory] | None = None
        if pin is not None:
            self._pin(pin, self._array)

    def _pin(self, pinner: HostPinner, array: NDArray[np.uint8]) -> None:
        try:
            pinner.register(self.address, self.nbytes)
        except PinningError as error:
            self.pin_refusal = str(error)
            return
        # The finaliser holds the array, hence the mapping: it is unmapped only after unregistering.
        self._unpin = weakref.finalize(self, _unregister, pinner, self.address, array, os.getpid())
        # A copy may still be in flight at exit, and the end of the process returns everything.
        self._unpin.atexit = False

    @property
    def pinned(self) -> bool:
        """Whether the memory is registered for DMA."""
        return self._unpin is not None and self._unpin.alive

    @property
    def array(self) -> NDArray[np.uint8]:
        """All bytes, as uint8 ``[nbytes]``.

        Raises:
            RuntimeError: after :meth:`close`.
        """
        if self._array is None:
            raise RuntimeError("this host memory is closed")
        return self._array

    def close(self) -> None:
        """Unregisters, and unmaps as soon as no array looks into the memory. May be called twice.

        Raises:
            RuntimeError: the driver refused to unregister.
        """
        self._array = None
        if self._unpin is not None:
            self._unpin()


def _touch(array: NDArray[np.uint8]) -> None:
    array[:: mmap.PAGESIZE] = 0


def _touch_on_node(array: NDArray[np.uint8], node: NumaNode) -> str | None:
    """Touches from a thread of its own, so that the caller stays where it is."""
    with ThreadPoolExecutor(1, thread_name_prefix="streamloader-transfer-touch") as executor:
        refusal = executor.submit(bind_thread, node.cpus).result()
        executor.submit(_touch, array).result()
    return refusal


def _unregister(pinner: HostPinner, address: int, array: NDArray[np.uint8], owner_pid: int) -> None:
    # A forked child inherits this object, but neither the driver's context nor the registration.
    if os.getpid() == owner_pid:
        pinner.unregister(address)
    del array

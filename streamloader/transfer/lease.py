"""Leases: how long the consumer keeps a slot on the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamloader.transfer.slot import Slot


class Lease:
    """Keeps one READABLE slot for the consumer; the slot goes back when the lease is gone.

    NumPy makes it the base of the arrays of :func:`lease_arrays` and torch keeps those arrays
    behind its storages, so a slice, a view or a tensor made from them, anywhere, keeps the slot.
    """

    __slots__ = ("__array_interface__", "__weakref__", "_bytes", "_slot")

    def __init__(self, slot: Slot) -> None:
        # Held beside the slot, so that the bytes stay mapped even if the memory is closed by hand.
        self._bytes = slot.array
        self.__array_interface__: dict[str, Any] = {
            "version": 3,
            "shape": self._bytes.shape,
            "typestr": "|u1",
            "data": (slot.memory.address, False),
        }
        slot.mark_readable()
        self._slot = slot

    def __del__(self) -> None:
        # No slot: the slot was not FILLED and the constructor raised.
        slot = getattr(self, "_slot", None)
        if slot is not None:
            slot.ring.returned.put(slot)


def lease_arrays(slot: Slot) -> dict[str, np.ndarray]:
    """FILLED -> READABLE: hands the batch in ``slot`` to the consumer, without a copy.

    Returns:
        field name -> array ``[rows, *shape]``, ``rows`` as given to ``slot.mark_filled``. The slot
        becomes writable when the last array or tensor that looks into it is gone.

    Raises:
        RuntimeError: the slot is not FILLED.
    """
    arrays = slot.ring.layout.views(np.asarray(Lease(slot)), slot.rows)
    slot.ring.announce_growth()
    return arrays

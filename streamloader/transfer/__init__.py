"""Slots, the memory behind them, who may touch them when, and their way to a device.

Decode workers write a batch into a slot of a :class:`SlotRing`. From there it reaches the consumer
either in place (:func:`lease_arrays`) or through a :class:`TransferStation`, which copies it to a
device. This room knows bytes, fields and rows, not samples. Importing it does not import torch.
"""

from __future__ import annotations

from streamloader.transfer.backend import DeviceBackend
from streamloader.transfer.cuda import CudaBackend
from streamloader.transfer.device_slot import DeviceBatch
from streamloader.transfer.filling import Filling, PlainCopy
from streamloader.transfer.layout import FieldSpec, Region, SlotLayout
from streamloader.transfer.lease import Lease, lease_arrays
from streamloader.transfer.memory import HostMemory, HostPinner, PinningError
from streamloader.transfer.mirror import MirrorRing
from streamloader.transfer.pinned import PinnedArray
from streamloader.transfer.ring import RingExhausted, RingStats, SlotRing
from streamloader.transfer.slot import Slot, SlotState
from streamloader.transfer.station import StationStats, TransferStation

__all__ = [
    "CudaBackend",
    "DeviceBackend",
    "DeviceBatch",
    "FieldSpec",
    "Filling",
    "HostMemory",
    "HostPinner",
    "Lease",
    "MirrorRing",
    "PinnedArray",
    "PinningError",
    "PlainCopy",
    "Region",
    "RingExhausted",
    "RingStats",
    "Slot",
    "SlotLayout",
    "SlotRing",
    "SlotState",
    "StationStats",
    "TransferStation",
    "lease_arrays",
]

"""Order, partition and resume: pure arithmetic, the same on every rank and machine.

``OrderSpec`` and an epoch number make an ``EpochOrder``: which sample each position of the global
order has. A ``RankPlan`` cuts it into one rank's batches. ``LoaderState`` is what a run saves.
"""

from streamloader.order.bijection import Bijection
from streamloader.order.epoch import EpochOrder
from streamloader.order.footprint import Footprint, footprint_of
from streamloader.order.located import Located
from streamloader.order.passes import Order, SizedOrder, WeightedOrder, Weights
from streamloader.order.plan import LAST_BATCH_RULES, BatchPlan, LastBatch, RankPlan
from streamloader.order.random import derive_key, mix64, random_u64, random_unit
from streamloader.order.seats import seat_of, share_rows
from streamloader.order.selection import Selection
from streamloader.order.spec import ORDER_VERSION, OrderSpec, ShuffleMode
from streamloader.order.state import LoaderState

__all__ = [
    "LAST_BATCH_RULES",
    "ORDER_VERSION",
    "BatchPlan",
    "Bijection",
    "EpochOrder",
    "Footprint",
    "LastBatch",
    "LoaderState",
    "Located",
    "Order",
    "OrderSpec",
    "RankPlan",
    "Selection",
    "ShuffleMode",
    "SizedOrder",
    "WeightedOrder",
    "Weights",
    "derive_key",
    "footprint_of",
    "mix64",
    "random_u64",
    "random_unit",
    "seat_of",
    "share_rows",
]

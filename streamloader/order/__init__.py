"""Order, partition and resume: pure arithmetic, the same on every rank and machine.

``OrderSpec`` and an epoch number make an ``EpochOrder``: which sample each position of the global
order has. A ``RankPlan`` cuts it into one rank's batches, an ``ArrivalPool`` makes those of an
``ArrivalPlan`` of what has come. ``LoaderState`` is what a run saves.
"""

from streamloader.order.arrival_plan import ArrivalPlan, look_ahead_rows
from streamloader.order.arrival_pool import ArrivalPool
from streamloader.order.arrived import Arrived
from streamloader.order.bijection import Bijection
from streamloader.order.epoch import EpochOrder
from streamloader.order.footprint import Footprint, footprint_of
from streamloader.order.gaps import GapOrder, Gaps
from streamloader.order.located import Located
from streamloader.order.mixed import MixedOrder, Mixture
from streamloader.order.mixture_state import describe_mixture
from streamloader.order.passes import Order, SizedOrder, WeightedOrder, Weights
from streamloader.order.plan import LAST_BATCH_RULES, BatchPlan, BatchRows, LastBatch, RankPlan
from streamloader.order.progress import merge_states, state_after
from streamloader.order.proportions import Proportions
from streamloader.order.random import derive_key, mix64, random_u64, random_unit
from streamloader.order.seats import seat_of, share_rows
from streamloader.order.selection import Selection
from streamloader.order.spec import ORDER_VERSION, OrderSpec, ShuffleMode
from streamloader.order.state import LoaderState

__all__ = [
    "LAST_BATCH_RULES",
    "ORDER_VERSION",
    "ArrivalPlan",
    "ArrivalPool",
    "Arrived",
    "BatchPlan",
    "BatchRows",
    "Bijection",
    "EpochOrder",
    "Footprint",
    "GapOrder",
    "Gaps",
    "LastBatch",
    "LoaderState",
    "Located",
    "MixedOrder",
    "Mixture",
    "Order",
    "OrderSpec",
    "Proportions",
    "RankPlan",
    "Selection",
    "ShuffleMode",
    "SizedOrder",
    "WeightedOrder",
    "Weights",
    "derive_key",
    "describe_mixture",
    "footprint_of",
    "look_ahead_rows",
    "merge_states",
    "mix64",
    "random_u64",
    "random_unit",
    "seat_of",
    "share_rows",
    "state_after",
]

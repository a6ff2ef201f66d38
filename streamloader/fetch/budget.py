"""How the one ``memory_limit`` is divided, and how much is needed at least."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamloader.errors import ConfigError
from streamloader.fetch.catalog import Catalog
from streamloader.order import OrderSpec

_SIGMAS = 4.0
_SPARE_SHARE = 0.5
_ROOM_PER_PIECE_BYTES = 256
_SLACK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes by room; their sum is at most ``limit_bytes``.

    Attributes:
        limit_bytes: the bound on all of it.
        slot_bytes: one slot of the ring.
        slots, max_slots: slots at the start, and when the consumer holds batches.
        tail_bytes: tails of shards kept in memory.
        block_bytes: the arena, for blocks and their rows.
    """

    limit_bytes: int
    slot_bytes: int
    slots: int
    max_slots: int
    tail_bytes: int
    block_bytes: int

    def to_dict(self) -> dict[str, int]:
        return {
            "limit": self.limit_bytes,
            "slots": self.slots * self.slot_bytes,
            "max_slots": self.max_slots * self.slot_bytes,
            "tails": self.tail_bytes,
            "blocks": self.block_bytes,
        }


def open_block_bytes(
    spec: OrderSpec,
    block_bytes: npt.NDArray[np.int64],
    *,
    batch_size: int,
    world_size: int,
    row_bytes: int,
) -> int:
    """Bytes of the blocks that must be in memory at once on one rank.

    The window of each of the rank's lanes is open, and one batch may reach beyond it. Which
    blocks meet is random, so the sum of n of them is taken as n times the mean plus four
    standard deviations of such a sum, plus the largest block.
    """
    total = int(block_bytes.sum()) + spec.num_samples * row_bytes
    total += len(block_bytes) * 3 * _ROOM_PER_PIECE_BYTES
    lanes = spec.lanes
    own_lanes = lanes / world_size
    if world_size > 1 and lanes % world_size:
        own_lanes = min(lanes, math.ceil(own_lanes) + 1)
    per_batch = batch_size if spec.shuffle == "global" else batch_size / spec.block_samples
    pieces = max(1.0, own_lanes) * spec.window + per_batch + 1
    row_block = spec.block_samples * row_bytes + _ROOM_PER_PIECE_BYTES
    mean = float(block_bytes.mean()) + row_block if len(block_bytes) else row_block
    spread = float(block_bytes.std()) if len(block_bytes) else 0.0
    largest = int(block_bytes.max()) + row_block if len(block_bytes) else 0
    needed = pieces * mean + _SIGMAS * math.sqrt(pieces) * spread + largest
    # A lane may have two parts of blocks, and each takes the room of its block at first.
    whole = total + 2 * math.ceil(max(1.0, own_lanes)) * largest
    return min(math.ceil(needed), whole)


def plan_memory(
    limit_bytes: int,
    *,
    slot_bytes: int,
    slots: int,
    tail_bytes: int,
    needed_block_bytes: int,
    all_block_bytes: int,
) -> MemoryPlan:
    """Divides ``limit_bytes``.

    Args:
        tail_bytes: tails of every shard the rank may read; a quarter of the limit at most is
            given to them.
        needed_block_bytes: from :func:`open_block_bytes`.
        all_block_bytes: more than this cannot be used.

    Raises:
        ConfigError: the limit is too small; the message has the least that works.
    """
    tails = min(tail_bytes, limit_bytes // 4)
    least = slots * slot_bytes + needed_block_bytes
    least_limit = max(least + tail_bytes, 0) if tail_bytes * 3 <= least else -(-least * 4 // 3)
    room = limit_bytes - slots * slot_bytes - tails
    if room < needed_block_bytes:
        raise ConfigError(
            f"memory_limit={limit_bytes:,} bytes is too small: {slots} slots take"
            f" {slots * slot_bytes:,}, open blocks {needed_block_bytes:,} and shard tails"
            f" {tails:,}; give at least {least_limit:,}, or lower batch_size or"
            " prefetch_batches"
        )
    spare = int(needed_block_bytes * _SPARE_SHARE)
    blocks = min(room, needed_block_bytes + spare, max(all_block_bytes, needed_block_bytes))
    growth = (room - blocks) // slot_bytes if slot_bytes else 0
    return MemoryPlan(limit_bytes, slot_bytes, slots, slots + growth, tails, blocks)


def divide_memory(
    catalog: Catalog,
    spec: OrderSpec,
    limit_bytes: int,
    *,
    batch_size: int,
    world_size: int,
    slot_bytes: int = 0,
    slots: int = 0,
    expansion: float = 0.0,
) -> MemoryPlan:
    """The division of ``limit_bytes`` for one rank that reads a data set in the order of ``spec``.

    Args:
        expansion: bytes that decompression adds for each stored byte.

    Raises:
        ConfigError: the limit is too small; the message has the least that works.
    """
    row_bytes = catalog.row_layout().stride
    block_bytes = np.ceil(catalog.blocks.block_bytes * (1 + expansion)).astype(np.int64)
    everything = int(block_bytes.sum()) + spec.num_samples * row_bytes
    return plan_memory(
        limit_bytes,
        slot_bytes=slot_bytes,
        slots=slots,
        tail_bytes=int(np.sum(catalog.manifest.tail_bytes)),
        needed_block_bytes=open_block_bytes(
            spec, block_bytes, batch_size=batch_size, world_size=world_size, row_bytes=row_bytes
        ),
        all_block_bytes=everything + everything // 8 + _SLACK_BYTES,
    )

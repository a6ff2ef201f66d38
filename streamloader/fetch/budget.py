"""How the one ``memory_limit`` is divided, and how much is needed at least."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamloader.errors import ConfigError
from streamloader.fetch.catalog import Catalog
from streamloader.order import OrderSpec

_SIGMAS = 4.0
_PIECES_CUT_PER_LANE = 3
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
    batch_size: float,
    world_size: int,
    row_bytes: int,
    passes: int = 1,
) -> int:
    """Bytes of the blocks that must be in memory at once on one rank.

    ``passes`` over the data set may have rows in one global batch: more than one where epochs are
    cut from passes, more than two where the data set is smaller than the batch. Each of those in
    between has all its pieces in the batch.

    The window of each of the rank's lanes is open, and one batch may reach beyond it. Which
    blocks meet is random, so the sum of n of them is taken as n times the mean plus four
    standard deviations of such a sum, plus the largest block.
    """
    total = int(block_bytes.sum()) + spec.num_samples * row_bytes
    total += len(block_bytes) * 3 * _ROOM_PER_PIECE_BYTES
    lanes = spec.lanes
    own_lanes = lanes / world_size
    if world_size > 1 and (lanes % world_size or passes > 1):
        own_lanes = min(lanes, math.ceil(own_lanes) + 1)
    per_batch = batch_size if spec.shuffle == "global" else batch_size / spec.block_samples
    pieces = max(1.0, own_lanes) * spec.window + per_batch + 1
    pieces += max(0, passes - 2) * _PIECES_CUT_PER_LANE * max(1.0, own_lanes)
    row_block = spec.block_samples * row_bytes + _ROOM_PER_PIECE_BYTES
    mean = float(block_bytes.mean()) + row_block if len(block_bytes) else row_block
    spread = float(block_bytes.std()) if len(block_bytes) else 0.0
    largest = int(block_bytes.max()) + row_block if len(block_bytes) else 0
    needed = pieces * mean + _SIGMAS * math.sqrt(pieces) * spread + largest
    # A lane may have two parts of blocks, and each takes the room of its block at first.
    whole = total + 2 * math.ceil(max(1.0, own_lanes)) * largest
    return min(math.ceil(needed), whole * passes)


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
    reading = Reading(catalog, spec, batch_size, expansion=expansion)
    return divide_among(
        [reading], limit_bytes, world_size=world_size, slot_bytes=slot_bytes, slots=slots
    )


@dataclass(frozen=True, slots=True)
class Reading:
    """One data set of those that are read side by side.

    Attributes:
        spec: its order.
        batch_size: rows of a rank's batch that are of it, on the average.
        expansion: bytes that decompression adds for each stored byte.
        passes: over it that one global batch may have rows of.
    """

    catalog: Catalog
    spec: OrderSpec
    batch_size: float
    expansion: float = 0.0
    passes: int = 1

    @property
    def mean_record_bytes(self) -> float:
        """Bytes of a sample, decompressed."""
        stored = float(self.catalog.blocks.block_bytes.sum())
        return (1 + self.expansion) * stored / self.catalog.num_samples


def limit_tails(catalogs: Sequence[Catalog], limit_bytes: int) -> None:
    """Divides a bound on the tails kept in memory, in proportion to what there are."""
    sizes = [int(np.sum(catalog.manifest.tail_bytes)) for catalog in catalogs]
    for catalog, nbytes in zip(catalogs, sizes, strict=True):
        catalog.limit_tails(limit_bytes * nbytes // max(1, sum(sizes)))


def divide_among(
    readings: Sequence[Reading],
    limit_bytes: int,
    *,
    world_size: int,
    slot_bytes: int,
    slots: int,
) -> MemoryPlan:
    """The division of ``limit_bytes`` for one rank that reads several data sets.

    Raises:
        ConfigError: the limit is too small; the message has the least that works.
    """
    needed = everything = 0
    for reading in readings:
        row_bytes = reading.catalog.row_layout().stride
        stored = reading.catalog.blocks.block_bytes
        block_bytes = np.ceil(stored * (1 + reading.expansion)).astype(np.int64)
        needed += open_block_bytes(
            reading.spec,
            block_bytes,
            batch_size=reading.batch_size,
            world_size=world_size,
            row_bytes=row_bytes,
            passes=reading.passes,
        )
        total = int(block_bytes.sum()) + reading.spec.num_samples * row_bytes
        everything += total * reading.passes
    return plan_memory(
        limit_bytes,
        slot_bytes=slot_bytes,
        slots=slots,
        tail_bytes=sum(int(np.sum(each.catalog.manifest.tail_bytes)) for each in readings),
        needed_block_bytes=needed,
        all_block_bytes=everything + everything // 8 + _SLACK_BYTES,
    )

"""A run's state after each batch, and one state from those of all ranks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from streamloader.errors import StateMismatch
from streamloader.order.arrival_plan import ArrivalPlan
from streamloader.order.arrived import Arrived
from streamloader.order.bijection import I64Array
from streamloader.order.gaps import GapOrder, Gaps
from streamloader.order.passes import Order
from streamloader.order.plan import BatchRows, RankPlan
from streamloader.order.state import LoaderState

_AT_ONCE_BATCHES = 64


def state_after(before: LoaderState, plan: RankPlan | ArrivalPlan, batch: BatchRows) -> LoaderState:
    """The state of a consumer that had ``before`` and took ``batch``, the next one of ``plan``."""
    position, arrived = batch.next_position, None
    if isinstance(plan, ArrivalPlan) and batch.number < plan.num_batches - 1:
        assert batch.own_rows is not None
        arrived = (before.arrived or plan.arrived).with_batch(batch.own_rows, plan.batch_size)
    gaps, start = before.gaps, arrived.start if arrived is not None else position
    if gaps is not None and start >= gaps.end:
        gaps = None
    return dataclasses.replace(before, position=position, arrived=arrived, gaps=gaps)


def merge_states(
    states: Sequence[LoaderState], rank: int, order_of: Callable[[int], Order]
) -> LoaderState:
    """One state that continues on any number of ranks, from the states of all ranks.

    Args:
        states: one of each rank that saved, in any order, all saved after the same batch.
        rank: whose count of skipped samples is taken, if there is such a rank.
        order_of: the order of an epoch, without gaps.

    Raises:
        StateMismatch: they are not of one moment of one run, or some rank's is missing.
    """
    first = states[0]
    for other in states:
        _check_same_moment(first, other)
    if first.arrived is None:
        return states[rank % len(states)]
    by_rank = {state.arrived.rank: state for state in states if state.arrived is not None}
    world_size = first.arrived.world_size
    missing = [r for r in range(min(world_size, len(states) + 1)) if r not in by_rank]
    if missing or len(states) != world_size:
        raise StateMismatch(
            f"the states of all {world_size} ranks are needed, one of each: got {len(states)}"
            + (f", none of rank {missing[0]}" if missing else "")
        )
    open_positions, end = _left_open([by_rank[r] for r in sorted(by_rank)], order_of(first.epoch))
    own = by_rank[rank % len(by_rank)]
    return dataclasses.replace(
        own,
        position=end - open_positions.size,
        gaps=Gaps.of(open_positions, end),
        arrived=None,
    )


def _check_same_moment(first: LoaderState, other: LoaderState) -> None:
    ours, theirs = first.arrived, other.arrived
    same = (first.epoch, first.position, first.gaps) == (other.epoch, other.position, other.gaps)
    if same and ours is not None and theirs is not None:
        moment = dataclasses.replace(theirs, rank=ours.rank, base=ours.base, ahead=ours.ahead)
        same = moment == ours
    elif same:
        same = ours is theirs
    if not same:
        raise StateMismatch(
            f"the states were not saved after the same batch of one run: one is at position"
            f" {first.position} of epoch {first.epoch}, another at position {other.position} of"
            f" epoch {other.epoch}{_cuts(ours, theirs)}; load states that all ranks saved together"
        )


def _cuts(ours: Arrived | None, theirs: Arrived | None) -> str:
    if ours is None or theirs is None:
        return ""
    return (
        f" (of {ours.world_size} ranks with batch_size={ours.batch_size},"
        f" and of {theirs.world_size} with {theirs.batch_size})"
    )


def _left_open(states: list[LoaderState], order: Order) -> tuple[I64Array, int]:
    """Positions that nobody has, and where those begin from which on nobody has any."""
    gaps = states[0].gaps
    if gaps is not None:
        order = GapOrder(order, gaps)
    ranks = [state.arrived for state in states if state.arrived is not None]
    batch_size = ranks[0].batch_size
    batches = max(-(-arrived.end // batch_size) for arrived in ranks)
    end = ranks[0].start + batches * batch_size * len(ranks)
    end = min(end, order.spec.num_samples)
    left = np.concatenate([_lacked(arrived, order, batches) for arrived in ranks])
    if isinstance(order, GapOrder):
        assert gaps is not None
        left = np.concatenate([left, np.arange(end, max(end, gaps.end), dtype=np.int64)])
        left = order.true_positions(left)
        end = max(end, gaps.end)
    left.sort()
    return left, end


def _lacked(arrived: Arrived, order: Order, batches: int) -> I64Array:
    """Positions of one rank's own rows in its first ``batches`` that its consumer lacks."""
    size = arrived.batch_size
    plan = RankPlan(
        order,
        batch_size=size,
        rank=arrived.rank,
        world_size=arrived.world_size,
        start=arrived.start,
    )
    first = arrived.base // size
    positions = [
        plan.positions(number, min(_AT_ONCE_BATCHES, batches - number))
        for number in range(first, batches, _AT_ONCE_BATCHES)
    ]
    if not positions:
        return np.empty(0, dtype=np.int64)
    found = np.concatenate(positions)
    own = first * size + np.arange(found.size)
    is_lacked = (own >= arrived.base) & ~np.isin(own, arrived.rows_ahead)
    lacked: I64Array = found[is_lacked & (found < order.spec.num_samples)]
    return lacked

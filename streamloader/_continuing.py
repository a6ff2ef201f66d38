"""How a run goes on from a state: its plan, and which saved states a loader may take over."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from streamloader._choice import Choice
from streamloader._settings import Settings
from streamloader._world import World
from streamloader.errors import ConfigError, StateMismatch
from streamloader.order import (
    ArrivalPlan,
    GapOrder,
    LoaderState,
    RankPlan,
    merge_states,
)


def plan_of(
    choice: Choice, settings: Settings, cursor: LoaderState, *, rank: int, world_size: int
) -> RankPlan | ArrivalPlan:
    """The batches of a rank from the cursor to the end of its epoch."""
    order = choice.order(cursor.epoch)
    if cursor.gaps is not None:
        order = GapOrder(order, cursor.gaps)
    if settings.deterministic:
        return RankPlan(
            order,
            batch_size=settings.batch_size,
            rank=rank,
            world_size=world_size,
            last_batch=settings.last_batch,
            start=cursor.position,
        )
    return ArrivalPlan(
        order,
        batch_size=settings.batch_size,
        rank=rank,
        world_size=world_size,
        last_batch=settings.last_batch,
        start=cursor.position,
        arrived=cursor.arrived,
    )


def choose_state(
    saved: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    blank: LoaderState,
    choice: Choice,
    world: World,
) -> LoaderState:
    """The state to go on from, out of one rank's or those of all ranks.

    Args:
        saved: what ``state_dict`` gave on one rank, or a list of what it gave on all of them. That
            of a process with several devices has a list of their ``arrived``.
        blank: state of the loader at its beginning.
        choice: of the loader.
        world: this rank.

    Raises:
        StateMismatch: another run's state, or another rank's where it does not say enough.
        ConfigError: it is no state.
    """
    is_list = isinstance(saved, Sequence) and not isinstance(saved, str | bytes)
    states = [
        LoaderState.parse(part)
        for state in (saved if is_list else [saved])
        for part in _parts(state)
    ]
    if not states:
        raise ConfigError("a list of loader states needs that of each rank, got an empty list")
    for state in states:
        state.check_continues(blank)
        state.check_fits(choice.num_samples)
    arrived = states[0].arrived
    if arrived is None or is_list or arrived.world_size == len(states):
        loaded = merge_states(states, world.rank, choice.order)
    else:
        loaded = _own_state(states, blank, world)
    return dataclasses.replace(loaded, mode=blank.mode)


def _parts(state: Any) -> list[Any]:
    """The states of a process's devices, out of its one."""
    if not isinstance(state, Mapping) or not isinstance(state.get("arrived"), list | tuple):
        return [state]
    return [{**state, "arrived": arrived} for arrived in state["arrived"]]


def _own_state(states: Sequence[LoaderState], blank: LoaderState, world: World) -> LoaderState:
    """What some ranks alone took out of turn continues nothing but their own runs by arrival."""
    here = f"rank {world.rank} of {world.world_size}"
    if blank.mode == "deterministic":
        here += " with deterministic=True"
    arrived = [state.arrived for state in states if state.arrived is not None]
    for state in states:
        place = state.arrived and (state.arrived.rank, state.arrived.world_size)
        if place == (world.rank, world.world_size) and blank.mode != "deterministic":
            return state
    raise StateMismatch(
        f"the state says what rank {', '.join(str(part.rank) for part in arrived)} of"
        f" {arrived[0].world_size} alone took with deterministic=False, and this is {here}: load"
        f" the states of all {arrived[0].world_size} ranks as a list"
    )

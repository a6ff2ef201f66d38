"""Several devices of one process: a loader for each, which go step by step."""

# A step has a tuple of batches here, which is the point:
# mypy: disable-error-code="override"
# A group and its members are one class:
# ruff: noqa: SLF001

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from streamloader.batch import Batch
from streamloader.errors import ConfigError
from streamloader.loader import StreamLoader
from streamloader.monitor import TimeSummary
from streamloader.sizes import parse_size
from streamloader.source import DataSets

Batches = tuple[Batch, ...]


class DeviceGroup(StreamLoader):
    """What ``StreamLoader(…, devices=[…])`` makes.

    With D devices, the one at place i has the batches of rank ``rank * D + i`` among
    ``world_size * D``; workers and memory are divided between them.
    """

    def __init__(
        self,
        url: DataSets,
        *,
        devices: Sequence[Any],
        device: Any = None,
        memory_limit: int | str = "1gib",
        rank: int | None = None,
        world_size: int | None = None,
        local_rank: int | None = None,
        local_world_size: int | None = None,
        **options: Any,
    ) -> None:
        if device is not None:
            raise ConfigError("give device or devices, not both")
        names = _device_names(devices)
        self._set_world(rank, world_size, local_rank, local_world_size)
        world, count = self._world, len(names)
        limit_bytes = parse_size(memory_limit, "memory_limit") // count

        def member(place: int) -> StreamLoader:
            return StreamLoader(
                url,
                device=names[place],
                memory_limit=limit_bytes,
                rank=world.rank * count + place,
                world_size=world.world_size * count,
                local_rank=world.local_rank * count + place,
                local_world_size=world.local_world_size * count,
                **options,
            )

        self._members = _opened(member, count)
        self._closed = False
        self._state = self._members_state()

    @property
    def classes(self) -> list[str]:
        return self._members[0].classes

    @property
    def num_samples(self) -> int:
        return self._members[0].num_samples

    def __len__(self) -> int:
        return len(self._members[0])

    def __iter__(self) -> Iterator[Batches]:
        return self._new_iterator()

    def __aiter__(self) -> AsyncIterator[Batches]:
        return self._new_iterator()

    def _new_iterator(self) -> GroupIterator:
        if self._closed:
            raise ConfigError("this loader is closed: make a new one")
        self._check_world()
        return GroupIterator(self, [iter(member) for member in self._members])

    def set_epoch(self, epoch: int) -> None:
        for member in self._members:
            member.set_epoch(epoch)
        self._state = self._members_state()

    def state_dict(self) -> dict[str, Any]:
        return dict(self._state)

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        # Samples that were skipped count once, so the first member has them.
        for place, member in enumerate(self._members):
            member.load_state_dict(_without_skipped(state) if place else state)
        self._state = self._members_state()

    def _members_state(self) -> dict[str, Any]:
        return _joint_state([member.state_dict() for member in self._members])

    def stats(self) -> dict[str, Any]:
        """``devices``: the statistics of each; ``counters`` and ``workers``: their sums."""
        parts = [member.stats() for member in self._members]
        counters: Counter[str] = Counter()
        for part in parts:
            counters.update(part["counters"])
        return {
            "feed": parts[0]["feed"],
            "workers": sum(part["workers"] for part in parts),
            "counters": dict(sorted(counters.items())),
            "devices": parts,
        }

    def stage_time(self, stage: str) -> TimeSummary:
        """Of the device where the stage takes longest at the median."""
        times = [member.stage_time(stage) for member in self._members]
        return max(times, key=lambda time: time.p50)

    def close(self) -> None:
        self._closed = True
        with ExitStack() as stack:
            for member in self._members:
                stack.callback(member.close)


class GroupIterator(Iterator[Batches], AsyncIterator[Batches]):
    """Steps of one epoch: a batch for each device."""

    def __init__(self, group: DeviceGroup, iterators: list[Any]) -> None:
        self._group = group
        self._iterators = iterators

    def __next__(self) -> Batches:
        batches = []
        try:
            for iterator in self._iterators:
                batches.append(next(iterator))
        except BaseException:
            self.end()
            raise
        return self._given(tuple(batches))

    def __aiter__(self) -> AsyncIterator[Batches]:
        return self

    async def __anext__(self) -> Batches:
        batches = []
        try:
            for iterator in self._iterators:
                batches.append(await anext(iterator))
        except BaseException:
            self.end()
            raise
        return self._given(tuple(batches))

    def _given(self, batches: Batches) -> Batches:
        state = _joint_state([batch.state for batch in batches])
        self._group._state = state
        return tuple(Batch(dict(batch), state) for batch in batches)

    def end(self) -> None:
        """Ends the epoch on every device; may be called twice."""
        with ExitStack() as stack:
            for iterator in self._iterators:
                stack.callback(iterator.end)


_NONE_SKIPPED = {"skipped": 0, "skipped_digest": ""}


def _without_skipped(state: Any) -> Any:
    """A state, or a list of them, that counts no skipped sample."""
    if isinstance(state, Mapping):
        return {**state, **_NONE_SKIPPED}
    return [_without_skipped(part) for part in state] if isinstance(state, list | tuple) else state


def _joint_state(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The one state of all devices: each has skipped samples, and rows by arrival, of its own."""
    digest = sum(int(state["skipped_digest"] or "0", 16) for state in states) % (1 << 64)
    skipped = sum(state["skipped"] for state in states)
    return {
        **states[0],
        "arrived": states[0]["arrived"] and [state["arrived"] for state in states],
        "skipped": skipped,
        "skipped_digest": f"{digest:016x}" if skipped else "",
    }


def _device_names(devices: Sequence[Any]) -> list[str]:
    if isinstance(devices, str) or not isinstance(devices, Sequence) or not devices:
        raise ConfigError(f"devices must be a list such as ['cuda:0', 'cuda:1'], got {devices!r}")
    return [f"cuda:{d}" if isinstance(d, int) else str(d) for d in devices]


def _opened(member: Callable[[int], StreamLoader], count: int) -> list[StreamLoader]:
    """All members, opened side by side; none is left open if one fails."""
    with ExitStack() as stack, ThreadPoolExecutor(count) as executor:
        futures = [executor.submit(member, place) for place in range(count)]
        errors = [future.exception() for future in futures]
        for future, error in zip(futures, errors, strict=True):
            if error is None:
                stack.callback(future.result().close)
        for error in errors:
            if error is not None:
                raise error
        stack.pop_all()
        return [future.result() for future in futures]

"""What one rank saves of an epoch whose batches are made by arrival."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamloader.errors import ConfigError
from streamloader.order.bijection import I64Array
from streamloader.order.bits import count_of, from_hex, is_hex, to_hex
from streamloader.order.spec import checked_int

_MAX_RANKS = 1 << 31


@dataclass(frozen=True, slots=True)
class Arrived:
    """The rows that a rank's consumer has, out of those that a cut of the global order gives it.

    A rank's *own rows* are those of its ``RankPlan`` with this start, batch size and world size,
    numbered batch by batch. The cut stays as it is when the batch size changes.

    Raises:
        ConfigError: a field has the wrong type or range; the message names it.
    """

    start: int
    """Global position at which the cut begins."""

    batch_size: int
    world_size: int
    rank: int
    rows: int
    """Rows of the batches that the consumer took, padding included: the same on every rank."""

    base: int = 0
    """The consumer has all own rows before this one."""

    ahead: str = ""
    """The own rows that it has besides, counted from ``base``, as of ``to_hex``."""

    def __post_init__(self) -> None:
        for name, low, high in (
            ("start", 0, 1 << 62),
            ("batch_size", 1, _MAX_RANKS),
            ("world_size", 1, _MAX_RANKS),
            ("rows", 0, 1 << 62),
            ("base", 0, 1 << 62),
        ):
            checked_int(f"state field 'arrived.{name}'", getattr(self, name), low, high)
        checked_int("state field 'arrived.rank'", self.rank, 0, self.world_size - 1)
        if not is_hex(self.ahead):
            raise ConfigError(f"state field 'arrived.ahead' must be hex digits, got {self.ahead!r}")
        named = self.base + count_of(self.ahead)
        if named > self.rows:
            raise ConfigError(f"state field 'arrived' counts {self.rows} rows and names {named}")

    @classmethod
    def parse(cls, values: object) -> Arrived | None:
        """Reads what ``to_dict`` gave, or None.

        Raises:
            ConfigError: it is something else.
        """
        if values is None or isinstance(values, Arrived):
            return values
        names = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(values, Mapping) or set(values) != names:
            raise ConfigError(f"state field 'arrived' must be null or a dict of {sorted(names)}")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @property
    def rows_ahead(self) -> I64Array:
        """The own rows that the consumer has beyond ``base``, int64 ``[n]`` ascending."""
        return self.base + from_hex(self.ahead)

    @property
    def end(self) -> int:
        """The consumer has no own row from this one on."""
        ahead = self.rows_ahead
        return int(ahead[-1]) + 1 if ahead.size else self.base

    def with_batch(self, own_rows: I64Array, batch_size: int) -> Arrived:
        """After one more batch.

        Args:
            own_rows: its rows, int64 ``[b]``; negative ones are padding.
            batch_size: what the batch counts for, on every rank.
        """
        taken = np.concatenate([self.rows_ahead, own_rows[own_rows >= 0]])
        taken.sort(kind="stable")
        # Sorted rows are in turn as long as each is the base plus its place.
        in_turn = taken == self.base + np.arange(taken.size)
        count = int(taken.size if in_turn.all() else np.argmin(in_turn))
        base = self.base + count
        return dataclasses.replace(
            self, rows=self.rows + batch_size, base=base, ahead=to_hex(taken[count:] - base)
        )

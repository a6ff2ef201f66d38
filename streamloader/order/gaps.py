"""Positions that a run by arrival left open, and the order that makes up for them first."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamloader.errors import ConfigError
from streamloader.order.bijection import I64Array
from streamloader.order.bits import from_hex, is_hex, to_hex
from streamloader.order.located import Located
from streamloader.order.passes import Order
from streamloader.order.spec import OrderSpec, checked_int


@dataclass(frozen=True, slots=True)
class Gaps:
    """Positions before ``end`` that are still to come, while all others before it were consumed.

    Raises:
        ConfigError: a field has the wrong type or range; the message names it.
    """

    first: int
    """First open position."""

    end: int
    """Nothing from this position on was consumed."""

    bits: str
    """The open positions, counted from ``first``, as of ``to_hex``."""

    def __post_init__(self) -> None:
        first = checked_int("state field 'gaps.first'", self.first, 0, 1 << 62)
        checked_int("state field 'gaps.end'", self.end, first, 1 << 62)
        if not is_hex(self.bits):
            raise ConfigError(f"state field 'gaps.bits' must be hex digits, got {self.bits!r}")
        positions = self.positions
        if not positions.size or positions[-1] >= self.end:
            raise ConfigError(
                "state field 'gaps' must name open positions before its end,"
                f" got first={self.first}, end={self.end}, bits={self.bits!r}"
            )

    @staticmethod
    def of(positions: I64Array, end: int) -> Gaps | None:
        """The gaps with these open positions, int64 ``[n]`` ascending; None if they are no gaps.

        Positions that reach to ``end`` without a hole are only the part of the sequence that comes
        next.
        """
        if not positions.size or int(positions[0]) == end - positions.size:
            return None
        first = int(positions[0])
        return Gaps(first, end, to_hex(positions - first))

    @classmethod
    def parse(cls, values: object) -> Gaps | None:
        """Reads what ``to_dict`` gave, or None.

        Raises:
            ConfigError: it is something else.
        """
        if values is None or isinstance(values, Gaps):
            return values
        names = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(values, Mapping) or set(values) != names:
            raise ConfigError(f"state field 'gaps' must be null or a dict of {sorted(names)}")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @property
    def positions(self) -> I64Array:
        """The open positions, int64 ``[n]`` ascending."""
        return self.first + from_hex(self.bits)

    @property
    def begin(self) -> int:
        """As many positions before ``end`` as are open."""
        return self.end - int(self.positions.size)


class GapOrder:
    """An order whose open positions come right before ``end``; from there on it is as it was.

    Position p in [begin, end) is the open position number p - begin. Those before ``begin`` are
    consumed, so the position that a run reached is the number of samples consumed, as ever. From
    ``end`` on every rank has its usual lanes.

    Args:
        order: of the epoch.
        gaps: what was left open in it.

    Attributes:
        whole: the order without gaps.
    """

    __slots__ = ("_begin", "_end", "_open", "_positions", "whole")

    def __init__(self, order: Order, gaps: Gaps) -> None:
        self.whole = order
        self._positions = gaps.positions
        self._begin, self._end = gaps.begin, gaps.end
        located = order.locate(self._positions)
        # A window that does not reach beyond the gaps ends with the last of its open positions.
        _, window = np.unique(located.window_end, return_inverse=True)
        last = np.zeros(int(window.max()) + 1, dtype=np.int64)
        np.maximum.at(last, window, np.arange(self._begin, self._end, dtype=np.int64) + 1)
        window_end = np.where(located.window_end > self._end, located.window_end, last[window])
        self._open = dataclasses.replace(located, window_end=window_end)

    @property
    def spec(self) -> OrderSpec:
        """Of the epoch."""
        return self.whole.spec

    def locate(self, positions: npt.ArrayLike) -> Located:
        """As ``EpochOrder.locate``."""
        places = np.atleast_1d(np.asarray(positions, dtype=np.int64))
        is_open = (places >= self._begin) & (places < self._end)
        located = self.whole.locate(places)
        if not is_open.any():
            return located
        which = places[is_open] - self._begin
        parts = {}
        for field in dataclasses.fields(Located):
            parts[field.name] = values = getattr(located, field.name).copy()
            values[is_open] = getattr(self._open, field.name)[which]
        return Located(**parts)

    def true_positions(self, positions: I64Array) -> I64Array:
        """What positions of this order are in the order without gaps; int64 ``[n]``."""
        is_open = (positions >= self._begin) & (positions < self._end)
        found = positions.copy()
        found[is_open] = self._positions[positions[is_open] - self._begin]
        return found

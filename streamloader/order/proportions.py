"""Positions dealt to several data sets by weight: exact, without drift, and with a seek in O(log).

The data sets are the leaves of a binary tree, made as Huffman's code makes it: the two lightest are
joined, again and again. A node of weight T whose first branch has weight a sends ``round(q·a / T)``
of its first q positions there, and the others to the second branch: of two, neither is ever more
than half a position off its share. What a branch gets is dealt on in the same way, so counting,
finding the data set of a position and finding the position of a data set's n-th draw are one walk
of the tree each.

How far off a share can be: a branch with the part α of its node is off by at most α times what the
node is off, and one half. That is below 1 for up to three data sets, and below 2 for any number,
since a node that is not a leaf has at most two thirds of the one above it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from fractions import Fraction
from numbers import Rational, Real
from typing import Any

import numpy as np
import numpy.typing as npt

from streamloader.errors import ConfigError
from streamloader.order.bijection import I64Array

MAX_TOTAL = 1 << 40
_LIMB_BITS = 20
_LIMB = (1 << _LIMB_BITS) - 1


class Proportions:
    """How often each of several data sets is drawn.

    Args:
        weights: whole numbers from 1 up, with a sum of at most 2^40; in ``sum(weights)``
            consecutive positions each data set comes exactly so often.

    Raises:
        ConfigError: other weights.
    """

    __slots__ = ("_first", "_first_weight", "_parent", "_root", "_second", "_weight", "weights")

    def __init__(self, weights: Sequence[int]) -> None:
        self.weights = tuple(int(weight) for weight in weights)
        if not self.weights or min(self.weights) < 1 or self.total > MAX_TOTAL:
            raise ConfigError(
                f"weights must be from 1 up with a sum of at most 2^40, got {self.weights}"
            )
        leaves = len(self.weights)
        self._root = 2 * leaves - 2
        self._parent = [0] * self._root
        # A leaf is its own first branch and has all of its own weight, so a walk rests there.
        first = np.arange(2 * leaves - 1, dtype=np.int64)
        second = first.copy()
        weight = np.ones_like(first)
        first_weight = np.ones_like(first)
        of_node = [*self.weights]
        for node, (one, other) in enumerate(_join(self.weights), start=leaves):
            self._parent[one] = self._parent[other] = node
            of_node.append(of_node[one] + of_node[other])
            first[node], second[node] = one, other
            weight[node], first_weight[node] = of_node[node], of_node[one]
        self._first, self._second, self._weight = first, second, weight
        self._first_weight = first_weight

    @classmethod
    def of(cls, weights: Sequence[Any]) -> Proportions:
        """From weights of any scale: 0.7 and 0.3, or 7 and 3.

        A float stands for the decimal number that it prints as. Weights without a common
        denominator up to 2^40 are taken to 2^-40 of their sum.

        Raises:
            ConfigError: a weight that is no positive finite number, or far below the others.
        """
        exact = [_exact(weight) for weight in weights]
        scale = math.lcm(*(weight.denominator for weight in exact))
        whole = [int(weight * scale) for weight in exact]
        divisor = math.gcd(*whole)
        whole = [weight // divisor for weight in whole]
        total = sum(whole)
        if total > MAX_TOTAL:
            room = MAX_TOTAL - len(whole)
            whole = [round(Fraction(weight * room, total)) for weight in whole]
            if min(whole) < 1:
                raise ConfigError(
                    f"the weight {weights[whole.index(0)]!r} is less than 2^-40 of all weights:"
                    " leave its data set out"
                )
        return cls(whole)

    def __len__(self) -> int:
        return len(self.weights)

    @property
    def total(self) -> int:
        """After so many positions the pattern begins anew."""
        return sum(self.weights)

    def draw(self, positions: I64Array) -> tuple[I64Array, I64Array]:
        """Which data set has each position, and how often it came before; int64 ``[n]`` each.

        Args:
            positions: int64 ``[n]``, from 0 up.
        """
        node = np.full_like(positions, self._root)
        number = positions
        while (node >= len(self)).any():
            weight, first_weight = self._weight[node], self._first_weight[node]
            first, rest = _portion(number, first_weight, weight)
            to_first = rest + first_weight >= weight
            number = np.where(to_first, first, number - first)
            node = np.where(to_first, self._first[node], self._second[node])
        return node, number

    def counts(self, positions: I64Array) -> I64Array:
        """How often each data set comes in the first positions; int64 ``[n, data sets]``."""
        dealt = np.empty((len(positions), self._root + 1), np.int64)
        dealt[:, self._root] = positions
        for node in range(self._root, len(self) - 1, -1):
            first, _ = _portion(dealt[:, node], self._first_weight[node], self._weight[node])
            dealt[:, self._first[node]] = first
            dealt[:, self._second[node]] = dealt[:, node] - first
        return dealt[:, : len(self)]

    def place(self, source: int, numbers: I64Array) -> I64Array:
        """Positions at which a data set comes for the time ``numbers`` (from 0 up); int64 ``[n]``.

        Each must lie below 2^62.
        """
        child = source
        while child != self._root:
            node = self._parent[child]
            weight, first_weight = int(self._weight[node]), int(self._first_weight[node])
            # The second branch has had floor((q·b + T - 1 - T//2) / T) of q: the rest of q.
            is_first = self._first[node] == child
            own = first_weight if is_first else weight - first_weight
            shift = weight // 2 if is_first else weight - 1 - weight // 2
            rounds, within = np.divmod(numbers, own)
            quotient, _ = _divide_product(within + 1, weight, own, -shift - 1)
            numbers = rounds * weight + quotient
            child = node
        return numbers

    def deal(self, amounts: I64Array, taken: I64Array) -> I64Array:
        """How many of each data set are among the first ``taken`` of given amounts.

        What a rank gets of a global batch, in place of what a position is: the same tree, with
        other weights.

        Args:
            amounts: int64 ``[n, data sets]``, each row with a sum of at most 2^40.
            taken: int64 ``[n]``, each at most that sum.

        Returns:
            int64 ``[n, data sets]``; row sums are ``taken``.
        """
        weight = np.empty((len(amounts), self._root + 1), np.int64)
        weight[:, : len(self)] = amounts
        for node in range(len(self), self._root + 1):
            weight[:, node] = weight[:, self._first[node]] + weight[:, self._second[node]]
        dealt = np.empty_like(weight)
        dealt[:, self._root] = taken
        for node in range(self._root, len(self) - 1, -1):
            own = weight[:, self._first[node]]
            divisor = np.maximum(weight[:, node], 1)
            first, _ = _divide_product(dealt[:, node], own, divisor, divisor // 2)
            dealt[:, self._first[node]] = first
            dealt[:, self._second[node]] = dealt[:, node] - first
        return dealt[:, : len(self)]


def _exact(weight: Any) -> Fraction:
    """A positive number as what it stands for: 7/10 for 0.7."""
    is_number = not isinstance(weight, bool) and isinstance(weight, Real)
    number = float(weight) if is_number else math.nan
    if not 0 < number < math.inf:
        raise ConfigError(
            f"a weight must be a positive number, got {weight!r}; leave out a data set that is not"
            " to be drawn"
        )
    return Fraction(weight) if isinstance(weight, Rational) else Fraction(str(number))


def _join(weights: tuple[int, ...]) -> list[tuple[int, int]]:
    """The branches of each joint; joints are numbered after the leaves, the root last."""
    heap = [(weight, leaf) for leaf, weight in enumerate(weights)]
    heapq.heapify(heap)
    joints: list[tuple[int, int]] = []
    while len(heap) > 1:
        (lightest, one), (second, other) = heapq.heappop(heap), heapq.heappop(heap)
        heapq.heappush(heap, (lightest + second, len(weights) + len(joints)))
        joints.append((one, other))
    return joints


def _portion(
    numbers: I64Array, part: I64Array | np.int64, whole: I64Array | np.int64
) -> tuple[I64Array, I64Array]:
    """``round(numbers · part / whole)``, halves up, and what is left over of the division."""
    rounds, within = np.divmod(numbers, whole)
    quotient, rest = _divide_product(within, part, whole, whole // 2)
    return rounds * part + quotient, rest


def _divide_product(
    one: npt.NDArray[np.int64],
    other: I64Array | np.int64 | int,
    divisor: I64Array | np.int64 | int,
    plus: I64Array | np.int64 | int,
) -> tuple[I64Array, I64Array]:
    """``divmod(one · other + plus, divisor)`` where the product has up to 80 bits.

    ``one`` and ``other`` lie below 2^40, ``divisor`` too and not below ``one``, or not below
    ``other`` (else the quotient would not fit); so each step stays below 2^62.
    """
    high, rest = np.divmod(one * (other >> _LIMB_BITS), divisor)
    low, rest = np.divmod((rest << _LIMB_BITS) + one * (other & _LIMB) + plus, divisor)
    return (high << _LIMB_BITS) + low, rest

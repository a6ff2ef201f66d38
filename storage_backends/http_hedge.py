"""When a second request is worth it: the slowest few are asked for again, within a budget.

Dean and Barroso, "The Tail at Scale", Communications of the ACM 56(2), 2013: a request that is
slower than nearly all others is sent a second time, and the answer that comes first is taken.
"""

from __future__ import annotations

from collections import deque

#: A twentieth of all silences is longer than the delay is derived from: a server of which one
#: answer in a hundred stalls does not move it.
_QUANTILE = 0.95
_MARGIN = 1.5
#: Of the first few answers the slowest may be one that stalls, so their median has to do; and they
#: are of small objects, one after the other.
_FIRST_MARGIN, _FIRST_LEAST_S = 4.0, 0.3
_FEWEST = 2
_LEAST_S, _MOST_S = 0.1, 5.0
_KEPT = 256
_ENOUGH = 16
#: Second requests per request, and how many may be saved up.
_SHARE = 0.03
_SAVED = 10.0
#: The last of them are for the silences that are unusual beyond doubt.
_RESERVED, _BEYOND_DOUBT = 3.0, 2.0


class Hedge:
    """Learns from every exchange how long a silence is unusual; belongs to one event loop.

    Attributes:
        after_s: silence after which an exchange is slow.
    """

    def __init__(self) -> None:
        self._silences: deque[float] = deque(maxlen=_KEPT)
        self._unsorted = 0
        self._budget = _SAVED / 2 + _RESERVED
        self.after_s = _MOST_S

    def learn(self, quiet_s: float) -> None:
        """An exchange has ended whose longest silence was ``quiet_s``."""
        self._budget = min(_SAVED, self._budget + _SHARE)
        self._silences.append(quiet_s)
        self._unsorted += 1
        # Sorting a few hundred numbers now and then is nothing beside a request for each.
        if self._unsorted >= _ENOUGH or len(self._silences) < _ENOUGH:
            self._unsorted = 0
            self.after_s = min(_MOST_S, _unusual_s(sorted(self._silences)))

    def may_send(self, quiet_s: float) -> bool:
        """Takes one second request out of the budget, if there is one for such a silence."""
        is_long = quiet_s >= _BEYOND_DOUBT * self.after_s
        if self._budget < (1.0 if is_long else 1.0 + _RESERVED):
            return False
        self._budget -= 1.0
        return True


def _unusual_s(silences: list[float]) -> float:
    """A silence that is long beside the ones known, which are in ascending order."""
    last = len(silences) - 1
    if len(silences) >= _ENOUGH:
        return max(_LEAST_S, _MARGIN * silences[int(_QUANTILE * last)])
    if len(silences) >= _FEWEST:
        return max(_FIRST_LEAST_S, _FIRST_MARGIN * silences[last // 2])
    return _MOST_S

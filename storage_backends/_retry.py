"""The one retry policy that stands above every network operation.

Delays follow "full jitter": uniform between nothing and a bound that doubles per attempt (Brooker,
"Exponential Backoff and Jitter", AWS Architecture Blog, 2015).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from storage_backends._deadline import Deadlines
from storage_backends.errors import StorageError, Unavailable
from storage_backends.store import Counters

_log = logging.getLogger("storage_backends")

_FIRST_DELAY_S = 0.1
_MAX_DELAY_S = 5.0
#: A server that has never answered is a wrong address rather than a short outage.
FIRST_CONTACT_S = 6.0

Result = TypeVar("Result")
Of = ParamSpec("Of")


class Fault(Exception):
    """One attempt failed.

    Args:
        error: what to raise if there is no further attempt; its cause is this fault's cause.
        transient: another attempt may succeed.
        retry_after_s: the server's wish, if it had one.
        unreached: no connection came about.
    """

    def __init__(
        self,
        error: StorageError,
        *,
        transient: bool,
        retry_after_s: float | None = None,
        unreached: bool = False,
    ) -> None:
        super().__init__(str(error))
        self.error = error
        self.transient = transient
        self.retry_after_s = retry_after_s
        self.unreached = unreached


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays between attempts, in seconds."""

    first_s: float = _FIRST_DELAY_S
    max_s: float = _MAX_DELAY_S

    def delay_s(self, attempt: int) -> float:
        """A jittered delay after the ``attempt``-th attempt, counted from 1."""
        # 2**30 is far beyond every bound, and keeps the power a small number.
        return random.uniform(0, min(self.max_s, self.first_s * 2 ** min(attempt - 1, 30)))


class RetryPolicy:
    """Repeats an operation until it succeeds, fails for good, or its time is over.

    Args:
        attempts: bound of attempts, the first included.
        timeout_s: bound of the time of all attempts and the delays between them.
        counters: gets ``storage.retries``.
        backoff: delays between attempts.
    """

    def __init__(
        self, attempts: int, timeout_s: float, counters: Counters, backoff: Backoff | None = None
    ) -> None:
        self._attempts = attempts
        self._timeout_s = timeout_s
        self._deadlines = Deadlines(timeout_s)
        self._counters = counters
        self._backoff = backoff or Backoff()
        self._reached = False

    def note_answer(self) -> None:
        """The server has answered something: it exists, so lost connections are outages."""
        self._reached = True

    async def run(
        self,
        attempt_once: Callable[Of, Awaitable[Result]],
        url: str,
        *args: Of.args,
        **kwargs: Of.kwargs,
    ) -> Result:
        """Calls ``attempt_once`` until it returns; only a transient ``Fault`` is repeated.

        ``url`` is for messages; what follows it is given to ``attempt_once``.

        Raises:
            StorageError: that of the last fault, with a note of how long it was tried; Unavailable
                if the time ended in the middle of an attempt and none had failed before.
        """
        now = asyncio.get_running_loop().time
        start = now()
        last: Fault | None = None
        attempt = 1
        try:
            with self._deadlines.begin(start):
                while True:
                    try:
                        return await attempt_once(*args, **kwargs)
                    except Fault as fault:
                        last = fault
                    delay_s = self._delay_s(last, attempt, now() - start)
                    if delay_s is None:
                        raise _final(last, attempt, now() - start) from last.__cause__
                    _log.debug("attempt %d of %s: %s; again in %.2f s", attempt, url, last, delay_s)
                    await asyncio.sleep(delay_s)
                    self._counters.add("storage.retries")
                    attempt += 1
        except TimeoutError as timeout:
            cause = timeout if last is None else last.__cause__
            raise self._out_of_time(last, url, attempt) from cause

    def _delay_s(self, fault: Fault, attempt: int, elapsed_s: float) -> float | None:
        """Time to wait before the next attempt, or None if there must be none."""
        if not fault.transient or attempt >= self._attempts:
            return None
        delay_s = max(self._backoff.delay_s(attempt), fault.retry_after_s or 0.0)
        limit_s = self._timeout_s
        if fault.unreached and not self._reached:
            limit_s = min(limit_s, FIRST_CONTACT_S)
        return delay_s if elapsed_s + delay_s < limit_s else None

    def _out_of_time(self, last: Fault | None, url: str, attempt: int) -> StorageError:
        if last is not None:
            return _final(last, attempt, self._timeout_s)
        return Unavailable(
            f"{url} was not done within {self._timeout_s:g} s; raise download_timeout or check the "
            "connection",
            url=url,
            code="Timeout",
        )


def _final(fault: Fault, attempts: int, elapsed_s: float) -> StorageError:
    if attempts > 1:
        fault.error.add_note(f"tried {attempts} times in {elapsed_s:.1f} s")
    return fault.error

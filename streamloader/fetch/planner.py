"""Plans batches in a thread of its own: arithmetic is not the event loop's work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

from streamloader.fetch.pieces import Wanted
from streamloader.order import ArrivalPlan, BatchPlan, RankPlan

#: Few enough that the thread, which is all Python, never holds up the loop for long.
_ROWS_PER_STRETCH = 4_096


class Planner:
    """One thread that plans stretches of batches."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "streamloader-plan")

    async def plans(self, plan: RankPlan | ArrivalPlan) -> AsyncIterator[tuple[BatchPlan, Wanted]]:
        """Every batch of ``plan`` in order; the next stretch is planned beside the loop's work."""
        loop = asyncio.get_running_loop()
        stretch = max(1, _ROWS_PER_STRETCH // plan.batch_size)
        begins = range(0, plan.num_batches, stretch)
        jobs = (
            loop.run_in_executor(self._thread, _plan_stretch, plan, begin, stretch)
            for begin in begins
        )
        following = next(jobs, None)
        while following is not None:
            stretch_now = await following
            following = next(jobs, None)
            for planned in stretch_now:
                yield planned

    def close(self) -> None:
        """Waits for what is being planned."""
        self._thread.shutdown(wait=True)


def _plan_stretch(
    plan: RankPlan | ArrivalPlan, begin: int, count: int
) -> list[tuple[BatchPlan, Wanted]]:
    batches = [plan.batch(n) for n in range(begin, min(begin + count, plan.num_batches))]
    return [
        (b, Wanted.of(b.piece, b.piece_first, b.piece_count, b.piece_last_batch)) for b in batches
    ]

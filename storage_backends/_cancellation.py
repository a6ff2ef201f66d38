"""Waiting that leaves nothing behind: what was begun has ended when the wait is over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


async def to_the_end(work: Awaitable[Result], hurry: Callable[[], object] | None = None) -> Result:
    """The result of ``work``, which a cancellation of the caller does not interrupt.

    A thread cannot be stopped, and memory that it writes to, or a file that it makes, must not
    outlive the call. So a cancellation waits until ``work`` has ended, and is raised then. An
    error of ``work`` in that time becomes a note of the cancellation.

    Args:
        work: what must not be cut off.
        hurry: called on cancellation, to make ``work`` end soon.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError as cancellation:
        if hurry is not None:
            hurry()
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError:
                # Already on the way out; the first cancellation is the one that is raised.
                continue
        if not task.cancelled() and (error := task.exception()) is not None:
            cancellation.add_note(f"meanwhile: {error}")
        raise


async def all_or_none(waits: list[Coroutine[Any, Any, None]]) -> None:
    """Waits for all; if one fails, the others are cancelled and awaited before it raises."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise

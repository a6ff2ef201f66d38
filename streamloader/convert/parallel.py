"""Runs one coroutine per item, a few at a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from streamloader.fetch import all_or_cancel

T = TypeVar("T")


async def for_each(
    items: Iterable[T], work: Callable[[T], Awaitable[None]], *, at_once: int
) -> None:
    """Await ``work(item)`` for each item, started in order.

    The first failure cancels what runs, waits for it, and is raised as it is.
    """
    waiting = iter(items)

    async def take() -> None:
        for item in waiting:
            await work(item)

    await all_or_cancel([take() for _ in range(at_once)])

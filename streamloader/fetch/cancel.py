"""Waiting for several coroutines so that none outlives the wait."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def all_or_cancel(waits: list[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Results of all; if one fails, the others are cancelled and awaited before it raises."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise

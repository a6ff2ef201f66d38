"""Every call of a store, and what each raises where none can succeed."""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest

from storage_backends import ObjectInfo, StorageError, Store, open_store


async def listing(store: Store) -> list[ObjectInfo]:
    return [info async for info in store.list()]


async def write(store: Store) -> None:
    async with store.open_writer("a") as writer:
        await writer.write(b"x")


READS: dict[str, Callable[[Store], Awaitable[object]]] = {
    "check": lambda store: store.check(),
    "info": lambda store: store.info("a"),
    "read": lambda store: store.read("a"),
    "read_into": lambda store: store.read_into("a", 0, bytearray(1)),
    "list": listing,
}
WRITES: dict[str, Callable[[Store], Awaitable[object]]] = {
    "put": lambda store: store.put("a", b"x"),
    "put_if_absent": lambda store: store.put_if_absent("a", b"x"),
    "open_writer": write,
    "delete": lambda store: store.delete("a"),
}
CALLS = READS | WRITES
_SECRETS = ("aws_secret_access_key", "aws_session_token")


async def failures(
    url: str, options: dict[str, Any], calls: Iterable[str] = tuple(CALLS)
) -> dict[str, StorageError]:
    """What each call raises; none may show a secret, or take more than one line."""
    found = {}
    secrets = [options[name] for name in _SECRETS if name in options]
    async with open_store(url, **options) as store:
        for call in calls:
            with pytest.raises(StorageError) as caught:
                await CALLS[call](store)
            shown = "".join(traceback.format_exception(caught.value))
            assert not [secret for secret in secrets if secret in shown]
            assert "\n" not in str(caught.value)
            found[call] = caught.value
    return found

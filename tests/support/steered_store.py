"""A store that a test holds back."""

from __future__ import annotations


class Steered:
    """A store that passes everything on, and does what a test asks before each block read."""

    # Its reads would pass the test by.
    open_files = None

    def __init__(self, store, before_read):
        self._store = store
        self._before_read = before_read

    def __getattr__(self, name):
        return getattr(self._store, name)

    async def read_into(self, key, offset, buffer, etag=None):
        await self._before_read(key, offset)
        await self._store.read_into(key, offset, buffer, etag)

"""Where a bucket is and whose requests to it are: known at once, or found out by the engine."""

from __future__ import annotations

import asyncio
import importlib
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from storage_backends.options import StorageOptions
from storage_backends.refusals import Place
from storage_backends.s3_access import S3Access
from storage_backends.s3_clock import Clock
from storage_backends.s3_direct import Direct, read_direct
from storage_backends.sigv4 import Credentials
from storage_backends.urls import S3Location

if TYPE_CHECKING:
    from storage_backends.s3_engine import S3Engine


class S3Connection:
    """Address, region and credentials of one bucket, and the engine's client.

    The *basis* of an access is the client, or what was known without one. It is another object
    once address or credentials have changed.

    Attributes:
        clock: what all requests are dated by.
    """

    def __init__(self, location: S3Location, options: StorageOptions) -> None:
        self._location = location
        self._options = options
        self._lock = asyncio.Lock()
        self._looked = False
        self.clock = Clock()
        self._direct: Direct | None = None
        self._region: str | None = None
        self._engine: S3Engine | None = None

    @property
    def endpoint(self) -> str:
        """Where requests go, for messages; known once there is a basis."""
        known = self._direct or self._engine
        return known.endpoint if known is not None else self._options.endpoint_url or "AWS"

    @property
    def identity(self) -> str:
        """Whose credentials sign them, for messages; known once there is a basis."""
        known = self._direct or self._engine
        return known.identity if known is not None else ""

    @property
    def custom_endpoint(self) -> bool:
        """Requests go to another server than AWS itself; known once there is a basis."""
        if self._direct is not None or self._options.endpoint_url is not None:
            return True
        return self._engine is not None and self._engine.custom_endpoint

    async def basis(self) -> Any:
        """What requests are made of now."""
        if not self._looked:
            self._direct = read_direct(self._location, self._options, os.environ)
            self._looked = True
        return self._direct or await self.client()

    async def client(self) -> Any:
        """The engine's client; concurrent first calls make one."""
        return await (await self._open_engine()).client()

    async def access(self, place: Place) -> S3Access:
        """Address and credentials, renewed where their end is near. Raises Fault."""
        basis = await self.basis()
        if isinstance(basis, Direct):
            return basis.access()
        return await (await self._open_engine()).access(place)

    def is_current(self, basis: Any) -> bool:
        """``basis`` has not been replaced."""
        if basis is None:
            return False
        return basis is self._direct or (
            self._engine is not None and self._engine.is_current(basis)
        )

    async def renew(self, expired: Any, used: Credentials | None = None) -> bool:
        """Reads the credentials anew after ``expired``, a basis, was refused; True if they differ.

        The engine refreshes credentials by their announced end only, and would never look again
        at a file or a variable that was rewritten.

        Args:
            expired: what the refused request was made of.
            used: what it was signed with, if that may be older than ``expired``.
        """
        if not isinstance(expired, Direct):
            return await (await self._open_engine()).renew(expired, used)
        if self._direct is not expired:
            return True
        found = read_direct(self._location, self._options, os.environ)
        if found is not None and found.credentials == expired.credentials:
            return False
        self._direct = found if found is None else self._moved(found)
        return True

    async def move(self, misled: Any, region: str) -> bool:
        """Goes on in ``region``, which an answer to ``misled``, a basis, has named."""
        self._region = region
        if not isinstance(misled, Direct):
            return await (await self._open_engine()).move(misled, region)
        if self._direct is misled:
            self._direct = self._moved(misled)
        return True

    async def close(self) -> None:
        """Closes every connection of the engine."""
        if self._engine is not None:
            await self._engine.close()

    def _moved(self, direct: Direct) -> Direct:
        return direct if self._region is None else replace(direct, region=self._region)

    async def _open_engine(self) -> S3Engine:
        if self._engine is None:
            async with self._lock:
                if self._engine is None:
                    self._engine = await self._import_engine()
        return self._engine

    async def _import_engine(self) -> S3Engine:
        """In a thread: it takes half a second, and other reads go on meanwhile."""
        with ThreadPoolExecutor(1, "storage-s3-import") as thread:
            loop = asyncio.get_running_loop()
            name = "storage_backends.s3_engine"
            module = await loop.run_in_executor(thread, importlib.import_module, name)
        engine: S3Engine = module.S3Engine(self._location, self._options, self.clock, self._region)
        return engine

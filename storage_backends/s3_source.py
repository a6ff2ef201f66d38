"""Where the objects of a bucket are for the native reader: address, signature, and their repair.

The connection knows credentials, region and endpoint; requests are signed here.
"""

from __future__ import annotations

import ssl
import time
from typing import Any
from urllib.parse import urlsplit

from storage_backends.http_dial import Origin, origin_of, tls_context
from storage_backends.http_faults import Refusal, xml_value
from storage_backends.http_head import ResponseHead
from storage_backends.refusals import EXPIRED_CODES, Place
from storage_backends.s3_connection import S3Connection
from storage_backends.sigv4 import Credentials, Signer, quote_path

#: How long credentials are taken as they are; the engine renews them minutes before their end.
_FRESH_S = 30.0
_EXPIRED = EXPIRED_CODES | {"InvalidToken"}
_MAX_PATHS = 4096


class S3Source:
    """Makes and signs requests for objects of one bucket; belongs to one event loop.

    Args:
        connection: knows address and credentials.
        verify_tls: check the server's certificate.
    """

    def __init__(self, connection: S3Connection, *, verify_tls: bool) -> None:
        self._connection = connection
        self._verify_tls = verify_tls
        self._basis: Any = None
        self._origin: Origin | None = None
        self._base_path = ""
        self._signer: Signer | None = None
        self._credentials: Credentials | None = None
        self._fresh_until = 0.0
        self._paths: dict[str, str] = {}
        self._regions_tried: set[str] = set()
        self._tls: ssl.SSLContext | None = None

    def origin(self, key: str) -> Origin:
        del key  # one server has the whole bucket
        assert self._origin is not None
        return self._origin

    def is_ready(self) -> bool:
        fresh = time.monotonic() < self._fresh_until
        return fresh and self._connection.is_current(self._basis)

    def tls(self, origin: Origin) -> ssl.SSLContext | None:
        del origin  # there is one
        return self._tls

    async def prepare(self, place: Place) -> None:
        """Takes over address and credentials, where they may have changed."""
        if self.is_ready():
            return
        access = await self._connection.access(place)
        parts = urlsplit(access.bucket_url)
        origin = origin_of(access.bucket_url)
        if origin != self._origin:
            self._origin = origin
            secured = origin.scheme == "https"
            self._tls = (
                tls_context(access.authorities, verify=self._verify_tls) if secured else None
            )
        self._paths.clear()
        self._base_path = parts.path.rstrip("/")
        self._credentials = access.credentials
        self._signer = Signer(access.credentials, access.region, origin.authority)
        self._signer.correct_clock(self._connection.clock.skew_s)
        self._basis = access.basis
        self._fresh_until = time.monotonic() + _FRESH_S

    def request(self, method: str, key: str) -> bytes:
        assert self._origin is not None
        assert self._signer is not None
        path = self._paths.get(key)
        if path is None:
            if len(self._paths) >= _MAX_PATHS:
                self._paths.clear()
            path = self._paths[key] = f"{self._base_path}/{quote_path(key)}"
        origin = self._origin
        signed = self._signer.lines(method, path)
        first = f"{method} {origin.target_prefix}{path} HTTP/1.1\r\n"
        return f"{first}{signed}{origin.proxy_lines}".encode()

    async def mend(self, refusal: Refusal) -> bool:
        """Renews expired credentials, corrects the clock, or goes to the bucket's region."""
        head, code = refusal.head, refusal.fault.error.code
        if code in _EXPIRED:
            renewed = await self._connection.renew(self._basis, self._credentials)
            if renewed:
                self._fresh_until = 0.0
            return renewed
        if code == "RequestTimeTooSkewed":
            return self._correct_clock(head)
        if head.status in (301, 307, 400):
            region = head.headers.get("x-amz-bucket-region") or xml_value("Region", refusal.text)
            return await self._move(region)
        return False

    def _correct_clock(self, head: ResponseHead) -> bool:
        """Takes over the server's time; False if it is what requests are signed with already."""
        assert self._signer is not None
        corrected = self._connection.clock.correct(head.headers.get("date"))
        if self._signer.skew_s != self._connection.clock.skew_s:
            # Another request may have corrected it before.
            self._signer.correct_clock(self._connection.clock.skew_s)
            return True
        return corrected

    async def _move(self, region: str | None) -> bool:
        """Each region is tried once: two that name each other would go on for ever."""
        if region is None or region in self._regions_tried:
            return False
        self._regions_tried.add(region)
        return await self._connection.move(self._basis, region)

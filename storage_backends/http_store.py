"""Objects below an http(s) URL, as static files of any web server; read-only."""

from __future__ import annotations

import re
import ssl
from collections.abc import AsyncIterator
from typing import NoReturn
from urllib.parse import quote, urljoin, urlsplit

from storage_backends._retry import RetryPolicy
from storage_backends.errors import AccessDenied, Misconfigured, NotFound
from storage_backends.http_dial import Origin, origin_of, tls_context
from storage_backends.http_faults import Refusal
from storage_backends.http_part import bare_etag
from storage_backends.http_reader import HttpReader
from storage_backends.options import StorageOptions
from storage_backends.refusals import Place, wrong_answer
from storage_backends.store import (
    READ_MAX_BYTES,
    Buffer,
    Counters,
    ObjectInfo,
    ObjectWriter,
    Store,
    check_offset,
    writable_bytes,
)
from storage_backends.urls import HttpLocation

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MAX_REDIRECTS = 5
_MAX_KNOWN = 4096
#: What may stand on a request line.
_PLAIN = re.compile(r"[!-~]+")


class HttpStore(Store):
    """Files that a web server gives; a server lists nothing and takes nothing."""

    def __init__(
        self, location: HttpLocation, options: StorageOptions, counters: Counters | None
    ) -> None:
        super().__init__(location.url, counters)
        self._options = options
        self._reader: HttpReader | None = None

    async def _close(self) -> None:
        if self._reader is not None:
            await self._reader.close()

    async def info(self, key: str) -> ObjectInfo:
        place = self._place(key)
        head = await self._open().head(place, key)
        if head.length is None:
            raise wrong_answer(place, "no Content-Length", head.status).error
        return ObjectInfo(key, head.length, bare_etag(head.decisive.get("etag")))

    async def read_into(
        self, key: str, offset: int, buffer: Buffer, etag: str | None = None
    ) -> None:
        place = self._place(key)
        target = writable_bytes(buffer, place.url)
        check_offset(offset, place.url)
        if len(target):
            await self._open().read_into(place, key, target, offset, bare_etag(etag))

    async def read(self, key: str, max_bytes: int = READ_MAX_BYTES) -> bytes:
        return await self._open().read(self._place(key), key, max_bytes)

    async def list(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        self._refuse("list", f"{self.url}/{prefix}")
        # Never reached: it makes this a generator, which is what the contract wants.
        yield ObjectInfo("", 0, None)  # type: ignore[unreachable]  # see above

    def open_writer(self, key: str) -> ObjectWriter:
        self._refuse("write", self._place(key).url)

    async def put(self, key: str, data: Buffer) -> None:
        del data
        self._refuse("write", self._place(key).url)

    async def put_if_absent(self, key: str, data: Buffer) -> bool:
        del data
        self._refuse("write", self._place(key).url)

    async def delete(self, key: str) -> None:
        self._refuse("delete", self._place(key).url)

    async def check(self) -> None:
        """Returns if the server answers at all: a folder of a web server often has no page."""
        self._require_open()
        place = Place(self.url, self.url, self.url, "no credentials")
        try:
            await self._open().head(place, "")
        except (NotFound, AccessDenied):
            return

    def _place(self, key: str) -> Place:
        self._require_open()
        if not key:
            raise Misconfigured(f"empty key in {self.url}", url=self.url)
        host = urlsplit(self.url).netloc
        return Place(f"{self.url}/{key}", host, host, "no credentials")

    def _open(self) -> HttpReader:
        if self._reader is None:
            options = self._options
            policy = RetryPolicy(options.download_retry, options.download_timeout, self._counters)
            source = HttpFiles(self.url, verify_tls=options.verify_tls)
            self._reader = HttpReader(source, policy, self._counters, options.max_connections)
        return self._reader

    def _refuse(self, verb: str, url: str) -> NoReturn:
        self._require_open()
        raise Misconfigured(
            f"cannot {verb} {url}: http(s):// is for reading files whose names are known; give an "
            "s3:// URL or a folder",
            url=url,
        )


class HttpFiles:
    """Where the files of a web server are; a redirection of one of them is remembered.

    Args:
        url: what all of them are below.
        verify_tls: check the server's certificate.
    """

    def __init__(self, url: str, *, verify_tls: bool) -> None:
        self._url = url
        self._origins: dict[str, Origin] = {}
        self._moved: dict[str, tuple[str, int]] = {}
        self._known: dict[tuple[str, str], tuple[Origin, bytes]] = {}
        self._verify_tls = verify_tls
        self._tls: ssl.SSLContext | None = None

    def origin(self, key: str) -> Origin:
        return self._at("GET", key)[0]

    def request(self, method: str, key: str) -> bytes:
        return self._at(method, key)[1]

    def _at(self, method: str, key: str) -> tuple[Origin, bytes]:
        """The server that has a file, and the lines that ask it for the file."""
        known = self._known.get((method, key))
        if known is None:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            url = self._url_of(key)
            origin = self._origin_of(url)
            known = self._known[method, key] = (origin, _lines(method, origin, url))
        return known

    def _origin_of(self, url: str) -> Origin:
        base = url[: url.find("/", url.find("//") + 2)]
        origin = self._origins.get(base)
        if origin is None:
            origin = self._origins[base] = origin_of(base)
        return origin

    def tls(self, origin: Origin) -> ssl.SSLContext | None:
        if origin.scheme == "https" and self._tls is None:
            self._tls = tls_context(None, verify=self._verify_tls)
        return self._tls if origin.scheme == "https" else None

    def is_ready(self) -> bool:
        return True

    async def prepare(self, place: Place) -> None:
        """There is nothing to renew."""

    async def mend(self, refusal: Refusal) -> bool:
        """Follows a redirection, but never from https to http."""
        key, head = refusal.key, refusal.head
        self._known.clear()
        if head.status == 403 and key in self._moved:
            # The place it was sent to may be valid for a while only: the server is asked anew.
            del self._moved[key]
            return True
        location = head.decisive.get("location")
        if head.status not in _REDIRECTS or not location:
            return False
        _, hops = self._moved.get(key, ("", 0))
        current = self._url_of(key)
        wanted = urljoin(current, location).partition("#")[0]
        parts = urlsplit(wanted)
        downgrade = current.startswith("https:") and parts.scheme != "https"
        if downgrade or parts.scheme not in ("http", "https") or hops >= _MAX_REDIRECTS:
            return False
        if not parts.hostname or "@" in parts.netloc or not _PLAIN.fullmatch(wanted):
            return False
        path = wanted if parts.path else f"{wanted}/"
        self._moved[key] = (path, hops + 1)
        return True

    def _url_of(self, key: str) -> str:
        moved = self._moved.get(key)
        return moved[0] if moved is not None else f"{self._url}/{quote(key, safe='/~')}"


def _lines(method: str, origin: Origin, url: str) -> bytes:
    parts = urlsplit(url)
    target = f"{parts.path}?{parts.query}" if parts.query else parts.path
    return (
        f"{method} {origin.target_prefix}{target} HTTP/1.1\r\nHost: {origin.authority}\r\n"
        f"{origin.proxy_lines}Accept-Encoding: identity\r\n"
    ).encode()

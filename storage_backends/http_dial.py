"""From a URL to a connection: names with several addresses, IPv4 and IPv6, TLS, HTTP proxies."""

from __future__ import annotations

import asyncio
import base64
import os
import socket
import ssl
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from aiohappyeyeballs import start_connection

from storage_backends.errors import Misconfigured
from storage_backends.http_connection import Broken, Connection

_CONNECT_TIMEOUT_S = 3.0
#: The next address is tried beside one that does not answer for so long (RFC 8305, 8).
_NEXT_ADDRESS_S = 0.25
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy; ``authorization`` is the header line that it wants, or empty."""

    host: str
    port: int
    authorization: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Origin:
    """A server, and how to get to it.

    Attributes:
        scheme: ``http`` or ``https``.
        host: name or address, without brackets.
        port: TCP port.
        proxy: asked instead of the server, or for a tunnel to it.
    """

    scheme: str
    host: str
    port: int
    proxy: Proxy | None = None

    @property
    def authority(self) -> str:
        """For the Host header: without the port where it is the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def target_prefix(self) -> str:
        """What comes before the path on a request line."""
        return f"http://{self.authority}" if self.proxy and self.scheme == "http" else ""

    @property
    def proxy_lines(self) -> str:
        """Header lines of a request that a proxy forwards."""
        return self.proxy.authorization if self.proxy and self.scheme == "http" else ""


def origin_of(url: str) -> Origin:
    """The origin of an http(s) URL, with the proxy that the environment names for it.

    Read are ``HTTP_PROXY``, ``HTTPS_PROXY``, ``ALL_PROXY`` and ``NO_PROXY``, also in lower case.

    Raises:
        Misconfigured: the proxy is of another kind than HTTP.
    """
    parts = urlsplit(url)
    host = (parts.hostname or "").encode("idna").decode() if parts.hostname else ""
    port = parts.port or _PORTS[parts.scheme]
    return Origin(parts.scheme, host, port, _proxy_for(parts.scheme, host, port))


def _proxy_for(scheme: str, host: str, port: int) -> Proxy | None:
    found: dict[str, str] = urllib.request.getproxies_environment()
    url = found.get(scheme) or found.get("all")
    if not url or _bypasses(f"{host}:{port}", found):
        return None
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme != "http" or not parts.hostname:
        # Not the URL itself: it may hold a password.
        raise Misconfigured(
            f"the proxy for {scheme}:// in the environment is not http://host:port; correct "
            f"{scheme.upper()}_PROXY, or name {host} in NO_PROXY",
            url=f"{scheme}://{host}",
        )
    line = ""
    if parts.username is not None:
        plain = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        line = f"Proxy-Authorization: Basic {base64.b64encode(plain.encode()).decode()}\r\n"
    return Proxy(parts.hostname, parts.port or _PORTS["http"], line)


def _bypasses(authority: str, proxies: dict[str, str]) -> bool:
    """``NO_PROXY`` names the host. The library's function is not in the type stubs."""
    return bool(urllib.request.proxy_bypass_environment(authority, proxies))  # type: ignore[attr-defined]  # see above


def tls_context(authorities: str | None, *, verify: bool) -> ssl.SSLContext:
    """How certificates are checked.

    Args:
        authorities: file or folder of trusted authorities; those of the system if None.
        verify: False accepts any certificate.
    """
    if authorities is None:
        context = ssl.create_default_context()
    elif os.path.isdir(authorities):
        context = ssl.create_default_context(capath=authorities)
    else:
        context = ssl.create_default_context(cafile=authorities)
    # A server that wants to negotiate again in the midst of a body is no server of objects.
    context.options |= ssl.OP_NO_RENEGOTIATION
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


async def dial(origin: Origin, tls: ssl.SSLContext | None) -> Connection:
    """A fresh connection.

    Args:
        origin: where to.
        tls: for https.

    Raises:
        OSError, TimeoutError: nothing can be reached; ``ssl.SSLError`` among them.
        Broken: the proxy refused.
    """
    proxy = origin.proxy
    host, port = (proxy.host, proxy.port) if proxy else (origin.host, origin.port)
    async with asyncio.timeout(_CONNECT_TIMEOUT_S):
        connected = await _connect(host, port)
        if origin.scheme == "https":
            assert tls is not None
            if proxy is not None:
                connected = await _tunnel(origin, proxy, connected)
            connected = await _secure(connected, tls, origin.host)
    return Connection(asyncio.get_running_loop(), connected)


async def _connect(host: str, port: int) -> socket.socket:
    """The first of the addresses that answers. Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    connected = await start_connection(found, happy_eyeballs_delay=_NEXT_ADDRESS_S, loop=loop)
    # A request is one small write that nothing follows.
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # Lets the system notice a peer that has vanished while the connection is idle.
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return connected


async def _tunnel(origin: Origin, proxy: Proxy, connected: socket.socket) -> socket.socket:
    """Asks the proxy for a connection to the server. Raises Broken."""
    host = f"[{origin.host}]" if ":" in origin.host else origin.host
    request = (
        f"CONNECT {host}:{origin.port} HTTP/1.1\r\nHost: {host}:{origin.port}\r\n"
        f"{proxy.authorization}\r\n"
    )
    connection = Connection(asyncio.get_running_loop(), connected)
    try:
        # The answer to CONNECT has no body, whatever its headers say (RFC 9110, 9.3.6).
        connection.send(request.encode(), None)
        await connection.wait()
        if connection.failure is not None:
            raise connection.failure
        assert connection.head is not None
        status = connection.head.status
        if not 200 <= status < 300 or not connection.usable:
            raise Broken("ProxyRefused", f"the proxy {proxy.host}:{proxy.port} answered {status}")
    except BaseException:
        connection.abort()
        raise
    return connection.release()


async def _secure(connected: socket.socket, tls: ssl.SSLContext, server_name: str) -> socket.socket:
    """Makes the connection one over TLS. Raises OSError, ``ssl.SSLError`` among them."""
    loop = asyncio.get_running_loop()
    secured: socket.socket = connected
    try:
        # From here on ``connected`` is an empty shell: closing it would close nothing.
        secured = wrapped = tls.wrap_socket(
            connected, server_hostname=server_name, do_handshake_on_connect=False
        )
        while True:
            try:
                wrapped.do_handshake()
            except ssl.SSLWantReadError:
                await _await_ready(wrapped.fileno(), loop.add_reader, loop.remove_reader)
            except ssl.SSLWantWriteError:
                await _await_ready(wrapped.fileno(), loop.add_writer, loop.remove_writer)
            else:
                return wrapped
    except BaseException:
        secured.close()
        raise


async def _await_ready(
    fileno: int,
    add: Callable[..., object],
    remove: Callable[[int], object],
) -> None:
    """Waits until the socket can be received from, or sent to."""
    ready = asyncio.Event()
    add(fileno, ready.set)
    try:
        await ready.wait()
    finally:
        remove(fileno)

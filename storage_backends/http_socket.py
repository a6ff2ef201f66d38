"""A connected socket, plain or over TLS, as the event loop sees it.

asyncio's own TLS receives into a buffer, copies that into one of OpenSSL and copies again what it
has decrypted. Here OpenSSL receives from the socket itself and writes into the caller's memory,
and a plain socket does the same with a call less for each event.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import ssl
import termios
from array import array
from collections.abc import Callable

#: There is nothing to receive, or no room to send, just now.
_NOT_NOW = (BlockingIOError, InterruptedError, ssl.SSLWantReadError)


class LoopSocket:
    """Calls back when there is something to receive; belongs to one event loop.

    Args:
        loop: a loop with ``add_reader``.
        connected: non-blocking; over TLS after its handshake. Closed by ``close``.
        on_readable: called by the loop; there may be something to receive, or the end of it.
        on_failed: called by the loop when what was left to send could not be sent.

    Attributes:
        is_tls: what comes is taken record by record, of 16 KiB at most.
    """

    __slots__ = (
        "_fileno",
        "_loop",
        "_on_failed",
        "_on_readable",
        "_receive",
        "_socket",
        "_unread",
        "_unsent",
        "is_tls",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        connected: socket.socket,
        on_readable: Callable[[], None],
        on_failed: Callable[[OSError], None],
    ) -> None:
        self._loop = loop
        self._socket = connected
        self._fileno = connected.fileno()
        self._on_readable = on_readable
        self._on_failed = on_failed
        self._receive = connected.recv_into
        self._unsent = b""
        self._unread = array("i", [0])
        self.is_tls = isinstance(connected, ssl.SSLSocket)
        loop.add_reader(self._fileno, on_readable)

    def receive_into(self, memory: memoryview) -> int | None:
        """Bytes received; 0 at the end of the stream, None if there is nothing now.

        Raises:
            OSError: the connection is lost.
        """
        try:
            return self._receive(memory)
        except _NOT_NOW:
            return None
        except ssl.SSLWantWriteError:
            # A change of keys has to be answered first, and there is no room for the answer.
            self._loop.add_writer(self._fileno, self._go_on)
            return None

    def send(self, data: bytes) -> None:
        """Sends what there is room for at once, and the rest by and by. Raises OSError."""
        try:
            sent = self._socket.send(data)
        except (BlockingIOError, InterruptedError, ssl.SSLWantWriteError):
            sent = 0
        if sent < len(data):
            self._unsent = data[sent:]
            self._loop.add_writer(self._fileno, self._go_on)

    def has_unread(self) -> bool:
        """Bytes have come that were not received; over TLS they need not be content."""
        if self.is_tls and self._socket.pending():  # type: ignore[attr-defined]  # it is TLS
            return True
        fcntl.ioctl(self._fileno, termios.FIONREAD, self._unread)
        return self._unread[0] > 0

    def has_decrypted(self) -> bool:
        """Content waits that the loop will not call for, since it has left the socket."""
        return self.is_tls and self._socket.pending() > 0  # type: ignore[attr-defined]  # it is TLS

    def release(self) -> socket.socket:
        """The socket, which the loop does not look at any more."""
        self._loop.remove_reader(self._fileno)
        self._loop.remove_writer(self._fileno)
        return self._socket

    def close(self) -> None:
        """Closes the socket; when this returns, no memory is written any more."""
        self.release().close()

    def _go_on(self) -> None:
        """There is room to send again."""
        self._loop.remove_writer(self._fileno)
        rest, self._unsent = self._unsent, b""
        if rest:
            try:
                self.send(rest)
            except OSError as error:
                self._on_failed(error)
                return
        self._on_readable()

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
#: What is received before other connections have their turn.
_TURN_BYTES = 2**20


class LoopSocket:
    """Calls back when there is something to receive; belongs to one event loop.

    Args:
        loop: a loop with ``add_reader``.
        connected: non-blocking; over TLS after its handshake. Closed by ``close``.
        on_readable: called by the loop; there may be something to receive, or the end of it.
        on_failed: called by the loop when what was left to send could not be sent.

    Attributes:
        is_tls: less than was asked for does not mean that there is nothing more.
    """

    __slots__ = (
        "_ended",
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
        self._ended = False
        self._unread = array("i", [0])
        self.is_tls = isinstance(connected, ssl.SSLSocket)
        loop.add_reader(self._fileno, on_readable)

    def receive_into(self, memory: memoryview) -> int | None:
        """Bytes received; 0 at the end of the stream, None if there is nothing now.

        Raises:
            OSError: the connection is lost.
        """
        if self.is_tls:
            return self._receive_records(memory)
        try:
            return self._receive(memory)
        except _NOT_NOW:
            return None

    def _receive_records(self, memory: memoryview) -> int | None:
        """One record after the other: they are 16 KiB at most, and OpenSSL gives one at a time."""
        receive = self._receive
        done, wanted = 0, min(len(memory), _TURN_BYTES)
        try:
            while done < wanted:
                nbytes = receive(memory[done:])
                if not nbytes:
                    self._ended = True
                    break
                done += nbytes
        except _NOT_NOW:
            return done or None
        except ssl.SSLWantWriteError:
            # A change of keys has to be answered first, and there is no room for the answer.
            self._loop.add_writer(self._fileno, self._go_on)
            return done or None
        except OSError:
            # What came before it counts, and the error comes again.
            if not done:
                raise
            self._ended = True
        return done

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

    def has_more(self) -> bool:
        """Content, or the end, waits that the loop need not call for: it has left the socket."""
        if not self.is_tls:
            return False
        return self._ended or self._socket.pending() > 0  # type: ignore[attr-defined]  # it is TLS

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

"""One HTTP/1.1 connection whose bodies are received straight into the caller's memory.

There is no memory per request and no copy, except of the few bytes that are received together
with a head.
"""

from __future__ import annotations

import asyncio
import enum
import socket
import time
from collections.abc import Callable

from storage_backends.http_head import BadHead, ResponseHead, dechunk, parse_head
from storage_backends.http_socket import LoopSocket

#: Largest head that is read. Servers send about 1 KiB.
HEAD_BYTES = 32 * 2**10
#: What is received first: most heads, and little of the body, which has to be copied from there.
_FIRST_BYTES = 2**10
#: Most of a refusal's body that is read.
_TEXT_BYTES = 64 * 2**10
_MAX_INTERIM = 8
_END = b"\r\n\r\n"
_NOTHING = memoryview(b"")
#: Not the loop's: that of uvloop stands still while callbacks run.
_now = time.monotonic

#: Looks at a head, and gives the memory that its body must fill exactly, or None for an answer
#: whose body is read as text. Raises what the exchange shall raise.
Accept = Callable[[ResponseHead], "memoryview | None"]


class Broken(Exception):
    """An exchange ended without an answer.

    Args:
        code: for error messages, such as ``ConnectionReset`` or ``ReadTimeout``.
        answered: a byte of the answer had arrived.
    """

    def __init__(self, code: str, why: str = "", *, answered: bool = False) -> None:
        super().__init__(why or code)
        self.code = code
        self.answered = answered


class Progress(enum.Enum):
    """How an exchange stands when a wait for it returns."""

    ENDED = enum.auto()
    SLOW = enum.auto()


class _State(enum.Enum):
    IDLE = enum.auto()
    HEAD = enum.auto()
    BODY = enum.auto()
    TEXT = enum.auto()
    CLOSED = enum.auto()


#: Looking up a member costs ten times a global name, and there are dozens for each request.
_IDLE, _HEAD, _BODY, _TEXT, _CLOSED = _State
_ENDED, _SLOW = Progress


class Connection:
    """One exchange at a time: ``send``, then ``wait`` until it has ended.

    Args:
        loop: the event loop that it belongs to.
        connected: non-blocking; the connection's own from now on.

    Attributes:
        head: of the last answer.
        text: body of the last answer that was not accepted, at most 64 KiB.
        received: bytes of the body that lie in the accepted memory.
        began: when the request left, by the monotonic clock.
        touched: when the last byte came, or the request left, by the same.
        quiet_s: longest time without a byte in this exchange.
        reused: the connection has carried an answer before.
        failure: why there is no complete answer: Broken, or what ``accept`` raised.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, connected: socket.socket) -> None:
        self._loop = loop
        self._socket = LoopSocket(loop, connected, self._on_readable, self._lose)
        self._receive_into = self._socket.receive_into
        self._state = _IDLE
        self._bytes = bytearray(HEAD_BYTES)
        self._view = memoryview(self._bytes)
        self._first = self._view[:_FIRST_BYTES]
        self._filled = 0
        self._interim = 0
        self._accept: Accept | None = None
        self._body = _NOTHING
        self._body_bytes = 0
        self._settled: asyncio.Future[Progress] | None = None
        self.failure: BaseException | None = None
        self.head: ResponseHead | None = None
        self.text = b""
        self.received = 0
        self.began = self.touched = _now()
        self.quiet_s = 0.0
        self.reused = False

    @property
    def usable(self) -> bool:
        """A further exchange may begin."""
        return self._state is _IDLE

    @property
    def running(self) -> bool:
        """An exchange has begun and not ended."""
        return self._state is not _IDLE and self._state is not _CLOSED

    def send(self, request: bytes, accept: Accept | None) -> None:
        """Begins an exchange.

        Args:
            request: the whole request.
            accept: called once, with the head of the final answer; None if answers have no body,
                as those to HEAD and CONNECT.
        """
        assert self._state is _IDLE
        self._state = _HEAD
        self._accept = accept
        self._filled = self._interim = self.received = 0
        self.failure, self.head, self.text = None, None, b""
        self.began = self.touched = _now()
        self.quiet_s = 0.0
        try:
            self._socket.send(request)
        except OSError as error:
            self._lose(error)

    def wait(self) -> asyncio.Future[Progress]:
        """Done when the exchange has ended, see ``failure``, or has been called slow."""
        settled: asyncio.Future[Progress] = self._loop.create_future()
        if self.running:
            self._settled = settled
        else:
            settled.set_result(_ENDED)
        return settled

    def call_slow(self) -> None:
        """Lets a wait return although the exchange goes on."""
        self._settle(_SLOW)

    def fail(self, failure: BaseException) -> None:
        """Ends the exchange with ``failure``, and the connection with it."""
        if self._state is _CLOSED:
            return
        if self.running:
            self.failure = failure
        self._end(_CLOSED)
        self._socket.close()

    def abort(self) -> None:
        """Closes the connection at once; when this returns, no memory is written any more."""
        self.fail(Broken("Aborted", answered=True))

    def release(self) -> socket.socket:
        """The socket, for something else; the connection is over."""
        self._end(_CLOSED)
        return self._socket.release()

    def is_clean(self) -> bool:
        """Nothing has come that nobody asked for: it could pass for the answer to what follows."""
        if self._state is _IDLE and self._socket.has_unread():
            # Over TLS it may be no content, but a ticket or a key; content ends the connection.
            self._on_readable()
        return self._state is _IDLE

    def _on_readable(self) -> None:
        """Receives until the exchange has ended, nothing is left, or others have their turn."""
        try:
            while self._state is not _CLOSED:
                in_body = self._state is _BODY
                memory = self._body[self.received :] if in_body else self._free()
                nbytes = self._receive_into(memory)
                if not nbytes:
                    if nbytes == 0:
                        self._end_of_stream()
                    return
                self._take(nbytes)
                if self._state is _IDLE:
                    return
                # A head is received apart: the body that comes with it is there already.
                all_taken = in_body or nbytes < len(memory)
                if all_taken and not self._socket.has_more():
                    return
        except OSError as error:
            self._lose(error)

    def _free(self) -> memoryview:
        """Memory for what is no body; never empty, which would look like the end."""
        if self._filled == 0:
            return self._first
        return self._view[self._filled :] if self._filled < HEAD_BYTES else self._view

    def _take(self, nbytes: int) -> None:
        now = _now()
        quiet_s = now - self.touched
        if quiet_s > self.quiet_s:
            self.quiet_s = quiet_s
        self.touched = now
        state = self._state
        if state is _BODY:
            self.received += nbytes
            if self.received == self._body_bytes:
                self._finish()
        elif state is _HEAD:
            start = max(0, self._filled - 3)
            self._filled += nbytes
            self._look_for_head(start)
        elif state is _TEXT:
            self.text += bytes(self._view[:nbytes])
            self._look_for_text_end()
        else:
            # Nobody asked: what follows on this connection could pass for another answer.
            self.abort()

    def _end_of_stream(self) -> None:
        if self._state is _TEXT and self.head is not None:
            framed = self.head.chunked or self.head.length is not None
            if not framed:
                self._finish_text(keep=False)
                return
        self._lose(None)

    def _lose(self, error: OSError | None) -> None:
        """The peer, or the way to it, has ended the connection."""
        answered = self._state is not _HEAD or self._filled > 0
        code = "IncompleteBody" if self._state is _BODY else "ConnectionLost"
        broken = Broken(code, str(error or "end of file"), answered=answered)
        broken.__cause__ = error
        self.fail(broken)

    def _look_for_head(self, start: int) -> None:
        while self._state is _HEAD:
            end = self._bytes.find(_END, start, self._filled)
            if end < 0:
                if self._filled == HEAD_BYTES:
                    self._wrong(f"a head of more than {HEAD_BYTES // 2**10} KiB")
                return
            try:
                head = parse_head(bytes(self._view[:end]))
            except BadHead as error:
                self._wrong(str(error))
                return
            if head.status < 200 and head.status != 101:
                self._skip_interim(end + len(_END))
                start = 0
                continue
            self._begin_body(head, end + len(_END))

    def _skip_interim(self, end: int) -> None:
        self._interim += 1
        if self._interim > _MAX_INTERIM:
            self._wrong(f"more than {_MAX_INTERIM} interim answers")
            return
        rest = self._filled - end
        self._bytes[:rest] = self._bytes[end : self._filled]
        self._filled = rest

    def _begin_body(self, head: ResponseHead, at: int) -> None:
        self.head = head
        rest = self._view[at : self._filled]
        if self._accept is None:
            self._finish(surplus=len(rest) > 0)
            return
        try:
            target = self._accept(head)
        except Exception as refusal:  # noqa: BLE001 - handed over to the waiter of the exchange
            self.fail(refusal)
            return
        if target is None:
            self._state = _TEXT
            self.text = bytes(rest)
            self._filled = 0
            self._look_for_text_end()
        elif head.length != len(target):
            self._wrong("a body of unknown length" if head.length is None else "another length")
        else:
            self._filled = 0
            self._state, self._body, self._body_bytes = _BODY, target, head.length
            if len(rest):
                self.received = min(len(rest), head.length)
                target[: self.received] = rest[: self.received]
            if self.received == head.length:
                self._finish(surplus=len(rest) > head.length)

    def _look_for_text_end(self) -> None:
        assert self.head is not None
        if len(self.text) > _TEXT_BYTES:
            self.text = self.text[:_TEXT_BYTES]
            self._finish_text(keep=False)
        elif self.head.chunked:
            try:
                content = dechunk(self.text)
            except BadHead as error:
                self._wrong(str(error))
                return
            if content is not None:
                self.text = content
                self._finish_text(keep=True)
        elif self.head.length is not None and len(self.text) >= self.head.length:
            surplus = len(self.text) > self.head.length
            self.text = self.text[: self.head.length]
            self._finish_text(keep=not surplus)

    def _finish_text(self, *, keep: bool) -> None:
        self._finish(surplus=not keep)

    def _finish(self, *, surplus: bool = False) -> None:
        assert self.head is not None
        self.reused = True
        if self.head.keeps_alive and not surplus:
            self._end(_IDLE)
        else:
            self._end(_CLOSED)
            self._socket.close()

    def _wrong(self, what: str) -> None:
        self.fail(Broken("WrongAnswer", what, answered=True))

    def _end(self, state: _State) -> None:
        """Lets go of the caller's memory, and of the waiter."""
        self._state = state
        self._body = _NOTHING
        self._accept = None
        self._settle(_ENDED)

    def _settle(self, progress: Progress) -> None:
        settled, self._settled = self._settled, None
        if settled is not None and not settled.done():
            settled.set_result(progress)

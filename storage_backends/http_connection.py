"""One HTTP/1.1 connection whose bodies are received straight into the caller's memory.

The transport asks the protocol for a buffer and receives into it: there is no memory per request
and no copy, except of the first bytes that arrive together with a head.
"""

from __future__ import annotations

import asyncio
import enum
import time
from collections.abc import Callable
from typing import cast

from storage_backends.http_head import BadHead, ResponseHead, dechunk, parse_head

#: Largest head that is read. Servers send about 1 KiB.
HEAD_BYTES = 32 * 2**10
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


class Connection(asyncio.BufferedProtocol):
    """One exchange at a time: ``send``, then ``wait`` until it has ended.

    Attributes:
        head: of the last answer.
        text: body of the last answer that was not accepted, at most 64 KiB.
        received: bytes of the body that lie in the accepted memory.
        began: when the request left, by the monotonic clock.
        touched: when the last byte came, or the request left, by the same.
        quiet_s: longest time without a byte in this exchange.
        fileno: descriptor of the socket.
        reused: the connection has carried an answer before.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._state = _State.IDLE
        self._bytes = bytearray(HEAD_BYTES)
        self._view = memoryview(self._bytes)
        self._filled = 0
        self._interim = 0
        self._accept: Accept | None = None
        self._body = _NOTHING
        self._body_bytes = 0
        self._settled: asyncio.Future[Progress] | None = None
        self._failure: BaseException | None = None
        self._lost = loop.create_future()
        self.head: ResponseHead | None = None
        self.text = b""
        self.received = 0
        self.began = self.touched = _now()
        self.quiet_s = 0.0
        self.reused = False
        self.fileno = -1

    @property
    def usable(self) -> bool:
        """A further exchange may begin."""
        return self._state is _State.IDLE and self._transport is not None

    @property
    def running(self) -> bool:
        """An exchange has begun and not ended."""
        return self._state in (_State.HEAD, _State.BODY, _State.TEXT)

    def send(self, request: bytes, accept: Accept | None) -> None:
        """Begins an exchange.

        Args:
            request: the whole request.
            accept: called once, with the head of the final answer; None if answers have no body,
                as those to HEAD and CONNECT.
        """
        transport = self._transport
        assert self._state is _State.IDLE
        assert transport is not None
        self._state = _State.HEAD
        self._accept = accept
        self._filled = self._interim = self.received = 0
        self._failure, self.head, self.text = None, None, b""
        self.began = self.touched = _now()
        self.quiet_s = 0.0
        transport.write(request)

    async def wait(self) -> Progress:
        """Returns when the exchange has ended, or has been called slow.

        Raises:
            Broken: there is no complete answer.
            Exception: what ``accept`` raised.
        """
        if self.running:
            self._settled = self._loop.create_future()
            try:
                progress = await self._settled
            finally:
                self._settled = None
            if progress is Progress.SLOW and self.running:
                return progress
        if self._failure is not None:
            raise self._failure
        return Progress.ENDED

    def call_slow(self) -> None:
        """Lets a wait return although the exchange goes on."""
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(Progress.SLOW)

    def fail(self, failure: BaseException) -> None:
        """Ends the exchange with ``failure``, and the connection with it."""
        if self.running:
            self._failure = failure
        self._end(_State.CLOSED)
        if self._transport is not None:
            self._transport.abort()

    def abort(self) -> None:
        """Closes the connection at once; when this returns, no memory is written any more."""
        self.fail(Broken("Aborted", answered=True))

    async def closed(self) -> None:
        """Waits until the transport is gone."""
        if self._transport is not None:
            await asyncio.shield(self._lost)

    def replace_transport(self, transport: asyncio.Transport) -> None:
        """Goes on over ``transport``, as after a TLS handshake through a proxy."""
        self._transport = transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Those of uvloop are no subclass of it.
        self._transport = cast(asyncio.Transport, transport)
        self.fileno = transport.get_extra_info("socket").fileno()

    def connection_lost(self, error: Exception | None) -> None:
        if self.running:
            answered = self._state is not _State.HEAD or self._filled > 0
            code = "IncompleteBody" if self._state is _State.BODY else "ConnectionLost"
            self._failure = Broken(code, str(error or "end of file"), answered=answered)
            self._failure.__cause__ = error
        self._end(_State.CLOSED)
        if not self._lost.done():
            self._lost.set_result(None)

    def eof_received(self) -> bool:
        if self._state is _State.TEXT and self.head is not None:
            framed = self.head.chunked or self.head.length is not None
            if not framed:
                self._finish_text(keep=False)
        return False

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint  # the loop has no better idea of the size than the head has
        if self._state is _State.BODY:
            return self._body[self.received :]
        # Never empty, which the loop takes for an error: bytes that nobody asked for, and
        # those of a head that is too long, are seen in buffer_updated.
        return self._view[self._filled :] if self._filled < HEAD_BYTES else self._view

    def buffer_updated(self, nbytes: int) -> None:
        now = _now()
        quiet_s = now - self.touched
        if quiet_s > self.quiet_s:
            self.quiet_s = quiet_s
        self.touched = now
        state = self._state
        if state is _State.BODY:
            self.received += nbytes
            if self.received == self._body_bytes:
                self._finish()
        elif state is _State.HEAD:
            start = max(0, self._filled - 3)
            self._filled += nbytes
            self._look_for_head(start)
        elif state is _State.TEXT:
            self.text += bytes(self._view[:nbytes])
            self._look_for_text_end()
        else:
            # Nobody asked: what follows on this connection could pass for another answer.
            self.abort()

    def _look_for_head(self, start: int) -> None:
        while self._state is _State.HEAD:
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
            self._state = _State.TEXT
            self.text = bytes(rest)
            self._filled = 0
            self._look_for_text_end()
        elif head.length != len(target):
            self._wrong("a body of unknown length" if head.length is None else "another length")
        else:
            self._filled = 0
            self._state, self._body, self._body_bytes = _State.BODY, target, head.length
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
        keep = self.head.keeps_alive and not surplus
        self._end(_State.IDLE if keep else _State.CLOSED)
        if not keep:
            self.abort()

    def _wrong(self, what: str) -> None:
        self.fail(Broken("WrongAnswer", what, answered=True))

    def _end(self, state: _State) -> None:
        """Lets go of the caller's memory, and of the waiter."""
        self._state = state
        self._body = _NOTHING
        self._accept = None
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(Progress.ENDED)

"""The life of one feed process, as the trainer's process sees it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable

from streamloader._feed_channel import Channel, Open
from streamloader._feed_delivery import started

_EXIT_TIMEOUT_S = 10.0
_LAST_LINES = 12


class FeedProcess:
    """Starts a feed process, reads what it says in a thread, and tells when it is gone.

    It is a new Python with the import path of this one, never a fork: threads, locks and CUDA
    contexts do not survive a fork.

    Args:
        opening: the first message to it.
        on_message: gets every message and the descriptor that came with it, which it then owns.
        on_death: told, after the last message, how the process ended.
        on_error: told what ``on_message`` raised; nothing is read after that.
    """

    def __init__(
        self,
        opening: Open,
        on_message: Callable[[object, int | None], None],
        on_death: Callable[[str], None],
        on_error: Callable[[BaseException], None],
    ) -> None:
        self._on_message = on_message
        self._on_death = on_death
        self._on_error = on_error
        self._last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        ours, theirs = socket.socketpair()
        self._channel = Channel(ours)
        path = [entry or os.getcwd() for entry in sys.path]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "streamloader._feed_child", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        )
        theirs.close()
        self._channel.send(opening)
        self._listener = started(self._listen, f"stderr-{self._process.pid}")
        self._reader = started(self._read, f"reader-{self._process.pid}")

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: object) -> None:
        """Sends a message; one to a process that is gone is lost, and ``on_death`` tells."""
        self._channel.send(message)

    def close(self) -> None:
        """Ends the process and waits for it. Idempotent."""
        self._channel.shut_down()
        self._wait()
        for thread in (self._reader, self._listener):
            if thread is not threading.current_thread():
                thread.join()
        self._channel.close()

    def _wait(self) -> int:
        try:
            return self._process.wait(_EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _read(self) -> None:
        try:
            while (received := self._channel.receive()) is not None:
                self._on_message(*received)
        except BaseException as error:  # noqa: BLE001 - handed to the consumer, who raises it
            self._on_error(error)
            return
        code = self._wait()
        self._listener.join()
        ended = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        self._on_death("; ".join([ended, *self._last_lines]))

    def _listen(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                self._last_lines.append(line.rstrip())
                sys.stderr.write(line)

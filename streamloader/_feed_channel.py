"""Messages between the trainer and its feed process, over a socket that only the two have.

A message is one of the classes below, pickled: both ends are this package, started by the same
user, and nothing that comes from storage is ever unpickled. File descriptors travel beside it.
"""

from __future__ import annotations

import array
import pickle
import socket
import struct
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamloader._carried import Carried
from streamloader._choice import Choice
from streamloader._feed_errors import SentError
from streamloader._fields import BatchFields
from streamloader._settings import Settings
from streamloader._world import World
from streamloader.decode import PixelFormat
from streamloader.fetch import MemoryPlan
from streamloader.order import BatchRows, LoaderState
from streamloader.topology import Seats
from streamloader.transfer import SlotLayout

_HEADER = struct.Struct("<QB")
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Open:
    """To the feed, first and once: what to read and how.

    Attributes:
        gpu: of the trainer; None if batches are for the CPU.
        engines: that GPU's engines decode pictures.
    """

    settings: Settings
    world: World
    slot_pixels: PixelFormat
    gpu: int | None
    engines: bool
    seats: Seats
    log_levels: dict[str, int]


@dataclass(frozen=True, slots=True)
class FeedFacts:
    """What the trainer's process knows of the data set and of the feed's resources."""

    url: str
    fingerprint: str
    classes: tuple[str, ...]
    fields: BatchFields
    layout: SlotLayout
    choice: Choice
    memory: MemoryPlan


@dataclass(frozen=True, slots=True)
class Opened:
    """To the trainer: the data set is open."""

    facts: FeedFacts


@dataclass(frozen=True, slots=True)
class Failed:
    """To the trainer: the data set could not be opened."""

    error: SentError


@dataclass(frozen=True, slots=True)
class Start:
    """To the feed: begin a run; its messages name it by ``run``.

    Attributes:
        cursor: counts what came, whether the consumer has it or not.
        gpu_share: of the pictures that engines decode.
    """

    run: int
    cursor: LoaderState
    rank: int
    world_size: int
    gpu_share: float | None


@dataclass(frozen=True, slots=True)
class Stop:
    """To the feed: end a run; what is under way of it comes back unread."""

    run: int


@dataclass(frozen=True, slots=True)
class NewSlot:
    """To the trainer, with its descriptor: memory of a slot, which later messages number."""

    slot: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Batch:
    """To the trainer: a batch is in a slot."""

    run: int
    slot: int
    plan: BatchRows
    samples: npt.NDArray[np.int64]
    variable: dict[str, Any]
    faults: dict[int, str]
    carried: Carried | None
    mapped: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Planned:
    """To the trainer: another run may begin beside this one."""

    run: int


@dataclass(frozen=True, slots=True)
class RunFailed:
    """To the trainer: a run ended by an error."""

    run: int
    error: SentError


@dataclass(frozen=True, slots=True)
class Leased:
    """To the feed: the training loop has the batch in a slot."""

    slot: int


@dataclass(frozen=True, slots=True)
class Returned:
    """To the feed: a slot may be filled again."""

    slot: int


@dataclass(frozen=True, slots=True)
class Waits:
    """To the feed: the training loop waits for a batch of a run."""

    run: int


@dataclass(frozen=True, slots=True)
class Ask:
    """To the feed: ``stats``, or what ``run`` waits for. ``Answer`` has the same number."""

    number: int
    run: int | None = None


@dataclass(frozen=True, slots=True)
class NameSample:
    """To the feed: the error for a sample that is bad for ``reason``, as a ``SentError``."""

    number: int
    sample: int
    reason: str


@dataclass(frozen=True, slots=True)
class Answer:
    """To the trainer."""

    number: int
    value: Any


@dataclass(frozen=True, slots=True)
class Log:
    """To the trainer: a record of one of the package's loggers."""

    logger: str
    level: int
    message: str


class Channel:
    """One end of the socket. Any thread may send; one thread receives.

    Args:
        end: a connected stream socket of the Unix domain; owned from now on.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._sending = threading.Lock()

    def send(self, message: object, descriptor: int | None = None) -> bool:
        """Sends a message, and a descriptor beside it; False if the other end is gone."""
        body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        header = _HEADER.pack(len(body), descriptor is not None)
        try:
            with self._sending:
                if descriptor is None:
                    self._socket.sendall(header)
                else:
                    # A header is far below what a socket buffers, so it goes out in one piece.
                    self._socket.sendmsg([header], [_rights(descriptor)])
                self._socket.sendall(body)
        except OSError:
            return False
        return True

    def receive(self) -> tuple[Any, int | None] | None:
        """The next message and the descriptor beside it; None when the other end is gone."""
        descriptors = array.array("i")
        header = bytearray()
        while len(header) < _HEADER.size:
            part, found = self._receive(_HEADER.size - len(header))
            if not part:
                return None
            header += part
            descriptors.extend(found)
        nbytes, _ = _HEADER.unpack(header)
        body = bytearray()
        while len(body) < nbytes:
            part, _ = self._receive(min(_PIECE_BYTES, nbytes - len(body)))
            if not part:
                return None
            body += part
        return pickle.loads(body), (descriptors[0] if descriptors else None)

    def _receive(self, nbytes: int) -> tuple[bytes, array.array[int]]:
        found = array.array("i")
        try:
            part, ancillary, _, _ = self._socket.recvmsg(nbytes, socket.CMSG_SPACE(found.itemsize))
        except OSError:  # a process that died with unread messages resets the connection
            return b"", found
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                found.frombytes(data[: len(data) - len(data) % found.itemsize])
        return part, found

    def shut_down(self) -> None:
        """Ends every ``receive`` of both ends; ``close`` is still to be called."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:  # the other end is gone
            return

    def close(self) -> None:
        self._socket.close()


def _rights(descriptor: int) -> tuple[int, int, array.array[int]]:
    return socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor])

"""The feed process: reads and decodes for a trainer, and fills slots that both map.

Started by ``FeedEngine`` as ``python -m streamloader._feed_child DESCRIPTOR``; it ends when the
other end of that socket does, so no trainer leaves one behind.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys

from streamloader._engine import Engine
from streamloader._epoch import EpochRun
from streamloader._feed_channel import (
    Answer,
    Ask,
    Channel,
    Failed,
    FeedFacts,
    Leased,
    Log,
    NameSample,
    Open,
    Opened,
    Planned,
    Returned,
    Start,
    Stop,
    Waits,
)
from streamloader._feed_delivery import FeedDelivery, started
from streamloader._feed_errors import SentError
from streamloader.transfer import SlotState

#: How long a thread may keep the interpreter from others that want it, in seconds. Work here comes
#: in short turns; the 5 ms of the default are most of a batch.
_SWITCH_INTERVAL_S = 0.0005


class Feed:
    """Answers the trainer's messages until it is gone.

    Args:
        channel: to the trainer.
        opening: what to read and how.
    """

    def __init__(self, channel: Channel, opening: Open) -> None:
        self._channel = channel
        self._delivery = FeedDelivery(
            channel, opening.slot_pixels, gpu=opening.gpu, engines=opening.engines
        )
        self._engine = Engine(opening.settings, opening.world, self._delivery, seats=opening.seats)
        self._runs: dict[int, EpochRun] = {}

    def facts(self) -> FeedFacts:
        engine = self._engine
        return FeedFacts(
            url=engine.catalog.url,
            fingerprint=engine.catalog.fingerprint,
            classes=engine.catalog.classes,
            fields=engine.fields,
            layout=engine.layout,
            choice=engine.choice,
            memory=engine.memory,
        )

    def serve(self) -> None:
        """Does what the trainer says; returns when it is gone."""
        while (received := self._channel.receive()) is not None:
            self._do(received[0])

    def _do(self, message: object) -> None:
        match message:
            case Start():
                self._start(message)
            case Stop(run):
                self._runs.pop(run).stop()
            case Leased(index):
                self._engine.ring.slot(index).mark_readable()
                self._delivery.consumer_goes_on(list(self._runs.values()))
                self._engine.ring.announce_growth()
            case Returned(index):
                self._give_back(index)
            case Waits(run) if run in self._runs:
                self._delivery.consumer_began_to_wait(self._runs[run])
                self._engine.wake()
            case Ask(number, None):
                self._channel.send(Answer(number, self._stats()))
            case Ask(number, run) if run in self._runs:
                self._channel.send(Answer(number, self._runs[run].describe_stall()))
            case NameSample(number, sample, reason):
                self._channel.send(Answer(number, self._error_of(sample, reason)))

    def _start(self, message: Start) -> None:
        self._engine.share_pictures(message.gpu_share)
        run = EpochRun(
            self._engine,
            cursor=message.cursor,
            rank=message.rank,
            world_size=message.world_size,
            delivery=self._delivery,
            on_planned=lambda: self._channel.send(Planned(message.run)),
        )
        self._runs[message.run] = run
        run.start()
        started(lambda: self._delivery.carry(message.run, run), f"carry-{message.run}")

    def _error_of(self, sample: int, reason: str) -> SentError:
        error: BaseException
        try:
            naming = self._engine.catalog.sample_error(sample, reason)
            error = self._engine.loop_thread.run(naming)
        except Exception as failure:  # noqa: BLE001 - handed to the trainer, who raises it
            error = failure
            error.add_note(f"while naming a bad sample: {reason}")
        return SentError.of(error)

    def _give_back(self, index: int) -> None:
        ring = self._engine.ring
        slot = ring.slot(index)
        if slot.state is SlotState.READABLE:
            ring.returned.put(slot)
        else:
            ring.release(slot)

    def _stats(self) -> dict[str, object]:
        engine = self._engine
        return {
            "counters": engine.counters.counts(),
            "times": engine.counters.times(),
            "memory_bytes": engine.memory_account(),
            "staging": engine.staging_account(),
            "seats": engine.seats_account(),
        }


class _Forward(logging.Handler):
    """Sends records to the trainer's process, whose handlers the user has set up."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        self._channel.send(Log(record.name, record.levelno, self.format(record)))


def main() -> None:
    # Ctrl-C goes to the whole process group; what follows from it is the trainer's to decide.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    first = channel.receive()
    if first is None:
        return
    opening: Open = first[0]
    for name, level in opening.log_levels.items():
        logger = logging.getLogger(name)
        logger.setLevel(level)
        logger.propagate = False
        logger.addHandler(_Forward(channel))
    try:
        feed = Feed(channel, opening)
    except BaseException as error:  # noqa: BLE001 - handed to the trainer, who raises it
        channel.send(Failed(SentError.of(error)))
        return
    channel.send(Opened(feed.facts()))
    feed.serve()
    # The trainer is gone, and whatever a thread still does is for nobody; the kernel frees all.
    os._exit(0)


if __name__ == "__main__":
    main()

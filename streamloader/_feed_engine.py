"""In the trainer's process: a loader's engine whose reading and decoding is a child process.

A child that dies is replaced, and the runs go on behind the last batch that came from it.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from streamloader._decode_state import DecodeState
from streamloader._engine import choose_seats
from streamloader._feed_channel import (
    Answer,
    Ask,
    Batch,
    Failed,
    FeedFacts,
    Leased,
    Log,
    NameSample,
    NewSlot,
    Open,
    Opened,
    Planned,
    Returned,
    RunFailed,
    Stop,
    Waits,
)
from streamloader._feed_choice import check_can_move
from streamloader._feed_delivery import started
from streamloader._feed_errors import FeedDied
from streamloader._feed_process import FeedProcess
from streamloader._feed_questions import Questions
from streamloader._feed_run import FeedRun
from streamloader._own_process import OwnProcess
from streamloader._settings import Settings
from streamloader._world import World
from streamloader.decode import Decoder, open_decoder
from streamloader.errors import ConfigError, SampleError
from streamloader.monitor import Counters, TimeSummary
from streamloader.order import LoaderState
from streamloader.topology import Seats
from streamloader.transfer import MirrorRing, SlotLayout

if TYPE_CHECKING:
    from streamloader._choice import Choice
    from streamloader._delivery import Delivery

logger = logging.getLogger("streamloader.feed")

_DEATHS_IN_A_ROW = 3
_LOGGERS = ("streamloader", "storage_backends")


class FeedEngine(OwnProcess):
    """Runs a feed process and takes its batches in.

    Args:
        settings, world, delivery: as for ``Engine``.

    Raises:
        ConfigError, StorageError: as ``Engine``; they come from the feed process.
        FeedDied: it ended again and again before the data set was open.
    """

    def __init__(self, settings: Settings, world: World, delivery: Delivery) -> None:
        check_can_move(settings)
        super().__init__()
        self.settings = settings
        self.counters = Counters()
        self.runs: set[FeedRun] = set()
        self.seats = choose_seats(settings, world, delivery.gpu)
        self.num_workers = len(self.seats.workers)
        self._delivery = delivery
        self._opening = _opening(settings, world, delivery, self.seats)
        self._lock = threading.RLock()
        self._closed = False
        self._facts: FeedFacts | None = None
        self.decoder: Decoder | None = None
        self.gpu_share = delivery.gpu_share(settings.gpu_decode_share)
        self._ring: MirrorRing | None = None
        self._failure: BaseException | None = None
        self._opened = threading.Event()
        self._deaths = 0
        self._last_run = 0
        self._deferred: list[FeedRun] = []
        self._questions = Questions(self._send)
        self._freed: SimpleQueue[MirrorRing | None] = SimpleQueue()
        self._returner = started(self._give_back, "returns")
        self._feed = FeedProcess(self._opening, self._do, self._died, self._fail)
        self._opened.wait()
        failure = self._outcome()
        if failure is not None:
            self.close()
            raise failure

    def _outcome(self) -> BaseException | None:
        with self._lock:
            return self._failure

    @property
    def facts(self) -> FeedFacts:
        """What the feed process said of the data set."""
        assert self._facts is not None
        return self._facts

    @property
    def choice(self) -> Choice:
        return self.facts.choice

    @property
    def fingerprint(self) -> str:
        return self.facts.fingerprint

    @property
    def classes(self) -> tuple[str, ...]:
        return self.facts.classes

    @property
    def decode_state(self) -> DecodeState:
        """What decodes the pictures of the next run."""
        return DecodeState(self._delivery.decode_path(self.decoder), self.gpu_share)

    def continue_decoding(self, saved: DecodeState) -> bool:
        """As of ``Engine``."""
        before = self.decode_state
        if None not in (self.gpu_share, saved.gpu_share) and self.settings.gpu_decode_share is None:
            self.gpu_share = saved.gpu_share
        saved.warn_if_other(self.decode_state)
        return self.decode_state != before

    def new_run(
        self, cursor: LoaderState, world: World, delivery: Delivery, skipped_digest: int
    ) -> FeedRun:
        """As of ``Engine``."""
        with self._lock:
            self._last_run += 1
            return FeedRun(self, self._last_run, cursor, world, delivery, skipped_digest)

    def begin(self, run: FeedRun) -> None:
        """The feed process starts on the rest of a run."""
        with self._lock:
            if self._failure is not None:
                run.outbox.fail(self._failure)
            self.runs.add(run)
            self._feed.send(run.rest())

    def end(self, run: FeedRun) -> None:
        """The feed process stops; what still comes of the run goes back unread."""
        with self._lock:
            if run in self.runs:
                self.runs.discard(run)
                if run in self._deferred:
                    self._deferred.remove(run)
                    return
                self._feed.send(Stop(run.number))
                self._begin_deferred()

    def consumer_waits(self, run: FeedRun) -> None:
        """The training loop waits for a batch of this run."""
        self._send(Waits(run.number))

    def ask(self, run: FeedRun | None = None) -> Any:
        """The feed process's counts, or what a run waits for; None if no answer comes in time."""
        return self._questions.ask(lambda number: Ask(number, None if run is None else run.number))

    def sample_error(self, sample: int, reason: str) -> BaseException:
        """The error for a sample that is bad for ``reason``, which says where it is stored."""
        answer = self._questions.ask(lambda number: NameSample(number, sample, reason))
        if answer is not None:
            named: BaseException = answer.received()
            return named
        return SampleError(reason, dataset=self.facts.url, shard="an unknown shard", sample=sample)

    def account(self) -> dict[str, Any]:
        """As of ``Engine``: counts, times, memory, seats; those of both processes."""
        there = self.ask() or {}
        counts, times = self.counters.counts(), self.counters.times()
        both = Counter(counts)
        both.update(there.get("counters", {}))
        counts = dict(sorted(both.items()))
        times = dict(sorted((there.get("times", {}) | times).items()))
        staging = there.get("staging", {})
        if self._ring is not None:
            ring = self._ring.stats()
            staging |= {"pinned_bytes": ring.pinned_nbytes, "pin_refusal": ring.pin_refusal}
        return {
            "counters": counts,
            "times_ms": {name: time.to_dict() for name, time in times.items()},
            "memory_bytes": there.get("memory_bytes", {}),
            "seats": there.get("seats", {}),
            "staging": staging,
            "feed_restarts": self.counters.count("feed.restarts"),
        }

    def stage_time(self, stage: str) -> TimeSummary:
        """As of ``Engine``."""
        there = (self.ask() or {}).get("times", {})
        found: TimeSummary = there.get(stage) or self.counters.time(stage)
        return found

    def close(self) -> None:
        """Ends the feed process; batches that are held stay valid. Idempotent."""
        if self.is_forked:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
        for run in tuple(self.runs):
            run.stop()
        self._feed.close()
        self._freed.put(None)
        self._returner.join()
        if self._ring is not None:
            self._ring.close()
        self._delivery.close()

    def _do(self, message: object, descriptor: int | None) -> None:
        """One message of the feed process, in its reader's thread."""
        match message:
            case Batch():
                self._arrived(message)
            case NewSlot(index, nbytes):
                assert descriptor is not None
                memory = self._delivery.memory_factory(nbytes, descriptor=descriptor, touch=False)
                os.close(descriptor)
                self._current_ring().adopt(index, memory)
            case Opened(facts):
                self._take_facts(facts)
            case Planned(number):
                with self._lock:
                    for run in self._named(number):
                        run.is_planned = True
                    self._begin_deferred()
            case RunFailed(number, error):
                for run in self._named(number):
                    run.outbox.fail(error.received())
            case Answer(number, value):
                self._questions.answered(number, value)
            case Log(name, level, text):
                logging.getLogger(name).log(level, "%s", text)
            case Failed(error):
                self._fail(error.received())

    def _send(self, message: object) -> None:
        with self._lock:
            self._feed.send(message)

    def _named(self, number: int) -> list[FeedRun]:
        with self._lock:
            return [run for run in self.runs if run.number == number]

    def _arrived(self, message: Batch) -> None:
        self._deaths = 0
        ring = self._current_ring()
        runs = self._named(message.run)
        if not runs:
            if message.slot >= 0:
                self._feed.send(Returned(message.slot))
            return
        slot = ring.arrived(message.slot, len(message.samples)) if message.slot >= 0 else None
        runs[0].arrived(slot, message)

    def _current_ring(self) -> MirrorRing:
        assert self._ring is not None
        return self._ring

    def _take_facts(self, facts: FeedFacts) -> None:
        with self._lock:
            known, self._facts = self._facts, facts
            self._ring = self._new_ring(facts.layout, facts.memory.max_slots)
        if known is None:
            self._open_delivery(facts)
            self._opened.set()
        elif known.fingerprint != facts.fingerprint:
            self._fail(ConfigError(f"{facts.url} was replaced by another data set during the run"))

    def _open_delivery(self, facts: FeedFacts) -> None:
        settings = self.settings
        # Says how large the pictures are; decodes only what engines refuse.
        if settings.transform is not None:
            self.decoder = open_decoder(
                settings.transform,
                self._delivery.slot_pixels,
                settings.limits,
                counters=self.counters,
            )
        self._delivery.open(
            facts.fields, facts.layout, arena=None, decoder=self.decoder, counters=self.counters
        )

    def _new_ring(self, layout: SlotLayout, max_slots: int) -> MirrorRing:
        ring = MirrorRing(
            layout,
            max_slots,
            on_leased=lambda index: self._tell_leased(ring, index),
            on_returned=lambda: self._freed.put(ring),
        )
        return ring

    def _tell_leased(self, ring: MirrorRing, index: int) -> None:
        with self._lock:
            # First, for a slot that seems to be held too would make the feed process add another.
            self._tell_returned(ring)
            if ring is self._ring:
                self._feed.send(Leased(index))

    def _tell_returned(self, ring: MirrorRing) -> None:
        """Tells of the slots that came back; the lock must be held."""
        if ring is self._ring:  # else the process that had the slots is gone
            for index in ring.take_free():
                self._feed.send(Returned(index))

    def _give_back(self) -> None:
        """Runs in a thread of its own, because a finaliser may not wait for a socket."""
        while (ring := self._freed.get()) is not None:
            with self._lock:
                self._tell_returned(ring)

    def _died(self, last_words: str) -> None:
        """The feed process is gone; in its reader's thread."""
        with self._lock:
            if self._closed or self._failure is not None:
                self._opened.set()
                return
            self._deaths += 1
            if self._facts is not None and self._deaths < _DEATHS_IN_A_ROW:
                self.counters.add("feed.restarts")
                logger.warning("the feed process ended and is started again: %s", last_words)
                self._restart()
                return
        self._fail(
            FeedDied(
                f"the feed process of {self.settings.url} ended {self._deaths} times in a row:"
                f" {last_words}"
            )
        )

    def _restart(self) -> None:
        old, self._ring = self._ring, None
        if old is not None:
            old.close()
        self._feed = FeedProcess(self._opening, self._do, self._died, self._fail)
        self._deferred = sorted(self.runs, key=lambda run: run.number)
        self._begin_deferred()

    def _begin_deferred(self) -> None:
        """A run begins when those before it are planned; the lock must be held."""
        if self._deferred:
            self._feed.send(self._deferred.pop(0).rest())

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._failure = error
            runs = tuple(self.runs)
        for run in runs:
            run.outbox.fail(error)
        self._opened.set()


def _opening(settings: Settings, world: World, delivery: Delivery, seats: Seats) -> Open:
    levels = {name: logging.getLogger(name).getEffectiveLevel() for name in _LOGGERS}
    return Open(
        settings,
        world,
        delivery.slot_pixels,
        delivery.gpu,
        delivery.decodes_on_device,
        seats,
        levels,
    )

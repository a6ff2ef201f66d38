"""Threads that run the shares of batches, each from its own seat.

A seat says which share of a batch a thread runs first. An idle thread takes any share that nobody
began, so one slow core holds nothing back; what a share writes does not depend on who ran it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Protocol, Self

from streamloader.errors import ConfigError
from streamloader.monitor import Counters
from streamloader.topology import bind_thread, lower_priority

_LOG = logging.getLogger("streamloader.decode")


class PoolJob(Protocol):
    """One batch, as the pool sees it. Its methods are called by the pool's threads.

    ``done`` and ``failed`` must not wait for a thread that may be inside ``cancel`` or
    ``close``, since those wait for them.
    """

    @property
    def num_shares(self) -> int:
        """How many shares there are, one or more; usually one a worker."""
        ...

    def run(self, share_no: int) -> None:
        """Runs one share; called once at most for each number in [0, num_shares)."""
        ...

    def done(self) -> None:
        """Called once, when every share has run, by the thread that finished the last one."""
        ...

    def failed(self, error: BaseException) -> None:
        """Called once, with the first exception of ``run`` or ``done``, instead of ``done``.

        Shares that nobody began are dropped; others may still be running.
        """
        ...


class _State(Enum):
    NEW = auto()
    RUNNING = auto()
    CLOSED = auto()


@dataclass(slots=True, eq=False)
class _OpenJob:
    """A job and what became of its shares; guarded by the pool's condition."""

    job: PoolJob
    owner: object
    claimed: bytearray
    unclaimed: int
    unfinished: int
    running: set[str] = field(default_factory=set)
    failed: bool = False
    cancelled: bool = False

    @classmethod
    def of(cls, job: PoolJob, owner: object) -> _OpenJob:
        count = job.num_shares
        if count < 1:
            raise ConfigError(f"a job has at least one share, got num_shares={count}")
        return cls(job, owner, bytearray(count), count, count)

    def own_share(self, seat: int, num_seats: int) -> int:
        """The first unclaimed share of ``seat``, or -1: seat % count, then every num_seats-th."""
        count = len(self.claimed)
        for share_no in range(seat % count, count, num_seats):
            if not self.claimed[share_no]:
                return share_no
        return -1


class WorkerPool:
    """A fixed number of decode threads, alive until ``close``.

    Args:
        num_workers: threads, at least 1.
        name: of the room, for the threads' names ``streamloader-<name>-<n>``.
        counters: told the time of each share as ``decode.share_s``.
        cpus: CPUs for each thread, which binds itself when it starts; an empty set leaves it
            where the process may run, and so does the system's refusal, with one warning.
        niceness: steps by which the threads yield to others of this machine, a training loop say.

    Attributes:
        bind_refusal: why the system refused to bind the threads, None if it did not.
    """

    def __init__(
        self,
        num_workers: int,
        *,
        name: str = "decode",
        counters: Counters | None = None,
        cpus: Sequence[Collection[int]] = (),
        niceness: int = 0,
    ) -> None:
        if num_workers < 1:
            raise ConfigError(f"a worker pool needs at least one worker, got {num_workers}")
        if cpus and len(cpus) != num_workers:
            raise ConfigError(f"{num_workers} workers need as many CPU sets, got {len(cpus)}")
        self.num_workers = num_workers
        self.bind_refusal: str | None = None
        self._cpus = cpus
        self._niceness = niceness
        self._counters = counters
        lock = threading.RLock()
        self._changed = threading.Condition(lock)
        self._ended = threading.Condition(lock)
        self._state = _State.NEW
        self._waiting: deque[_OpenJob] = deque()
        self._busy: set[_OpenJob] = set()
        self._broken_by: BaseException | None = None
        self._threads = [
            threading.Thread(
                target=self._work, args=(seat,), name=f"streamloader-{name}-{seat}", daemon=False
            )
            for seat in range(num_workers)
        ]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def start(self) -> None:
        """Starts the threads; a second call does nothing.

        Raises:
            RuntimeError: the pool is closed, or the machine gives no more threads.
        """
        with self._changed:
            if self._state is _State.CLOSED:
                raise RuntimeError("the worker pool is closed and cannot start again; make another")
            if self._state is _State.RUNNING:
                return
            self._state = _State.RUNNING
            try:
                for thread in self._threads:
                    thread.start()
            except RuntimeError:
                # Those that did start see it and end.
                self._state = _State.CLOSED
                raise

    def submit(self, job: PoolJob, owner: object = None) -> None:
        """Queues a job behind those submitted before; returns at once.

        Args:
            owner: whose jobs ``cancel`` ends together.

        Raises:
            ConfigError: the job has no share.
            RuntimeError: the pool is not running.
        """
        opened = _OpenJob.of(job, owner)
        with self._changed:
            if self._broken_by is not None:
                raise RuntimeError(
                    "a job's failed() raised, so its failure reached nobody; close the worker pool"
                ) from self._broken_by
            if self._state is not _State.RUNNING:
                raise RuntimeError(
                    f"the worker pool is {self._state.name.lower()}; submit between start and close"
                )
            self._waiting.append(opened)
            # No more than can have a share: whoever wakes takes the interpreter lock from the
            # training loop for a moment. Those that are busy look again when they finish.
            self._changed.notify(opened.unclaimed)

    def cancel(self, owner: object, timeout_s: float = 60.0) -> None:
        """Drops every share of an owner's jobs that nobody began, and waits for those that run.

        Afterwards no thread touches a buffer of a job submitted before; no further ``done`` or
        ``failed`` of these jobs is called. Set the abort flag of the shares first.

        Raises:
            TimeoutError: a share still runs after ``timeout_s``; its buffers must not be freed.
            RuntimeError: called by one of the pool's own threads, which would wait for itself.
        """
        if threading.current_thread() in self._threads:
            raise RuntimeError("cancel waits for the pool's threads; call it from another one")
        with self._changed:
            dropped = self._drop(lambda opened: opened.owner is owner)
            if not self._ended.wait_for(lambda: not (dropped & self._busy), timeout_s):
                raise TimeoutError(self._still_running(timeout_s))

    def close(self, timeout_s: float = 60.0) -> None:
        """Drops every share that nobody began, and joins the threads; any thread may call it.

        Called by one of the pool's own threads, it joins the others; that one ends on its return.

        Raises:
            TimeoutError: a share still runs after ``timeout_s``; close may be called again.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            self._state = _State.CLOSED
            self._drop(lambda _: True)
            self._changed.notify_all()
        for thread in self._threads:
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
                if thread.is_alive():
                    with self._changed:
                        raise TimeoutError(self._still_running(timeout_s))

    def _drop(self, chosen: Callable[[_OpenJob], bool]) -> set[_OpenJob]:
        """Forgets the chosen jobs; returns those that still run."""
        self._waiting = deque(opened for opened in self._waiting if not chosen(opened))
        busy = {opened for opened in self._busy if chosen(opened)}
        for opened in busy:
            opened.cancelled = True
        return busy

    def _still_running(self, timeout_s: float) -> str:
        names = sorted(name for opened in self._busy for name in opened.running)
        return (
            f"{', '.join(names) or 'a worker'} still runs a share after {timeout_s} s; "
            "its decoder must look at the abort flag"
        )

    def _bind(self, seat: int) -> None:
        refusal = bind_thread(self._cpus[seat]) if self._cpus and self._cpus[seat] else None
        if refusal is None:
            return
        with self._changed:
            is_first = self.bind_refusal is None
            self.bind_refusal = self.bind_refusal or refusal
        if is_first:
            _LOG.warning("workers run on any CPU instead of their seats': %s", refusal)

    def _work(self, seat: int) -> None:
        self._bind(seat)
        if self._niceness and (refusal := lower_priority(self._niceness)) is not None:
            _LOG.info("workers run beside the training loop as its equals: %s", refusal)
        name = self._threads[seat].name
        while True:
            with self._changed:
                while not self._waiting:
                    if self._state is _State.CLOSED:
                        return
                    self._changed.wait()
                opened, share_no = self._claim(seat)
                opened.running.add(name)
                self._busy.add(opened)
            try:
                self._run(opened, share_no)
            finally:
                with self._changed:
                    opened.running.discard(name)
                    if not opened.running:
                        self._busy.discard(opened)
                        if opened.cancelled:
                            self._ended.notify_all()

    def _claim(self, seat: int) -> tuple[_OpenJob, int]:
        """The seat's own share of the oldest job where it is free, else any of the oldest job."""
        for opened in self._waiting:
            share_no = opened.own_share(seat, self.num_workers)
            if share_no >= 0:
                break
        else:
            opened = self._waiting[0]
            share_no = opened.claimed.index(0)
        opened.claimed[share_no] = 1
        opened.unclaimed -= 1
        if not opened.unclaimed:
            self._waiting.remove(opened)
        return opened, share_no

    def _run(self, opened: _OpenJob, share_no: int) -> None:
        start_s = time.perf_counter()
        try:
            opened.job.run(share_no)
            if self._counters is not None:
                self._counters.observe("decode.share_s", time.perf_counter() - start_s)
            if self._was_last(opened):
                opened.job.done()
        except BaseException as error:  # noqa: BLE001 - handed over: its owner raises it
            self._fail(opened, error)

    def _was_last(self, opened: _OpenJob) -> bool:
        with self._changed:
            opened.unfinished -= 1
            return not (opened.unfinished or opened.failed or opened.cancelled)

    def _fail(self, opened: _OpenJob, error: BaseException) -> None:
        with self._changed:
            is_told = not (opened.failed or opened.cancelled)
            opened.failed = True
            if opened in self._waiting:
                self._waiting.remove(opened)
        if not is_told:
            _LOG.info("a share of a batch that had ended already failed too", exc_info=error)
            return
        try:
            opened.job.failed(error)
        except BaseException as second:  # noqa: BLE001 - kept, and raised by submit
            _LOG.exception("a batch failed, and telling its owner failed too")
            with self._changed:
                self._broken_by = second

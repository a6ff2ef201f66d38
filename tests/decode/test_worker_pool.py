"""The pool's promises: seats, help for the slow, one end per job, and no thread left."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from streamloader.decode import WorkerPool
from streamloader.errors import ConfigError
from streamloader.monitor import Counters

WAIT_S = 20.0


class Job:
    """Records who ran which share and how the job ended."""

    def __init__(
        self,
        num_shares: int,
        run: Callable[[int], None] = lambda share_no: None,
        done: Callable[[], None] = lambda: None,
    ) -> None:
        self.num_shares = num_shares
        self.ran: dict[int, str] = {}
        self.ends: list[BaseException | None] = []
        self.ended = threading.Event()
        self._run = run
        self._done = done
        self._lock = threading.Lock()

    def run(self, share_no: int) -> None:
        with self._lock:
            assert share_no not in self.ran, "a share runs once"
            self.ran[share_no] = threading.current_thread().name
        self._run(share_no)

    def done(self) -> None:
        self._done()
        self.ends.append(None)
        self.ended.set()

    def failed(self, error: BaseException) -> None:
        self.ends.append(error)
        self.ended.set()


class Gate:
    """A share that stops inside run until it is let go."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.open = threading.Event()

    def __call__(self, share_no: int) -> None:
        self.entered.set()
        assert self.open.wait(WAIT_S), "the test must open the gate"


def worker_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("streamloader-")]


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    yield
    assert worker_threads() == []


def test_each_seat_runs_its_own_share() -> None:
    meeting = threading.Barrier(4)

    def meet(share_no: int) -> None:
        meeting.wait(WAIT_S)

    job = Job(4, run=meet)
    with WorkerPool(4) as pool:
        assert sorted(worker_threads()) == [f"streamloader-decode-{n}" for n in range(4)]
        pool.submit(job)
        assert job.ended.wait(WAIT_S)
    assert job.ran == {n: f"streamloader-decode-{n}" for n in range(4)}
    assert job.ends == [None]


def test_idle_workers_take_the_shares_of_a_stuck_one() -> None:
    gate = Gate()
    stuck_on = Job(1, run=gate)
    with WorkerPool(3) as pool:
        pool.submit(stuck_on)
        assert gate.entered.wait(WAIT_S)
        jobs = [Job(3) for _ in range(10)]
        for job in jobs:
            pool.submit(job)
        for job in jobs:
            assert job.ended.wait(WAIT_S)
        assert stuck_on.ends == []
        gate.open.set()
        assert stuck_on.ended.wait(WAIT_S)
    stuck = stuck_on.ran[0]
    assert all(stuck not in job.ran.values() for job in jobs)


def test_a_worker_prefers_its_own_share_of_a_later_job() -> None:
    """One worker held back: the other does its own shares of all jobs before it helps."""
    gates = [Gate(), Gate()]
    order: list[tuple[int, int]] = []
    holders = [Job(1, run=gate) for gate in gates]
    jobs = [Job(2, run=lambda share_no, n=n: order.append((n, share_no))) for n in range(3)]
    with WorkerPool(2) as pool:
        for holder, gate in zip(holders, gates, strict=True):
            pool.submit(holder)
            assert gate.entered.wait(WAIT_S)
        for job in jobs:
            pool.submit(job)
        free = next(n for n in (0, 1) if holders[n].ran[0] == "streamloader-decode-0")
        gates[free].open.set()
        for job in jobs:
            assert job.ended.wait(WAIT_S)
        gates[1 - free].open.set()
    assert order == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)]


@pytest.mark.parametrize(("workers", "num_shares"), [(1, 1), (1, 7), (5, 2), (3, 8), (16, 16)])
def test_every_share_runs_once_whatever_the_numbers(workers: int, num_shares: int) -> None:
    jobs = [Job(num_shares) for _ in range(20)]
    with WorkerPool(workers) as pool:
        for job in jobs:
            pool.submit(job)
        for job in jobs:
            assert job.ended.wait(WAIT_S)
    for job in jobs:
        assert sorted(job.ran) == list(range(num_shares))
        assert job.ends == [None]


def test_a_thousand_jobs_each_end_once() -> None:
    counters = Counters()
    jobs = [Job(4) for _ in range(1000)]
    with WorkerPool(4, counters=counters) as pool:
        for job in jobs:
            pool.submit(job)
        for job in jobs:
            assert job.ended.wait(WAIT_S)
    assert all(job.ends == [None] for job in jobs)
    assert counters.time("decode.share_s").count == 4000


def test_a_job_may_submit_the_next_one_from_done() -> None:
    with WorkerPool(2) as pool:
        second = Job(2)
        pool.submit(Job(2, done=lambda: pool.submit(second)))
        assert second.ended.wait(WAIT_S)


def test_the_first_failure_of_a_share_ends_the_job_and_drops_the_rest() -> None:
    def fail(share_no: int) -> None:
        raise ValueError(f"share {share_no}")

    bad, good = Job(100, run=fail), Job(2)
    with WorkerPool(1) as pool:
        pool.submit(bad)
        pool.submit(good)
        assert good.ended.wait(WAIT_S)
    assert [str(error) for error in bad.ends] == ["share 0"]
    assert bad.ran.keys() == {0}
    assert bad.ends[0] is not None
    assert bad.ends[0].__traceback__ is not None
    assert good.ends == [None]


def test_two_shares_that_fail_together_fail_the_job_once() -> None:
    meeting = threading.Barrier(2)

    def fail(share_no: int) -> None:
        meeting.wait(WAIT_S)
        raise ValueError("both")

    bad = Job(2, run=fail)
    with WorkerPool(2) as pool:
        pool.submit(bad)
        assert bad.ended.wait(WAIT_S)
    assert len(bad.ends) == 1


def test_a_failure_of_done_is_a_failure_of_the_job() -> None:
    def refuse() -> None:
        raise SystemExit("from done")

    job = Job(2, done=refuse)
    with WorkerPool(2) as pool:
        pool.submit(job)
        assert job.ended.wait(WAIT_S)
        assert len(worker_threads()) == 2
    assert [type(error) for error in job.ends] == [SystemExit]


def test_a_failure_that_reaches_nobody_is_raised_by_the_next_submit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Deaf(Job):
        def failed(self, error: BaseException) -> None:
            raise KeyError("nobody listens")

    def fail(share_no: int) -> None:
        raise ValueError("first")

    gate = Gate()
    after = Job(1)
    with WorkerPool(1) as pool:
        pool.submit(Job(1, run=gate))
        pool.submit(Deaf(1, run=fail))
        pool.submit(after)
        gate.open.set()
        # One worker: what is queued behind runs after the failure was recorded.
        assert after.ended.wait(WAIT_S)
        with pytest.raises(RuntimeError, match=r"failed\(\) raised") as caught:
            pool.submit(Job(1))
    assert isinstance(caught.value.__cause__, KeyError)
    assert "telling its owner failed too" in caplog.text


def test_cancel_waits_for_the_running_share_and_drops_the_others() -> None:
    gate = Gate()
    running, queued = Job(2, run=gate), Job(3)
    with WorkerPool(1) as pool:
        pool.submit(running)
        pool.submit(queued)
        assert gate.entered.wait(WAIT_S)
        with pytest.raises(TimeoutError, match="streamloader-decode-0 still runs a share"):
            pool.cancel(None, timeout_s=0.05)
        cancelled = threading.Event()

        def cancel() -> None:
            pool.cancel(None)
            cancelled.set()

        canceller = threading.Thread(target=cancel)
        canceller.start()
        assert not cancelled.wait(0.05), "the share still runs"
        gate.open.set()
        assert cancelled.wait(WAIT_S)
        canceller.join()
        assert running.ran.keys() == {0}
        assert queued.ran == {}
        next_epoch = Job(2)
        pool.submit(next_epoch)
        assert next_epoch.ended.wait(WAIT_S)
    assert running.ends == []
    assert queued.ends == []


def test_a_cancelled_share_that_fails_tells_nobody() -> None:
    gate = Gate()

    def fail_late(share_no: int) -> None:
        gate(share_no)
        raise ValueError("aborted")

    job = Job(1, run=fail_late)
    with WorkerPool(1) as pool:
        pool.submit(job)
        assert gate.entered.wait(WAIT_S)
        with pytest.raises(TimeoutError):
            pool.cancel(None, timeout_s=0.01)
        gate.open.set()
        pool.cancel(None)
    assert job.ends == []


def test_cancel_of_an_idle_pool_returns_at_once() -> None:
    with WorkerPool(2) as pool:
        pool.cancel(None, timeout_s=0.0)


def test_cancel_waits_for_a_done_that_runs() -> None:
    gate = Gate()
    job = Job(1, done=lambda: gate(0))
    with WorkerPool(1) as pool:
        pool.submit(job)
        assert gate.entered.wait(WAIT_S)
        with pytest.raises(TimeoutError):
            pool.cancel(None, timeout_s=0.01)
        gate.open.set()
        pool.cancel(None)
        assert job.ends == [None]


def test_a_worker_cannot_wait_for_itself() -> None:
    errors: list[BaseException] = []
    with WorkerPool(1) as pool:

        def cancel() -> None:
            with pytest.raises(RuntimeError, match="call it from another one") as caught:
                pool.cancel(None)
            errors.append(caught.value)

        job = Job(1, done=cancel)
        pool.submit(job)
        assert job.ended.wait(WAIT_S)
    assert len(errors) == 1


def test_close_is_idempotent_and_works_from_any_thread() -> None:
    pool = WorkerPool(3)
    pool.start()
    pool.start()
    closers = [threading.Thread(target=pool.close) for _ in range(4)]
    for closer in closers:
        closer.start()
    for closer in closers:
        closer.join()
    pool.close()
    assert worker_threads() == []


def test_close_from_a_worker_ends_the_pool() -> None:
    pool = WorkerPool(2)
    pool.start()
    job = Job(1, done=pool.close)
    pool.submit(job)
    assert job.ended.wait(WAIT_S)
    pool.close()


def test_close_drops_what_nobody_began_and_is_bounded() -> None:
    gate = Gate()
    running, queued = Job(1, run=gate), Job(1)
    pool = WorkerPool(1)
    pool.start()
    pool.submit(running)
    pool.submit(queued)
    assert gate.entered.wait(WAIT_S)
    with pytest.raises(TimeoutError, match=r"still runs a share after 0.05 s; its decoder"):
        pool.close(timeout_s=0.05)
    gate.open.set()
    pool.close()
    assert queued.ran == {}
    assert running.ends == []


def test_a_pool_takes_jobs_only_while_it_runs() -> None:
    pool = WorkerPool(1)
    with pytest.raises(RuntimeError, match="pool is new"):
        pool.submit(Job(1))
    pool.close()
    with pytest.raises(RuntimeError, match="pool is closed"):
        pool.submit(Job(1))
    with pytest.raises(RuntimeError, match="cannot start again"):
        pool.start()


def test_a_machine_out_of_threads_leaves_none_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start
    started: list[threading.Thread] = []

    def start_two(thread: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    pool = WorkerPool(4)
    monkeypatch.setattr(threading.Thread, "start", start_two)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        pool.start()
    monkeypatch.undo()
    pool.close()
    assert not any(thread.is_alive() for thread in started)


@pytest.mark.parametrize("workers", [0, -1])
def test_a_pool_without_workers_is_refused(workers: int) -> None:
    with pytest.raises(ConfigError, match=f"got {workers}"):
        WorkerPool(workers)


def test_a_job_without_shares_is_refused() -> None:
    with WorkerPool(1) as pool, pytest.raises(ConfigError, match="num_shares=0"):
        pool.submit(Job(0))


def test_threads_carry_the_name_of_the_room() -> None:
    job: Any = Job(1)
    with WorkerPool(1, name="verify") as pool:
        pool.submit(job)
        assert job.ended.wait(WAIT_S)
    assert job.ran == {0: "streamloader-verify-0"}


def masks_seen(pool: WorkerPool) -> dict[str, set[int]]:
    """The CPUs of each of two workers, which wait for each other inside their shares."""
    seen: dict[str, set[int]] = {}
    both = threading.Barrier(2, timeout=WAIT_S)

    def look(share_no: int) -> None:
        seen[threading.current_thread().name] = os.sched_getaffinity(0)
        both.wait()

    job = Job(2, look)
    with pool:
        pool.submit(job)
        assert job.ended.wait(WAIT_S)
    assert job.ends == [None]
    return seen


def test_each_worker_keeps_to_the_cpus_of_its_seat() -> None:
    allowed = os.sched_getaffinity(0)
    cpu = {max(allowed)}
    seen = masks_seen(WorkerPool(2, name="seated", cpus=[cpu, set()]))
    assert seen == {"streamloader-seated-0": cpu, "streamloader-seated-1": allowed}
    assert os.sched_getaffinity(0) == allowed


def test_refused_cpus_give_one_warning_and_the_workers_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    allowed = os.sched_getaffinity(0)
    pool = WorkerPool(2, name="refused", cpus=[{4090}, {4091}])
    assert set(map(frozenset, masks_seen(pool).values())) == {frozenset(allowed)}
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert pool.bind_refusal is not None
    assert pool.bind_refusal in caplog.text


def test_as_many_seats_as_workers_are_needed() -> None:
    with pytest.raises(ConfigError, match="2 workers need as many CPU sets, got 1"):
        WorkerPool(2, cpus=[{0}])

"""The retry policy by itself, without a network."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from storage_backends import AccessDenied, StorageError, Unavailable
from storage_backends._cancellation import to_the_end
from storage_backends._retry import Backoff, Fault, RetryPolicy

URL = "s3://bucket/key"
NO_DELAY = Backoff(0, 0)


def fault(*, transient: bool = True, **more: Any) -> Fault:
    return Fault(Unavailable("it failed", url=URL), transient=transient, **more)


class Attempts:
    """Fails with the given faults in order, then succeeds."""

    def __init__(self, *faults: Fault) -> None:
        self.faults = list(faults)
        self.count = 0

    async def __call__(self) -> str:
        self.count += 1
        if self.faults:
            raise self.faults.pop(0) from ConnectionResetError("the root")
        return "done"


async def test_transient_faults_are_repeated_until_it_works(counts: Any) -> None:
    attempts = Attempts(fault(), fault())
    assert await RetryPolicy(3, 60, counts, NO_DELAY).run(attempts, URL) == "done"
    assert (attempts.count, counts.totals["storage.retries"]) == (3, 2)


async def test_the_last_error_is_raised_with_its_cause_and_how_often_it_was_tried(
    counts: Any,
) -> None:
    attempts = Attempts(*[fault() for _ in range(9)])
    with pytest.raises(Unavailable, match="it failed") as caught:
        await RetryPolicy(3, 60, counts, NO_DELAY).run(attempts, URL)
    assert attempts.count == 3
    assert isinstance(caught.value.__cause__, ConnectionResetError)
    assert caught.value.__notes__[0].startswith("tried 3 times")


async def test_a_final_fault_is_not_repeated(counts: Any) -> None:
    denied = Fault(AccessDenied("no", url=URL), transient=False)
    attempts = Attempts(denied)
    with pytest.raises(AccessDenied):
        await RetryPolicy(8, 60, counts, NO_DELAY).run(attempts, URL)
    assert attempts.count == 1


async def test_no_attempt_starts_that_could_not_begin_before_the_deadline(counts: Any) -> None:
    attempts = Attempts(fault(retry_after_s=5))
    with pytest.raises(Unavailable):
        await RetryPolicy(8, 4, counts, NO_DELAY).run(attempts, URL)
    assert attempts.count == 1


async def test_an_attempt_that_hangs_is_cut_off_at_the_deadline(counts: Any) -> None:
    cut_off = asyncio.Event()

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cut_off.set()

    with pytest.raises(Unavailable, match="download_timeout") as caught:
        await RetryPolicy(8, 0.05, counts).run(hang, URL)
    assert cut_off.is_set()
    assert caught.value.code == "Timeout"


async def test_a_server_never_reached_is_given_up_before_one_that_has_answered(
    counts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage_backends._retry.FIRST_CONTACT_S", 0)
    unknown = RetryPolicy(3, 60, counts, NO_DELAY)
    with pytest.raises(Unavailable):
        await unknown.run(Attempts(fault(unreached=True)), URL)
    unknown.note_answer()
    assert await unknown.run(Attempts(fault(unreached=True)), URL) == "done"


async def test_cancellation_ends_the_wait_between_attempts(counts: Any) -> None:
    attempts = Attempts(fault(retry_after_s=30))
    run = asyncio.create_task(RetryPolicy(8, 60, counts).run(attempts, URL))
    while not attempts.count:
        await asyncio.wait([run], timeout=0.001)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert attempts.count == 1


async def test_other_exceptions_pass_through_unchanged(counts: Any) -> None:
    async def broken() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await RetryPolicy(8, 60, counts).run(broken, URL)


def test_delays_are_jittered_double_and_stay_bounded() -> None:
    backoff = Backoff(0.1, 5)
    for attempt, bound in [(1, 0.1), (2, 0.2), (4, 0.8), (7, 5), (1_000, 5)]:
        delays = [backoff.delay_s(attempt) for _ in range(300)]
        assert 0 <= min(delays) < bound / 4
        assert bound * 3 / 4 < max(delays) <= bound


async def test_retries_are_logged_without_being_printed(
    counts: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "storage_backends"):
        await RetryPolicy(3, 60, counts, NO_DELAY).run(Attempts(fault()), URL)
    assert URL in caplog.text


async def test_uninterrupted_work_ends_before_its_cancellation_is_raised() -> None:
    release, hurried = asyncio.Event(), asyncio.Event()
    ended = []

    async def work() -> None:
        await release.wait()
        ended.append(True)
        raise StorageError("failed as well", url=URL)

    task = asyncio.create_task(to_the_end(work(), hurry=hurried.set))
    while not hurried.is_set():
        await asyncio.wait([task], timeout=0.001)
        task.cancel()
    await asyncio.wait([task], timeout=0.001)
    task.cancel()
    assert not task.done()
    release.set()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert ended
    assert caught.value.__notes__ == ["meanwhile: failed as well"]

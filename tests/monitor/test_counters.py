import threading

import numpy as np
import pytest

from streamloader.monitor import Counters


def test_counts_add_up_over_threads():
    counters = Counters()
    threads = [
        threading.Thread(target=lambda: [counters.add("n", 2) for _ in range(1000)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counters.counts() == {"n": 8000}


def test_percentiles_are_right_within_the_width_of_a_bin():
    counters = Counters()
    seconds = np.random.default_rng(0).lognormal(-6, 1, 20_000)
    for value in seconds:
        counters.observe("stage", float(value))
    summary = counters.time("stage")
    for share, got in ((50, summary.p50), (95, summary.p95), (99, summary.p99)):
        assert got == pytest.approx(np.percentile(seconds, share) * 1e3, rel=0.1)
    assert summary.max == pytest.approx(seconds.max() * 1e3)
    assert summary.sum == pytest.approx(seconds.sum() * 1e3)
    assert summary.count == 20_000


def test_a_stage_that_never_ran_is_all_zero():
    summary = Counters().time("nothing")
    assert (summary.count, summary.p50, summary.max) == (0, 0.0, 0.0)


def test_very_short_and_very_long_times_stay_inside_the_histogram():
    counters = Counters()
    counters.observe("stage", 0.0)
    counters.observe("stage", 1e9)
    assert counters.time("stage").max == pytest.approx(1e12)
    assert counters.time("stage").p50 <= 1e-3

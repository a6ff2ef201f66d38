"""A little of the fuzzing that ``python -m tests.dts.fuzz`` does at length, and tests of it."""

from __future__ import annotations

import math
import tracemalloc

import pytest

from streamloader.dts import ShardIndex, records
from tests.dts.fuzz.__main__ import run
from tests.dts.fuzz.fuzzer import Fuzzer, NotNoticed


@pytest.fixture(scope="module")
def fuzzer() -> Fuzzer:
    return Fuzzer(seed=1)


def test_damaged_and_forged_files_raise_only_the_formats_error(fuzzer):
    fuzzer.counts.clear()
    assert run(fuzzer, range(700), math.inf) is None
    assert len(fuzzer.counts) == 15


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_damaged_and_forged_files_raise_only_the_formats_error_at_length(fuzzer):
    assert run(fuzzer, range(700, 30_000), math.inf) is None


def test_no_damaged_or_forged_file_takes_more_memory_than_its_size_allows(fuzzer):
    largest = 0
    tracemalloc.start()
    try:
        for number in range(150):
            case = fuzzer.case(number)
            tracemalloc.reset_peak()
            before_bytes = tracemalloc.get_traced_memory()[0]
            fuzzer.check(case)
            largest = max(largest, tracemalloc.get_traced_memory()[1] - before_bytes)
    finally:
        tracemalloc.stop()
    assert largest < 4 << 20


def test_a_case_is_decided_by_seed_and_number(fuzzer):
    again = Fuzzer(seed=1)
    assert [again.case(n) for n in range(30)] == [fuzzer.case(n) for n in range(30)]
    assert Fuzzer(seed=2).case(0) != again.case(0)


def test_a_reader_that_misses_damage_is_caught(fuzzer, monkeypatch):
    monkeypatch.setattr(ShardIndex, "verify_records", lambda *_: [])
    failed = run(fuzzer, range(500), math.inf)
    assert failed is not None
    with pytest.raises(NotNoticed):
        fuzzer.check(fuzzer.case(failed))


def test_a_reader_that_raises_something_else_is_caught(fuzzer, monkeypatch):
    def decode(*args, **options):
        raise ValueError("not the format's error")

    monkeypatch.setattr(records, "decode_stored", decode)
    assert run(fuzzer, range(50), math.inf) is not None

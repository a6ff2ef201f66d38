"""What the soak calls growth, from notes of runs that leak and of one that does not."""

from __future__ import annotations

import pytest

from benchmarks.soak import Note, growth


def notes(own_mb_per_1k=0.0, feeds_mb_per_1k=0.0, leaks_per_note=0.0, connections_per_note=0.0):
    return [
        Note(
            elapsed_s=turn,
            batches=20 * turn,
            feed_batches=10 * turn,
            # Warm-up, whatever its size, and noise do not count.
            own_mb=400.0 + 3 * min(turn, 15) + turn % 2 + own_mb_per_1k * 20 * turn / 1e3,
            feeds_mb=150.0 + feeds_mb_per_1k * 10 * turn / 1e3,
            threads=17 + turn % 3,
            files=40 + turn % 5 + int(turn * leaks_per_note),
            # They come and go.
            connections=3 + 7 * (turn % 2) + int(turn * connections_per_note),
        )
        for turn in range(1, 200)
    ]


def test_a_run_that_warms_up_and_stays_flat_is_sound():
    assert growth(notes()).complaints() == []


@pytest.mark.parametrize(
    ("leak", "words"),
    [
        ({"own_mb_per_1k": 1.5}, "this process grew by 1.5"),
        ({"feeds_mb_per_1k": 1.5}, "feed processes grew by 1.50 MB"),
        ({"leaks_per_note": 0.1}, "more open files"),
        ({"connections_per_note": 0.2}, "more connections"),
    ],
)
def test_what_grows_is_named(leak, words):
    complaints = growth(notes(**leak)).complaints()
    assert len(complaints) == 1
    assert words in complaints[0]

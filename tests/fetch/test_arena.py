from hypothesis import given
from hypothesis import strategies as st

from streamloader.fetch import Arena
from streamloader.fetch.arena import ALIGN_BYTES


def test_an_allocation_is_aligned_and_writable():
    arena = Arena(1 << 16)
    start = arena.allocate(1000)
    assert start is not None
    assert start % ALIGN_BYTES == 0
    arena.array[start : start + 1000] = 7
    assert arena.used_bytes == 1024


def test_nothing_is_given_beyond_the_region():
    arena = Arena(1 << 16)
    assert arena.allocate(arena.nbytes + 1) is None
    assert arena.allocate(arena.nbytes) == 0
    assert arena.allocate(1) is None


def test_shrinking_gives_the_rest_to_the_next_allocation():
    arena = Arena(1 << 16)
    start = arena.allocate(arena.nbytes)
    arena.shrink(start, 100)
    assert arena.used_bytes == 128
    assert arena.allocate(arena.nbytes - 128) == 128


@given(st.lists(st.tuples(st.integers(1, 5000), st.booleans(), st.integers(0, 50))))
def test_allocations_never_overlap_and_all_memory_comes_back(steps):
    arena = Arena(1 << 16)
    held: dict[int, int] = {}
    for nbytes, release, pick in steps:
        if release and held:
            start = sorted(held)[pick % len(held)]
            arena.free(start)
            del held[start]
            continue
        start = arena.allocate(nbytes)
        if start is None:
            continue
        for other, size in held.items():
            assert start + nbytes <= other or other + size <= start
        assert start + nbytes <= arena.nbytes
        held[start] = nbytes
    for start in held:
        arena.free(start)
    assert arena.used_bytes == 0
    assert arena.allocate(arena.nbytes) == 0

"""Pages by node, from recorded text and from this process."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from streamloader.topology import pages_by_node

RECORDED = """\
55d6c0a00000 default file=/usr/bin/python3.11 mapped=6 N1=6 kernelpagesize_kB=4
7f10c0000000 bind:1 anon=9408 dirty=9408 active=0 N1=9408 kernelpagesize_kB=4
7f20a0000000 default anon=18816 dirty=18816 N0=37 N1=18779 kernelpagesize_kB=4
7f20b0000000 interleave:0-1 anon=4 dirty=4 N0=2 N1=2 kernelpagesize_kB=4
7f30c0000000 default
7ffd10000000 default stack anon=10 dirty=10 N0=10 kernelpagesize_kB=4
"""


@pytest.fixture
def recorded(make_root):
    return make_root(files={"proc/self/numa_maps": RECORDED})


def test_the_mapping_that_holds_an_address_counts(recorded):
    assert pages_by_node([0x7F10C0000000], recorded) == {1: 9408}
    assert pages_by_node([0x7F20A0000000 + 4096], recorded) == {0: 37, 1: 18779}
    assert pages_by_node([0x7FFD10000000 + 1], recorded) == {0: 10}


def test_several_mappings_are_added_and_each_counts_once(recorded):
    inside = [0x7F20A0000000, 0x7F20A0000000 + (1 << 20)]
    assert pages_by_node(inside, recorded) == {0: 37, 1: 18779}
    assert pages_by_node([0x7F10C0000000, *inside], recorded) == {0: 37, 1: 28187}


def test_an_untouched_mapping_has_no_pages(recorded):
    assert pages_by_node([0x7F30C0000000], recorded) == {}


def test_no_addresses_need_no_file(make_root):
    assert pages_by_node([], make_root()) == {}


def test_a_system_that_does_not_tell_gives_nothing(make_root):
    assert pages_by_node([0x7F10C0000000], make_root()) == {}


def test_touched_pages_of_this_process_are_counted():
    pages = 300
    mapping = mmap.mmap(-1, pages * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapping.madvise(mmap.MADV_DONTDUMP)  # so that no neighbour is counted with it
    array = np.frombuffer(mapping, np.uint8)
    if not pages_by_node([id(mapping)]):
        pytest.skip("this kernel does not count pages by node")
    assert pages_by_node([array.ctypes.data]) == {}
    array[: 100 * mmap.PAGESIZE : mmap.PAGESIZE] = 1
    assert sum(pages_by_node([array.ctypes.data]).values()) == 100

import os
import zlib

import numpy as np
import pytest
import xxhash

from streamloader.dts import record_bytes
from streamloader.dts.record_bytes import copy_rows, copy_values, wrong_hashes, wrong_zeros
from streamloader.errors import ConfigError

SECRET = np.random.default_rng(7).integers(0, 256, 70_000, dtype=np.uint8)
# Every way that XXH3 has of treating a length, and the borders between them.
LENGTHS = [*range(300), 511, 512, 513, 1023, 1024, 1025, 4096, 65_536]


@pytest.fixture(params=["native", "numpy"])
def path(request, monkeypatch):
    if request.param == "numpy":
        monkeypatch.setattr(record_bytes, "IS_NATIVE", False)
        monkeypatch.setattr(record_bytes, "HASHES_NATIVELY", False)
    elif not record_bytes.HASHES_NATIVELY:
        assert "STREAMLOADER_REQUIRE_KERNEL" not in os.environ
        pytest.skip("the native part, or xxHash's header, was not there when this was built")
    return request.param


def ints(*values):
    return np.array(values, np.int64)


def test_a_hash_is_that_of_the_xxhash_package_for_every_length(path):
    starts = np.arange(len(LENGTHS), dtype=np.int64)
    ends = starts + LENGTHS
    hashes = [
        xxhash.xxh3_64_intdigest(SECRET[low:high]) for low, high in zip(starts, ends, strict=True)
    ]
    expected = np.array(hashes, np.uint64)
    assert wrong_hashes(SECRET, starts, ends, expected, "xxh3-64").tolist() == []
    for place in (0, 17, len(LENGTHS) - 1):
        expected[place] ^= np.uint64(1 << 63)
    wrong = wrong_hashes(SECRET, starts, ends, expected, "xxh3-64")
    assert wrong.tolist() == [0, 17, len(LENGTHS) - 1]


def test_another_hash_is_checked_too(path):
    expected = np.array([zlib.crc32(SECRET[:100]), 1], np.uint64)
    assert wrong_hashes(SECRET, ints(0, 0), ints(100, 100), expected, "crc32").tolist() == [1]


def test_a_byte_in_the_padding_is_found_where_it_is(path):
    memory = np.zeros(1000, np.uint8)
    memory[[5, 99]] = 1
    starts, ends = ints(0, 5, 6, 50, 100, 7), ints(5, 6, 50, 100, 1000, 7)
    assert wrong_zeros(memory, starts, ends).tolist() == [1, 3]


def test_rows_are_copied_to_their_places(path):
    out = np.zeros((4, 3), np.uint16)
    copy_rows(SECRET, ints(1, 9), out, ints(3, 0))
    assert out[3].tobytes() == SECRET[1:7].tobytes()
    assert out[0].tobytes() == SECRET[9:15].tobytes()
    assert not out[1:3].any()
    copy_rows(SECRET, ints(2), out, None)
    assert out[0].tobytes() == SECRET[2:8].tobytes()


def test_rows_between_gaps_leave_the_gaps_alone(path):
    memory = np.full(64, 9, np.uint8)
    out = memory[:48].reshape(3, 16)[:, :4]
    copy_rows(SECRET, ints(0, 4, 8), out, None)
    assert out.tobytes() == SECRET[:12].tobytes()
    assert (memory[:48].reshape(3, 16)[:, 4:] == 9).all()


@pytest.mark.parametrize("offset", [-1, len(SECRET) - 5, 1 << 62])
def test_nothing_outside_the_memory_is_read(path, offset):
    with pytest.raises(ConfigError, match="not all among"):
        copy_rows(SECRET, ints(0, offset), np.zeros((2, 6), np.uint8), None)
    with pytest.raises(ConfigError, match="not all among"):
        wrong_zeros(SECRET, ints(0, offset), ints(1, offset + 6))
    with pytest.raises(ConfigError, match="not all among"):
        wrong_hashes(SECRET, ints(offset), ints(offset + 6), np.zeros(1, np.uint64), "xxh3-64")


@pytest.mark.parametrize("row", [-1, 2])
def test_nothing_outside_the_batch_is_written(path, row):
    with pytest.raises(ConfigError, match="beyond the 2 rows"):
        copy_rows(SECRET, ints(0), np.zeros((2, 6), np.uint8), ints(row))


def test_pieces_are_copied_to_the_beginnings_of_rows(path):
    out = np.zeros((3, 8), np.uint8)
    copy_values(SECRET, ints(4, 50), ints(8, 3), out, ints(2, 0))
    assert out[2].tobytes() == SECRET[4:12].tobytes()
    assert out[0].tolist() == [*SECRET[50:53].tolist(), 0, 0, 0, 0, 0]
    assert not out[1].any()


@pytest.mark.parametrize(
    ("offset", "length", "row"),
    [(-1, 3, 0), (len(SECRET) - 2, 3, 0), (0, 9, 0), (0, -1, 0), (0, 3, -1), (0, 3, 3)],
)
def test_a_piece_that_does_not_fit_is_refused(path, offset, length, row):
    out = np.zeros((3, 8), np.uint8)
    with pytest.raises(ConfigError, match="not all among|do not fit"):
        copy_values(SECRET, ints(5, offset), ints(3, length), out, ints(1, row))

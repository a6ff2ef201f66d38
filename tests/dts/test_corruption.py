"""Damage by chance: flipped bits, cut files, spliced files."""

from __future__ import annotations

import numpy as np
import pytest

from streamloader.dts import Field, ShardIndex, open_shard
from streamloader.dts.layout import Head
from streamloader.errors import ShardError


def _undetected_flips(workshop, shard):
    undetected = []
    damaged = bytearray(shard)
    for at in range(len(shard)):
        for bit in range(8):
            damaged[at] ^= 1 << bit
            try:
                workshop.check_all(damaged)
            except (ShardError, AssertionError):
                pass
            else:
                undetected.append((at, bit))
            damaged[at] ^= 1 << bit
    return undetected


def test_every_single_bit_flip_is_noticed(workshop):
    fields = {"text": Field("text", "utf8", codec="zstd"), "n": "u1"}
    shard, _ = workshop.write(fields, [{"text": "ab" * 30, "n": 1}], keys=False)
    assert len(shard) < 1000
    workshop.check_all(shard)
    assert _undetected_flips(workshop, shard) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_single_bit_flip_of_forty_records_is_noticed(workshop):
    fields = {"text": Field("text", "utf8", codec="zstd"), "data": "bytes", "label": "i8"}
    records = [
        {"text": f"caption {i} " * (i % 9), "data": bytes(range(i * 3)), "label": i}
        for i in range(40)
    ]
    shard, _ = workshop.write(fields, records, names=[f"{i}.jpg" for i in range(40)])
    assert 8 * len(shard) > 68_352
    assert _undetected_flips(workshop, shard) == []


def test_flips_in_the_gap_before_the_tail_are_noticed(workshop):
    shard, summary = workshop.write({"d": "bytes"}, [{"d": b"12345"}], sample_align=1, keys=False)
    end = summary.bytes - summary.tail_bytes
    gap = range(64 + 5, end)
    assert len(gap) > 0
    for at in gap:
        damaged = bytearray(shard)
        damaged[at] ^= 1
        with pytest.raises(AssertionError, match="padding is not zero"):
            workshop.check_all(damaged)


def test_flips_in_the_padding_behind_the_head_are_noticed(workshop):
    shard, _ = workshop.write({"d": "bytes"}, [{"d": b"12345"}], sample_align=4096)
    for at in (64, 100, 4095):
        damaged = bytearray(shard)
        damaged[at] ^= 0x10
        with pytest.raises(ShardError, match="padding behind the head"):
            workshop.check_all(damaged)


def test_every_truncation_is_rejected(workshop, small_shard):
    for length in range(len(small_shard)):
        cut = small_shard[:length]
        with pytest.raises(ShardError):
            workshop.check_all(cut)
        with pytest.raises(ShardError):
            workshop.check_all(cut, file_bytes=len(small_shard))
        with pytest.raises(ShardError):
            open_shard(lambda o, n, cut=cut: cut[o : o + n], len(small_shard), "x.dts")


def test_bytes_added_at_either_end_are_rejected(workshop, small_shard):
    for grown in (small_shard + b"\0", small_shard + b"\0" * 64, b"\0" * 64 + small_shard):
        with pytest.raises(ShardError):
            workshop.check_all(grown)


def test_head_of_another_shard_is_noticed_by_its_uuid(workshop, small_shard):
    index = ShardIndex.parse(small_shard, name="x.dts", file_bytes=len(small_shard))
    with pytest.raises(ShardError, match="uuids differ"):
        index.check_head(Head(b"\x01" * 16, 64).pack())


def test_a_fault_names_record_field_and_offset(workshop, small_shard):
    index = ShardIndex.parse(small_shard, name="x.dts", file_bytes=len(small_shard))
    offsets, lengths = index.field_ranges("caption", 2, 1)
    damaged = bytearray(small_shard)
    damaged[int(offsets[0]) + int(lengths[0]) - 1] ^= 1
    (fault,) = index.verify_records(0, 3, damaged, 0)
    assert (fault.sample_in_shard, fault.field, fault.offset) == (2, "caption", int(offsets[0]))
    assert fault.reason == "checksum does not match"


def test_records_verify_from_any_window_that_holds_them(workshop, small_shard):
    index = ShardIndex.parse(small_shard, name="x.dts", file_bytes=len(small_shard))
    for first in range(3):
        for count in range(4 - first):
            start, end = int(index.offsets[first]), int(index.offsets[first + count])
            window = np.frombuffer(small_shard[start:end], dtype=np.uint8)
            assert index.verify_records(first, count, memoryview(window), start) == []
            if end > start:
                short = small_shard[start : end - 1]
                with pytest.raises(ShardError, match="need bytes"):
                    index.verify_records(first, count, short, start)


def test_error_of_a_damaged_shard_names_the_shard(small_shard):
    damaged = bytearray(small_shard)
    damaged[-70] ^= 1
    with pytest.raises(ShardError, match=r"^train-00000\.dts at byte \d+: ") as caught:
        ShardIndex.parse(damaged, name="train-00000.dts", file_bytes=len(damaged))
    assert caught.value.shard == "train-00000.dts"
    assert caught.value.offset is not None

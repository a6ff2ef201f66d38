"""Block arithmetic against a slow model that knows every sample's bytes."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from streamloader.dts import (
    BlockTable,
    Manifest,
    Schema,
    ShardEntry,
    ShardSpan,
    Sidecar,
    SidecarEntry,
    SplitEntry,
    build_sidecar,
)
from streamloader.errors import ConfigError, ShardError

TAIL = 640


def _data_set(shard_lengths, block_samples, splits=None, align=64):
    """Manifest, sidecar and per-shard offsets of shards with records of the given lengths."""
    start = max(64, align)
    offsets = []
    for lengths in shard_lengths:
        extents = [-(-length // align) * align for length in lengths]
        offsets.append(
            np.array([start, *itertools.accumulate(extents, initial=start)][1:], np.uint64)
        )
    runs = splits or {}
    starts = [run.first_shard for run in runs.values()] or [0]
    sidecar, longest = build_sidecar(offsets, block_samples, starts)
    shards = [
        ShardEntry(
            name=f"{i}.dts",
            bytes=-(-int(o[-1]) // 64) * 64 + TAIL,
            samples=len(o) - 1,
            tail_bytes=TAIL,
            uuid=bytes(16),
            tail_crc32=0,
            sha256="00" * 32,
        )
        for i, o in enumerate(offsets)
    ]
    manifest = Manifest(
        dataset_uuid=bytes(16),
        rev=1,
        schemas=(Schema.of({"d": "bytes"}),),
        shards=shards,
        splits=runs,
        block_samples=block_samples,
        max_block_bytes=longest,
        max_record_bytes=4096,
        sidecar=SidecarEntry("offsets-000001.bin", sidecar.sha256),
        sample_align=align,
    )
    return manifest, sidecar, offsets


def _spans_by_hand(samples):
    """[(shard, place in shard)] -> runs."""
    spans = []
    for shard, place in samples:
        if spans and spans[-1].shard == shard:
            spans[-1] = ShardSpan(shard, spans[-1].first, spans[-1].count + 1)
        else:
            spans.append(ShardSpan(shard, place, 1))
    return spans


def _check_split(manifest, sidecar, offsets, split, shards):
    table = BlockTable(manifest, sidecar, split)
    samples = [(s, i) for s in shards for i in range(len(offsets[s]) - 1)]
    k = manifest.block_samples
    assert table.num_samples == len(samples)
    assert table.num_blocks == len(range(0, len(samples), k)) == len(table.block_bytes)
    for first in range(len(samples) + 1):
        for count in (0, 1, 2, k, len(samples) - first):
            if first + count <= len(samples):
                expected = _spans_by_hand(samples[first : first + count])
                assert table.locate(first, count) == expected
    for block in range(table.num_blocks):
        first, count = table.samples_of(block)
        assert (first, count) == (block * k, min(k, len(samples) - block * k))
        spans = table.locate(first, count)
        parts = table.block_span_bytes(block)
        assert [part[0] for part in parts] == [span.shard for span in spans]
        for span, (shard, offset, length) in zip(spans, parts, strict=True):
            end = int(offsets[shard][span.first + span.count])
            assert offset == int(offsets[shard][span.first])
            gap = -end % 64 if span.first + span.count == len(offsets[shard]) - 1 else 0
            assert length == end - offset + gap
        assert sum(length for _, _, length in parts) == table.block_bytes[block]
    assert table.block_bytes.dtype == np.int64
    return table


@pytest.mark.parametrize("block_samples", [1, 2, 3, 5, 100])
@pytest.mark.parametrize("align", [1, 64, 512])
@pytest.mark.parametrize(
    "counts", [[0], [1], [5], [3, 4], [1, 1, 1, 1, 1], [2, 0, 3], [0, 4], [4, 0], [7, 2, 1, 6]]
)
def test_blocks_agree_with_counting_by_hand(counts, align, block_samples):
    lengths = iter(itertools.cycle([70, 0, 500, 64, 1, 129]))
    shard_lengths = [[next(lengths) for _ in range(count)] for count in counts]
    data_set = _data_set(shard_lengths, block_samples, align=align)
    table = _check_split(*data_set, None, range(len(counts)))
    assert table.block_bytes.sum() == sum(
        -(-int(o[-1]) // 64) * 64 - int(o[0]) for o in data_set[2]
    )
    assert data_set[0].max_block_bytes == (table.block_bytes.max() if table.num_blocks else 0)


@pytest.mark.parametrize("block_samples", [1, 2, 3, 4, 50])
def test_the_grid_starts_anew_with_each_split(block_samples):
    splits = {"val": SplitEntry(2, 1), "train": SplitEntry(0, 2), "test": SplitEntry(3, 2)}
    shard_lengths = [[70] * 3, [10] * 4, [99] * 5, [], [5] * 2]
    manifest, sidecar, offsets = _data_set(shard_lengths, block_samples, splits)
    tables = {
        name: _check_split(
            manifest,
            sidecar,
            offsets,
            name,
            range(run.first_shard, run.first_shard + run.num_shards),
        )
        for name, run in splits.items()
    }
    assert sum(t.num_blocks for t in tables.values()) == sidecar.num_blocks == manifest.num_blocks


def test_a_split_must_be_chosen_where_there_are_some():
    splits = {"train": SplitEntry(0, 1), "val": SplitEntry(1, 1)}
    manifest, sidecar, _ = _data_set([[1], [2]], 1, splits)
    with pytest.raises(ConfigError, match="splits train, val"):
        BlockTable(manifest, sidecar)
    with pytest.raises(ConfigError, match="no split 'test': it has train, val"):
        BlockTable(manifest, sidecar, "test")
    manifest, sidecar, _ = _data_set([[1], [2]], 1)
    with pytest.raises(ConfigError, match="has none"):
        BlockTable(manifest, sidecar, "train")


def test_samples_and_blocks_beyond_the_split_are_refused():
    manifest, sidecar, _ = _data_set([[1] * 5], 2)
    table = BlockTable(manifest, sidecar)
    for first, count in ((0, 6), (5, 1), (-1, 1), (0, -1)):
        with pytest.raises(ConfigError, match="not all among 5"):
            table.locate(first, count)
    for block in (-1, 3):
        with pytest.raises(ConfigError, match="no block"):
            table.block_span_bytes(block)


@pytest.mark.parametrize("value", [0, 65, 2**63, 2**64 - 64, 10_000])
@pytest.mark.parametrize("block", [0, 1, 2])
def test_a_sidecar_that_contradicts_the_manifest_is_refused(block, value):
    manifest, sidecar, _ = _data_set([[70] * 3, [70] * 3], 2)
    offsets = sidecar.offsets.copy()
    offsets[block] = value
    with pytest.raises(ShardError, match="block"):
        BlockTable(manifest, Sidecar.build(offsets))


def test_a_sidecar_of_other_length_is_refused():
    manifest, sidecar, _ = _data_set([[70] * 3], 2)
    with pytest.raises(ShardError, match="has 3 blocks, the manifest implies 2"):
        BlockTable(manifest, Sidecar.build([*sidecar.offsets, 64]))


def test_a_block_longer_than_the_manifest_states_is_refused():
    manifest, sidecar, _ = _data_set([[70] * 3], 2)
    with pytest.raises(ShardError, match="at most 255"):
        BlockTable(replace(manifest, max_block_bytes=255), sidecar)


def test_every_flip_cut_and_extension_of_a_sidecar_is_refused():
    data = Sidecar.build([64, 1000, 2**40]).to_bytes()
    assert Sidecar.parse(data, "s", expected_blocks=3).offsets.tolist() == [64, 1000, 2**40]
    for at in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            with pytest.raises(ShardError):
                Sidecar.parse(damaged, "s")
        with pytest.raises(ShardError):
            Sidecar.parse(data[:at], "s")
    with pytest.raises(ShardError):
        Sidecar.parse(data + b"\0" * 8, "s")


def test_another_sidecar_than_the_manifests_is_refused():
    sidecar = Sidecar.build([64])
    assert Sidecar.parse(sidecar.to_bytes(), "s", expected_sha256=sidecar.sha256).num_blocks == 1
    with pytest.raises(ShardError, match="SHA-256"):
        Sidecar.parse(sidecar.to_bytes(), "s", expected_sha256="00" * 32)
    with pytest.raises(ShardError, match="implies 2"):
        Sidecar.parse(sidecar.to_bytes(), "s", expected_blocks=2)


def test_a_sidecar_is_read_without_a_copy():
    data = Sidecar.build(range(100)).to_bytes()
    offsets = Sidecar.parse(data, "s").offsets
    assert not offsets.flags.owndata
    assert not offsets.flags.writeable

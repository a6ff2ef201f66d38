"""Batches that the training loop keeps: never overwritten, then growth, then a clear error."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from streamloader import ConfigError, RandomResizedCrop, StreamLoader
from streamloader.transfer import RingExhausted


def loader(dataset, **options):
    wanted = {"batch_size": 4, "transform": RandomResizedCrop(32), "device": "cpu"}
    return StreamLoader(str(dataset), **{**wanted, **options})


def least_limit(dataset, **options):
    """The smallest memory_limit that the loader takes."""
    with pytest.raises(ConfigError) as refused:
        loader(dataset, memory_limit=1000, **options)
    return int(str(refused.value).split("at least ")[1].split(", or")[0].replace(",", ""))


def digest(batch):
    sha = hashlib.sha256()
    for name in sorted(batch):
        sha.update(np.ascontiguousarray(batch[name].numpy()).tobytes())
    return sha.hexdigest()


@pytest.mark.parametrize("held_count", [1, 3, 100])
def test_held_batches_keep_every_byte_while_others_come(pictures, held_count):
    with loader(pictures, shuffle=True, prefetch_batches=1) as stream:
        held: list = []
        for _ in range(8):
            for batch in stream:
                held.append((batch, digest(batch)))
                if len(held) > held_count:
                    old, was = held.pop(0)
                    assert digest(old) == was
        slots = stream.stats()["memory_bytes"]["used"]["slots"]
        assert all(digest(batch) == was for batch, was in held)
        per_slot = stream.stats()["memory_bytes"]["plan"]["slots"] / 3
    assert slots >= min(held_count, 100) * per_slot


def test_holding_more_than_the_limit_allows_is_an_error_that_names_it(pictures):
    limit = least_limit(pictures, prefetch_batches=1) + 50_000
    with loader(pictures, prefetch_batches=1, memory_limit=limit) as stream:
        held = []

        def hold_all():
            for batch in stream:
                held.append((batch, digest(batch)))

        with pytest.raises(RingExhausted, match=rf"memory_limit \({limit:,} bytes\)") as raised:
            hold_all()
        assert f"holds {len(held)} batches" in str(raised.value)
        assert all(digest(batch) == was for batch, was in held)
        used = stream.stats()["memory_bytes"]["used"]
        assert used["slots"] + used["blocks_peak"] + used["tails"] <= limit
        held.clear()
        assert sum(int(batch["valid"].sum()) for batch in stream) == 83


def test_a_slice_of_one_tensor_keeps_its_batch(pictures):
    with loader(pictures, prefetch_batches=1) as stream:
        slices = []
        for _ in range(3):
            for batch in stream:
                piece = batch["image"][1, 2, 3:9]
                slices.append((piece, piece.clone()))
        assert all(bool((piece == copy).all()) for piece, copy in slices)

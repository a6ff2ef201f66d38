"""Decides which sample goes where, from the listing alone: before any sample is read.

So the same source with the same options gives the same shards, whatever is rejected later and
however many threads or machines work.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamloader.convert.options import SAMPLE_ALIGN, ConvertOptions
from streamloader.convert.sources import Int64Array, Listing, SplitListing
from streamloader.dts import Schema, canonical_json, shard_uuid
from streamloader.order import derive_key, random_u64

# A change of any rule here or in the pipeline that changes shards needs a new number.
RULES_VERSION = 1

#: Groups of samples that can only be read together are shuffled in runs of about this size.
WINDOW_BYTES = 64 << 20

_SHUFFLE_DOMAIN = 0x636F6E76657274
_WINDOW_DOMAIN = 0x77696E646F77


@dataclass(frozen=True, slots=True, eq=False)
class ShardPlan:
    """One shard before it is written.

    Args:
        name: its file name.
        split: place of its split in the listing.
        order: int64, places in the split in the order they are stored.
        uuid: 16 bytes that name its content.
    """

    name: str
    split: int
    order: Int64Array
    uuid: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A conversion before it begins.

    Args:
        shards: in the order of the data set.
        block_samples: samples per block.
        digest: hex; equal for two conversions if all they write is equal.
    """

    shards: tuple[ShardPlan, ...]
    block_samples: int
    digest: str


def plan_shards(
    listing: Listing,
    schema: Schema,
    options: ConvertOptions,
    *,
    block_samples: int | None = None,
    revision: int = 1,
) -> Plan:
    """Order the samples of each split and cut them into shards.

    Args:
        listing: of the source.
        schema: of the shards.
        options: of the conversion.
        block_samples: of the data set that is appended to; None takes that of the options.
        revision: which the shards belong to; later ones than the first are in their names.
    """
    if block_samples is None:
        block_samples = options.cut.samples_per_block(listing.total_bytes, listing.num_samples)
    shaping = canonical_json(
        {
            "classes": list(listing.classes),
            "decode_check": options.decode_check,
            "export_seed": options.shuffle_seed,
            "rules": RULES_VERSION,
            "sample_align": SAMPLE_ALIGN,
            "schema": schema.to_json().decode("utf-8"),
            "shard_bytes": options.cut.shard_limit,
            **options.encoding.shaping(schema),
            **options.pictures.shaping(),
        }
    )
    shards = []
    for number, split in enumerate(listing.splits):
        order = storage_order(split, options.shuffle_seed)
        pieces = cut_into_shards(split.sizes[order], options.cut.shard_limit)
        for place, piece in enumerate(pieces):
            name = _shard_name(split.name, revision, place)
            uuid = shard_uuid(shaping, _keys_and_sizes(split, order[piece]))
            shards.append(ShardPlan(name, number, order[piece], uuid))
    contents: Mapping[str, Any] = {
        "block_samples": block_samples,
        "classes": list(listing.classes),
        "revision": revision,
        "shards": [[shard.name, shard.uuid.hex()] for shard in shards],
    }
    digest = hashlib.sha256(canonical_json(contents)).hexdigest()
    return Plan(tuple(shards), block_samples, digest)


def storage_order(split: SplitListing, seed: int | None) -> Int64Array:
    """Return the places of the listing in the order they are stored, int64 ``[num_samples]``.

    Sorted by keyed 64-bit hashes of the places, which are distinct for one key: no generator
    whose stream could change with a library's version. Where samples come in groups, the groups
    are ordered that way, joined to windows of ``WINDOW_BYTES``, and the samples within each.
    """
    places = np.arange(len(split.keys), dtype=np.int64)
    if seed is None:
        return places
    hashes = random_u64(derive_key(_SHUFFLE_DOMAIN, RULES_VERSION, seed), places)
    if split.groups is None:
        return np.argsort(hashes, kind="stable").astype(np.int64, copy=False)
    window = _windows(split.groups, split.sizes, seed)
    return np.lexsort((hashes, window)).astype(np.int64, copy=False)


def _windows(starts: Int64Array, sizes: Int64Array, seed: int) -> Int64Array:
    """Return for each sample the number of the window that it is shuffled in."""
    numbers = np.arange(len(starts), dtype=np.int64)
    hashes = random_u64(derive_key(_WINDOW_DOMAIN, RULES_VERSION, seed), numbers)
    order = np.argsort(hashes, kind="stable")
    group_bytes = np.add.reduceat(sizes, starts) if len(starts) else sizes
    window = np.empty(len(starts), dtype=np.int64)
    current, filled = 0, 0
    for group in order.tolist():
        if filled and filled + int(group_bytes[group]) > WINDOW_BYTES:
            current, filled = current + 1, 0
        window[group] = current
        filled += int(group_bytes[group])
    lengths = np.diff(np.append(starts, len(sizes)))
    return np.repeat(window, lengths)


def cut_into_shards(sizes: Int64Array, shard_bytes: int) -> list[slice]:
    """Cut records of these sizes into runs of at most ``shard_bytes``, at least one record each."""
    ends = np.cumsum(-(-sizes // SAMPLE_ALIGN) * SAMPLE_ALIGN)
    pieces = []
    first, start_byte = 0, 0
    while first < len(sizes):
        stop = int(np.searchsorted(ends, start_byte + shard_bytes, side="right"))
        stop = max(stop, first + 1)
        pieces.append(slice(first, stop))
        first, start_byte = stop, int(ends[stop - 1])
    return pieces


def _shard_name(split: str | None, revision: int, place: int) -> str:
    prefix = f"{split}-" if split else ""
    addition = f"r{revision:06d}-" if revision > 1 else ""
    return f"{prefix}{addition}{place:05d}.dts"


def _keys_and_sizes(split: SplitListing, order: Int64Array) -> Iterator[tuple[str, int]]:
    sizes = split.sizes
    return ((split.keys[place], int(sizes[place])) for place in order.tolist())

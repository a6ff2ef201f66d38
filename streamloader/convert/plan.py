"""Decides which sample goes where, from the listing alone: before any file is read.

So the same folder with the same options gives the same shards, whatever is rejected later and
however many threads work.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamloader.convert.folder import PictureFile
from streamloader.convert.layout import Source, SplitSource
from streamloader.convert.options import SAMPLE_ALIGN, ConvertOptions
from streamloader.convert.report import utf8_name
from streamloader.dts import Schema, canonical_json, shard_uuid
from streamloader.order import derive_key, random_u64

# A change of any rule here or in the pipeline that changes shards needs a new number.
RULES_VERSION = 1

_SHUFFLE_DOMAIN = 0x636F6E76657274

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """One shard before it is written.

    Args:
        name: its file name.
        split: the split it belongs to.
        order: int64, places in ``split.pictures`` in the order they are stored.
        uuid_options: bytes of everything besides keys and sizes that shapes the shard.
    """

    name: str
    split: SplitSource
    order: Int64Array
    uuid_options: bytes

    def samples(self) -> Iterator[tuple[PictureFile, int | None]]:
        """Yield each picture and its label, in the order they are stored."""
        labels = self.split.labels
        for place in self.order.tolist():
            yield self.split.pictures[place], None if labels is None else int(labels[place])

    def uuid(self) -> bytes:
        """Return the 16 bytes that name the shard's content."""
        keys = ((picture.path, picture.size) for picture, _ in self.samples())
        return shard_uuid(self.uuid_options, keys)


def plan_shards(source: Source, schema: Schema, options: ConvertOptions) -> list[ShardPlan]:
    """Order the pictures of each split and cut them into shards."""
    uuid_options = canonical_json(
        {
            "classes": [utf8_name(name) for name in source.classes],
            "decode_check": options.decode_check,
            "export_seed": options.shuffle_seed,
            "rules": RULES_VERSION,
            "sample_align": SAMPLE_ALIGN,
            "schema": schema.to_json().decode("utf-8"),
            "shard_bytes": options.cut.shard_limit,
            **options.encoding.shaping(schema),
        }
    )
    plans = []
    for split in source.splits:
        order = storage_order(len(split.pictures), options.shuffle_seed)
        sizes = np.fromiter((p.size for p in split.pictures), np.int64, len(split.pictures))
        pieces = cut_into_shards(sizes[order], options.cut.shard_limit)
        prefix = f"{split.name}-" if split.name else ""
        for number, piece in enumerate(pieces):
            name = f"{prefix}{number:05d}.dts"
            plans.append(ShardPlan(name, split, order[piece], uuid_options))
    return plans


def storage_order(num_samples: int, seed: int | None) -> Int64Array:
    """Return the places of the listing in the order they are stored, int64 ``[num_samples]``.

    Sorted by keyed 64-bit hashes of the places, which are distinct for one key: no generator
    whose stream could change with a library's version.
    """
    places = np.arange(num_samples, dtype=np.int64)
    if seed is None:
        return places
    hashes = random_u64(derive_key(_SHUFFLE_DOMAIN, RULES_VERSION, seed), places)
    return np.argsort(hashes, kind="stable").astype(np.int64, copy=False)


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

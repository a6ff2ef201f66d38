"""Where shards stand in their split, and which blocks start in them.

A block is ``block_samples`` consecutive samples of one split: blocks are counted from the start
of each split and run across the borders of its shards.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamloader.dts import Manifest


@dataclass(frozen=True, slots=True)
class ShardPlace:
    """Where a shard stands in its split.

    Args:
        shard: its number in the manifest.
        num_samples: samples in it.
        first_sample: number in the split of its first sample.
        first_block: number in the sidecar of the first block that starts in it.
    """

    shard: int
    num_samples: int
    first_sample: int
    first_block: int

    def block_samples_inside(self, block_samples: int) -> range:
        """Return the samples of the shard, counted in the shard, at which blocks start."""
        return range(-self.first_sample % block_samples, self.num_samples, block_samples)


def shard_places(manifest: Manifest) -> list[ShardPlace]:
    """Return where each shard of a manifest stands, in the order of the manifest."""
    counts = manifest.shard_samples.tolist()
    split_firsts = {run.first_shard for run in manifest.split_runs}
    places: list[ShardPlace] = []
    first_sample = first_block = 0
    for shard, num_samples in enumerate(counts):
        if shard in split_firsts:
            first_sample = 0
        place = ShardPlace(shard, num_samples, first_sample, first_block)
        places.append(place)
        first_sample += num_samples
        first_block += len(place.block_samples_inside(manifest.block_samples))
    return places

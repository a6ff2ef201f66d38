"""Arithmetic of blocks: which samples and which bytes of which shards a block is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamloader.dts.manifest import Manifest, SplitEntry
from streamloader.dts.sidecar import Sidecar
from streamloader.errors import ConfigError, ShardError


@dataclass(frozen=True, slots=True)
class ShardSpan:
    """A run of samples of one shard.

    Args:
        shard: place of the shard in the manifest.
        first: first sample, counted in the shard.
        count: number of samples, 1 or more.
    """

    shard: int
    first: int
    count: int


class BlockTable:
    """The blocks of one split; samples and blocks are counted from the split's start.

    A block is `block_samples` consecutive samples of the split, the last one may be shorter.
    Where it crosses the end of a shard it consists of several spans. All of it follows from
    manifest and sidecar; no shard is read.

    Args:
        manifest: of the data set.
        sidecar: that belongs to it.
        split: name of a split; None for a data set without splits.

    Raises:
        ConfigError: when `split` is not one of the manifest's, or missing where there are some.
        ShardError: when sidecar and manifest contradict each other.
    """

    def __init__(self, manifest: Manifest, sidecar: Sidecar, split: str | None = None) -> None:
        run = _find_run(manifest, split)
        self.manifest = manifest
        self.split = split
        self.block_samples = manifest.block_samples
        self.num_samples = manifest.run_samples(run)
        self.num_blocks = manifest.run_blocks(run)
        self._first_shard = run.first_shard
        shards = slice(run.first_shard, run.first_shard + run.num_shards)
        self._sample_starts = _prefix_sum(manifest.shard_samples[shards])
        self._payload_ends = (manifest.shard_bytes - manifest.tail_bytes)[shards]
        self._byte_starts = _prefix_sum(self._payload_ends - manifest.data_offset)
        self._offsets = self._own_offsets(sidecar, run)
        self._block_bytes: npt.NDArray[np.int64] | None = None
        self._check()

    def _own_offsets(self, sidecar: Sidecar, run: SplitEntry) -> npt.NDArray[np.uint64]:
        manifest = self.manifest
        if sidecar.num_blocks != manifest.num_blocks:
            raise self._fault(
                f"sidecar has {sidecar.num_blocks} blocks, the manifest implies "
                f"{manifest.num_blocks}"
            )
        before = [other for other in manifest.split_runs if other.first_shard < run.first_shard]
        first = sum(manifest.run_blocks(other) for other in before)
        return sidecar.offsets[first : first + self.num_blocks]

    def _check(self) -> None:
        """Blocks start inside their shards, in order, none longer than the manifest states."""
        samples = np.diff(self._sample_starts)
        stray = (samples == 0) & (np.diff(self._byte_starts) != 0)
        if stray.any():
            shard = self._first_shard + int(np.argmax(stray))
            raise self._fault(f"shard {shard} has payload and no samples")
        if not self.num_blocks:
            return
        shards = self._shards_of_blocks()
        starts = self._offsets
        low, high = self.manifest.data_offset, self._payload_ends[shards].astype(np.uint64)
        first_of_shard = self._block_starts() == self._sample_starts[shards]
        outside = (starts < low) | (starts > high) | (starts % self.manifest.sample_align != 0)
        outside |= first_of_shard & (starts != low)
        if outside.any():
            block = int(np.argmax(outside))
            at = int(starts[block])
            raise self._fault(f"block {block} starts at byte {at}, where its shard has no record")
        lengths = self.block_bytes
        if int(lengths.min()) < 0:
            raise self._fault(f"block {int(np.argmin(lengths))} starts behind its end")
        if int(lengths.max()) > self.manifest.max_block_bytes:
            raise self._fault(
                f"block {int(np.argmax(lengths))} has {int(lengths.max())} bytes, the manifest "
                f"states at most {self.manifest.max_block_bytes}"
            )

    def _fault(self, reason: str) -> ShardError:
        return ShardError(reason, shard=self.manifest.sidecar.name)

    def _block_starts(self) -> npt.NDArray[np.int64]:
        return np.arange(self.num_blocks, dtype=np.int64) * self.block_samples

    def _shards_of_blocks(self) -> npt.NDArray[np.int64]:
        """Place in the split of the shard that holds each block's first sample."""
        return np.searchsorted(self._sample_starts, self._block_starts(), side="right") - 1

    @property
    def block_bytes(self) -> npt.NDArray[np.int64]:
        """int64 [num_blocks], payload bytes of each block, padding included."""
        if self._block_bytes is None:
            shards = self._shards_of_blocks()
            inside = self._offsets.astype(np.int64) - self.manifest.data_offset
            bounds = np.append(self._byte_starts[shards] + inside, self._byte_starts[-1])
            lengths = np.diff(bounds)
            lengths.flags.writeable = False
            self._block_bytes = lengths
        return self._block_bytes

    def samples_of(self, block: int) -> tuple[int, int]:
        """(first sample, number of samples) of a block."""
        if not 0 <= block < self.num_blocks:
            raise ConfigError(f"no block {block}: there are {self.num_blocks}")
        first = block * self.block_samples
        return first, min(self.block_samples, self.num_samples - first)

    def locate(self, first_sample: int, count: int) -> list[ShardSpan]:
        """Where `count` samples from `first_sample` on lie, shard by shard.

        Raises:
            ConfigError: when they are not all in the split.
        """
        if count < 0 or not 0 <= first_sample <= self.num_samples - count:
            raise ConfigError(
                f"samples {first_sample} to {first_sample + count} are not all among "
                f"{self.num_samples}"
            )
        spans: list[ShardSpan] = []
        place = int(self._sample_starts.searchsorted(first_sample, side="right")) - 1
        while count:
            start, end = int(self._sample_starts[place]), int(self._sample_starts[place + 1])
            taken = min(count, end - first_sample)
            if taken:
                spans.append(ShardSpan(self._first_shard + place, first_sample - start, taken))
            first_sample += taken
            count -= taken
            place += 1
        return spans

    def block_span_bytes(self, block: int) -> list[tuple[int, int, int]]:
        """(shard, offset, length) in bytes of each span of a block, in order.

        One for each `ShardSpan` that `locate` gives for the samples of the block; a length is 0
        where the records of a span hold no payload.
        """
        parts = []
        for i, span in enumerate(self.locate(*self.samples_of(block))):
            place = span.shard - self._first_shard
            start = int(self._offsets[block]) if i == 0 else self.manifest.data_offset
            shard_samples = self._sample_starts[place + 1] - self._sample_starts[place]
            if span.first + span.count == shard_samples:
                end = int(self._payload_ends[place])
            else:
                end = int(self._offsets[block + 1])
            parts.append((span.shard, start, end - start))
        return parts


def _find_run(manifest: Manifest, split: str | None) -> SplitEntry:
    names = ", ".join(sorted(manifest.splits))
    if split is None:
        if manifest.splits:
            raise ConfigError(f"the data set has the splits {names}; choose one with split=")
        return manifest.split_runs[0]
    if split not in manifest.splits:
        known = f"it has {names}" if names else "it has none; leave out split="
        raise ConfigError(f"the data set has no split {split!r}: {known}")
    return manifest.splits[split]


def _prefix_sum(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(values, dtype=np.int64)])

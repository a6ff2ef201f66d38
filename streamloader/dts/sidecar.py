"""The sidecar: where each block starts, so that a cold block needs no shard's tail first."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import xxhash

from streamloader.dts.layout import SECTION_ALIGN, align_up, byte_view
from streamloader.errors import ConfigError, ShardError

if TYPE_CHECKING:
    from typing_extensions import Buffer

SIDECAR_MAGIC: Final = b"DTSBLK1\0"
_HEADER_BYTES: Final = 16
_HASH_BYTES: Final = 8


@dataclass(frozen=True, slots=True, eq=False)
class Sidecar:
    """Offsets of block starts.

    Args:
        offsets: uint64 [num_blocks], byte offset of each block's start in the shard that
            holds its first sample; the splits' blocks one after the other, in shard order.
    """

    offsets: npt.NDArray[np.uint64]

    @classmethod
    def build(cls, block_offsets: npt.ArrayLike) -> Sidecar:
        """Sidecar of the given offsets."""
        array = np.array(block_offsets, dtype="<u8").reshape(-1)
        array.flags.writeable = False
        return cls(array)

    @property
    def num_blocks(self) -> int:
        return len(self.offsets)

    def to_bytes(self) -> bytes:
        """Content of ``offsets-<rev>.bin``: magic, count, offsets, XXH3-64 of all before."""
        body = b"".join(
            (
                SIDECAR_MAGIC,
                struct.pack("<Q", self.num_blocks),
                self.offsets.astype("<u8", copy=False).tobytes(),
            )
        )
        return body + struct.pack("<Q", xxhash.xxh3_64_intdigest(body))

    @property
    def sha256(self) -> str:
        """Digest of `to_bytes`, as the manifest states it."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    @classmethod
    def parse(
        cls,
        data: Buffer,
        name: str = "sidecar",
        *,
        expected_sha256: str | None = None,
        expected_blocks: int | None = None,
    ) -> Sidecar:
        """Sidecar from its bytes, without a copy.

        Args:
            data: the object's content; kept alive by the result.
            name: how errors call it.
            expected_sha256: digest that the manifest states.
            expected_blocks: number of blocks that the manifest implies.

        Raises:
            ShardError: when the bytes are not the expected or not a valid sidecar.
        """
        view = byte_view(data)
        end = view.nbytes - _HASH_BYTES
        if end < _HEADER_BYTES or bytes(view[:8]) != SIDECAR_MAGIC:
            raise ShardError("is not a sidecar of block offsets", shard=name, offset=0)
        (count,) = struct.unpack_from("<Q", view, 8)
        if count * 8 != end - _HEADER_BYTES:
            raise ShardError(
                f"sidecar states {count} blocks in {view.nbytes} bytes", shard=name, offset=8
            )
        if struct.unpack_from("<Q", view, end)[0] != xxhash.xxh3_64_intdigest(view[:end]):
            raise ShardError("checksum of the sidecar does not match", shard=name, offset=end)
        if expected_sha256 is not None:
            digest = hashlib.sha256(view).hexdigest()
            if digest != expected_sha256:
                raise ShardError(
                    f"sidecar has SHA-256 {digest}, the manifest states {expected_sha256}",
                    shard=name,
                )
        if expected_blocks is not None and count != expected_blocks:
            raise ShardError(
                f"sidecar has {count} blocks, the manifest implies {expected_blocks}",
                shard=name,
                offset=8,
            )
        return cls(np.frombuffer(view[_HEADER_BYTES:end], dtype="<u8"))


def build_sidecar(
    shard_offsets: Iterable[npt.NDArray[np.uint64]],
    block_samples: int,
    split_starts: Collection[int] = (0,),
) -> tuple[Sidecar, int]:
    """Sidecar and `max_block_bytes` of a data set.

    Args:
        shard_offsets: of each shard, in data set order, uint64 [samples + 1] as
            `ShardSummary.offsets`; taken one by one, none is kept.
        block_samples: samples of a block.
        split_starts: the shards that splits start with; the grid of blocks starts anew there.

    Raises:
        ConfigError: for block_samples below 1.
    """
    if block_samples < 1:
        raise ConfigError(f"block_samples must be 1 or more, got {block_samples}")
    starts = set(split_starts)
    pieces: list[npt.NDArray[np.uint64]] = []
    linear: list[npt.NDArray[np.int64]] = []
    position = 0
    payload_bytes = 0
    for shard, offsets in enumerate(shard_offsets):
        if shard in starts:
            position = 0
        samples = len(offsets) - 1
        firsts = offsets[-position % block_samples : samples : block_samples]
        pieces.append(np.array(firsts, dtype="<u8"))
        data_offset = int(offsets[0])
        linear.append(firsts.astype(np.int64) + (payload_bytes - data_offset))
        payload_bytes += align_up(int(offsets[-1]), SECTION_ALIGN) - data_offset
        position += samples
    block_offsets = np.concatenate([np.empty(0, "<u8"), *pieces])
    bounds = np.concatenate([*linear, np.array([payload_bytes], np.int64)])
    longest = int(np.diff(bounds).max()) if len(block_offsets) else 0
    return Sidecar.build(block_offsets), longest

"""What is known of a shard once it is written."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamloader.dts.layout import Uuid
from streamloader.dts.shard_table import ShardEntry


@dataclass(frozen=True, slots=True)
class ShardSummary:
    """What a finished shard is, for the manifest and the sidecar.

    Args:
        bytes: length of the file.
        samples: number of records.
        tail_bytes: length of the tail.
        uuid: 16 bytes.
        tail_crc32: CRC-32 of the tail.
        sha256: of the whole file, 64 hex digits.
        offsets: uint64 [samples + 1], start of each record and end of the last.
        max_record_bytes: the longest record, with its padding.
    """

    bytes: int
    samples: int
    tail_bytes: int
    uuid: Uuid
    tail_crc32: int
    sha256: str
    offsets: npt.NDArray[np.uint64]
    max_record_bytes: int

    def entry(
        self, name: str, *, schema_id: int = 0, store_checksum: str | None = None
    ) -> ShardEntry:
        """The manifest's line for this shard, stored under `name`."""
        return ShardEntry(
            name=name,
            bytes=self.bytes,
            samples=self.samples,
            tail_bytes=self.tail_bytes,
            uuid=self.uuid,
            tail_crc32=self.tail_crc32,
            sha256=self.sha256,
            schema_id=schema_id,
            store_checksum=store_checksum,
        )

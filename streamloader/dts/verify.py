"""Checks records against their hashes, and the padding between them for zeros."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from streamloader.dts.layout import byte_view
from streamloader.dts.record_bytes import wrong_hashes, wrong_zeros
from streamloader.errors import ShardError

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from streamloader.dts.index import ShardIndex


Ranges = dict[str, tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]
"""(offsets, lengths) of some records by name of the field, as `ShardIndex.record_ranges`."""


@dataclass(frozen=True, slots=True)
class RecordFault:
    """Something wrong in one record.

    Args:
        sample_in_shard: number of the record.
        field: that is damaged; empty for padding.
        offset: where it starts in the file, in bytes.
        reason: what is wrong.
    """

    sample_in_shard: int
    field: str
    offset: int
    reason: str


def verify_records(
    index: ShardIndex, first: int, count: int, data: Buffer, base: int, ranges: Ranges
) -> list[RecordFault]:
    """See `ShardIndex.verify_records`."""
    if count == 0:
        return []
    view = byte_view(data)
    start, end = int(index.offsets[first]), int(index.offsets[first + count])
    if start < base or end > base + len(view):
        raise ShardError(
            f"records {first} to {first + count} need bytes {start} to {end}, given were "
            f"{base} to {base + len(view)}",
            shard=index.name,
            offset=start,
        )
    if first + count == index.num_samples:
        # The gap before the tail belongs to no record; it is checked when it was read along.
        end = max(end, min(index.tail_offset, base + len(view)))
    memory = np.frombuffer(view, np.uint8)
    faults: list[RecordFault] = []
    edges = []
    for name, (offsets, lengths) in ranges.items():
        starts = offsets - base
        ends = starts + lengths
        hashes = index.hashes(name)[first : first + count]
        for place in wrong_hashes(memory, starts, ends, hashes, index.schema.hash).tolist():
            offset = int(offsets[place])
            faults.append(RecordFault(first + place, name, offset, "checksum does not match"))
        edges.append((starts, ends))
    return faults + _check_padding(memory, base, first, edges, end - base)


def _check_padding(
    memory: npt.NDArray[np.uint8],
    base: int,
    first: int,
    edges: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]],
    end: int,
) -> list[RecordFault]:
    """Zeros from the end of each field to the start of the next one, in file order."""
    if not edges:
        return []
    fields = len(edges)
    starts, gap_starts = edges[0]
    if fields > 1:
        starts = np.stack([field_starts for field_starts, _ in edges], axis=1).reshape(-1)
        gap_starts = np.stack([field_ends for _, field_ends in edges], axis=1).reshape(-1)
    gap_ends = np.empty_like(starts)
    gap_ends[:-1] = starts[1:]
    gap_ends[-1] = end
    return [
        RecordFault(first + gap // fields, "", base + int(gap_starts[gap]), "padding is not zero")
        for gap in wrong_zeros(memory, gap_starts, gap_ends).tolist()
    ]

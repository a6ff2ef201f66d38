"""Checks records against their hashes, and the padding between them for zeros."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from streamloader.dts.hashes import HashFunction, hash_function
from streamloader.dts.layout import byte_view
from streamloader.errors import ShardError

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from streamloader.dts.index import ShardIndex


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
    index: ShardIndex, first: int, count: int, data: Buffer, base: int
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
    faults: list[RecordFault] = []
    edges = []
    digest = hash_function(index.schema.hash)
    for field in index.schema.payload_fields:
        starts, lengths = index.field_ranges(field.name, first, count)
        hashes = index.hashes(field.name)[first : first + count]
        faults += _check_hashes(digest, view, base, first, field.name, starts, lengths, hashes)
        edges.append((starts, starts + lengths))
    return faults + _check_padding(view, base, first, edges, end)


def _check_hashes(
    digest: HashFunction,
    view: memoryview,
    base: int,
    first: int,
    field: str,
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    hashes: npt.NDArray[np.uint64],
) -> list[RecordFault]:
    begins = starts - base
    rows = zip(begins.tolist(), (begins + lengths).tolist(), hashes.tolist(), strict=True)
    bad = [
        i for i, (begin, end, expected) in enumerate(rows) if digest(view[begin:end]) != expected
    ]
    return [RecordFault(first + i, field, int(starts[i]), "checksum does not match") for i in bad]


def _check_padding(
    view: memoryview,
    base: int,
    first: int,
    edges: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]],
    end: int,
) -> list[RecordFault]:
    """Zeros from the end of each field to the start of the next one, in file order."""
    if not edges:
        return []
    fields = len(edges)
    starts = np.stack([field_starts for field_starts, _ in edges], axis=1).reshape(-1)
    gap_starts = np.stack([field_ends for _, field_ends in edges], axis=1).reshape(-1)
    gap_ends = np.append(starts[1:], end)
    lengths = gap_ends - gap_starts
    total = int(lengths.sum())
    if total == 0:
        return []
    raw = np.frombuffer(view, dtype=np.uint8)
    within = np.arange(total) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    positions = np.repeat(gap_starts - base, lengths) + within
    wrong = np.flatnonzero(raw[positions])
    if len(wrong) == 0:
        return []
    gaps = np.unique(np.repeat(np.arange(len(lengths)), lengths)[wrong])
    return [
        RecordFault(first + gap // fields, "", int(gap_starts[gap]), "padding is not zero")
        for gap in gaps.tolist()
    ]

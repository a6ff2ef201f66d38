"""Many JPEGs at once, packed as the records of a shard: nothing is done picture by picture."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamloader.dts.hashes import DEFAULT_HASH
from streamloader.dts.native_kernel import ffi, lib
from streamloader.dts.record_bytes import HASHES_NATIVELY
from streamloader.dts.schema import Schema

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class PackedJpegs:
    """JPEGs that lie one behind the other, and what the index of a shard says of them.

    Args:
        data: each picture with zeros behind it, up to the start of the next and at the end.
        offsets: int64 ``[n + 1]``, where each starts in ``data``, and its end.
        lengths: int64 ``[n]``, bytes of each without the zeros.
        hashes: uint64 ``[n]``, XXH3-64 of each.
        widths, heights: uint32 ``[n]``, as stored.
        kinds: uint16 ``[n]``; see ``PictureHeader.kind``.
    """

    data: memoryview
    offsets: Int64
    lengths: Int64
    hashes: npt.NDArray[np.uint64]
    widths: npt.NDArray[np.uint32]
    heights: npt.NDArray[np.uint32]
    kinds: npt.NDArray[np.uint16]

    def picture(self, place: int) -> memoryview:
        """Return the bytes of one."""
        start = int(self.offsets[place])
        return self.data[start : start + int(self.lengths[place])]


def takes_packed(schema: Schema) -> bool:
    """Whether records of a schema can be packed: one plain picture each, and scalar columns."""
    return (
        HASHES_NATIVELY
        and schema.hash == DEFAULT_HASH
        and [(f.type, f.codec) for f in schema.payload_fields] == [("picture", "none")]
        and all(f.shape == () for f in schema.fields)
    )


def pack_jpegs(data: memoryview, offsets: Int64, lengths: Int64) -> PackedJpegs | None:
    """Read the headers of JPEGs that are packed already, and hash them; without Python's lock.

    Args:
        data, offsets, lengths: see ``PackedJpegs``; records will be aligned as ``offsets`` are.

    Returns:
        None where one of them is no JPEG, or has something wrong with its header, or where
        nothing native was built.
    """
    if not HASHES_NATIVELY:
        return None
    count = len(lengths)
    hashes = np.empty(count, np.uint64)
    widths, heights = np.empty(count, np.uint32), np.empty(count, np.uint32)
    kinds = np.empty(count, np.uint16)
    starts, ends = np.ascontiguousarray(offsets[:-1]), offsets[:-1] + lengths
    where = (
        ffi.from_buffer("uint8_t[]", data),
        len(data),
        count,
        ffi.from_buffer("int64_t[]", starts),
        ffi.from_buffer("int64_t[]", ends),
    )
    done = lib.sl_read_jpeg_headers(
        *where,
        ffi.from_buffer("uint32_t[]", widths),
        ffi.from_buffer("uint32_t[]", heights),
        ffi.from_buffer("uint16_t[]", kinds),
    )
    if done != count or lib.sl_hash_ranges(*where, ffi.from_buffer("uint64_t[]", hashes)):
        return None
    return PackedJpegs(data, offsets, lengths, hashes, widths, heights, kinds)

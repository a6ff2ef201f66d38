"""Opens a shard through ranged reads: its head, its end, and more of the end only if needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from streamloader.dts.index import ShardIndex
from streamloader.dts.layout import HEAD_BYTES, MAX_SAMPLE_ALIGN, TRAILER_BYTES, Head
from streamloader.dts.limits import DEFAULT_LIMITS, Limits
from streamloader.dts.shard_table import ShardEntry
from streamloader.errors import ShardError

TAIL_GUESS_BYTES: Final = 64 * 1024
"""How much of a shard's end is read when nothing says how long its tail is."""

ReadAt = Callable[[int, int], bytes]
"""``read_at(offset, length)`` gives exactly that range of the file."""


def open_shard(
    read_at: ReadAt,
    file_bytes: int,
    name: str,
    entry: ShardEntry | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> ShardIndex:
    """Read and check a shard's head and tail.

    Args:
        read_at: reads a range; its own errors pass through.
        file_bytes: length of the file.
        name: of the shard, for errors.
        entry: the manifest's line for it; saves the guess at the tail's length.
        limits: bounds of the reader.

    Raises:
        ShardError: when it is not a valid shard, or not the one that `entry` states.
    """
    head = _read(read_at, 0, min(MAX_SAMPLE_ALIGN, file_bytes), name)
    Head.parse(head, name)
    if file_bytes < HEAD_BYTES + TRAILER_BYTES:
        raise ShardError(f"{file_bytes} bytes are too few for a shard", shard=name)
    wanted = TAIL_GUESS_BYTES if entry is None else min(entry.tail_bytes, limits.tail_bytes)
    start = max(0, file_bytes - max(wanted, TRAILER_BYTES))
    tail = _read(read_at, start, file_bytes - start, name)
    tail_bytes = ShardIndex.tail_bytes(tail, file_bytes, name, limits)
    if tail_bytes > len(tail):
        missing = tail_bytes - len(tail)
        tail = _read(read_at, start - missing, missing, name) + tail
    index = ShardIndex.parse(tail, name=name, file_bytes=file_bytes, entry=entry, limits=limits)
    index.check_head(head)
    return index


def _read(read_at: ReadAt, offset: int, length: int, name: str) -> bytes:
    data = read_at(offset, length)
    if len(data) != length:
        raise ShardError(
            f"read of {length} bytes gave {len(data)}: the file is shorter than stated",
            shard=name,
            offset=offset,
        )
    return data

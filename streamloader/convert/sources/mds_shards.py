"""The index and the shards of an MDS data set: which samples there are, and the bytes of one.

Layout of a shard (https://docs.mosaicml.com/projects/streaming, "dataset format"): u32 number of
samples, u32 offset of each and of the end, then JSON, then the samples.
"""

from __future__ import annotations

import json
import struct
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamloader.convert.report import utf8_name
from streamloader.convert.sources.mds_columns import MdsColumn, parse_column
from streamloader.convert.sources.places import (
    FileRange,
    Place,
    ReadRanges,
    SourceFile,
    Unreadable,
    require_bytes,
)
from streamloader.convert.sources.source import Int64Array, SplitListing
from streamloader.dts import DEFAULT_LIMITS, require_zstandard
from streamloader.errors import ConfigError

INDEX_NAME = "index.json"
_VERSION = 2
#: Shards that are compressed as a whole are held unpacked, this many at a time.
_UNPACKED_HELD = 4


@dataclass(frozen=True, slots=True, eq=False)
class MdsShard:
    """A shard.

    Args:
        file: as stored.
        raw_bytes: its length unpacked.
        packed: whether it is compressed.
        offsets: int64 ``[samples + 1]``, of the samples in the unpacked shard.
    """

    file: SourceFile
    raw_bytes: int
    packed: bool
    offsets: Int64Array

    def range_of(self, number: int) -> FileRange:
        """Where a sample is, in a shard that is not packed."""
        start, end = (int(offset) for offset in self.offsets[number : number + 2])
        return FileRange(self.file, start, end - start)


@dataclass(frozen=True, slots=True, eq=False)
class MdsSplit:
    """One index and what it names."""

    listing: SplitListing
    columns: tuple[MdsColumn, ...]
    shards: tuple[MdsShard, ...]
    firsts: Int64Array


def read_split(
    place: Place,
    read: ReadRanges,
    files: Mapping[str, SourceFile],
    name: str | None,
    index: SourceFile,
) -> MdsSplit:
    (data,) = read([FileRange.whole(index)])
    folder = index.path.removesuffix(INDEX_NAME)
    try:
        value = json.loads(require_bytes(data, place, index))
        entries = list(value["shards"])
        if value["version"] != _VERSION or not entries:
            raise ConfigError(
                f"{utf8_name(index.path)} is of version {value['version']!r} or empty; read are"
                f" data sets of version {_VERSION} with at least one shard"
            )
        columns = _columns(entries)
        shards = tuple(_read_shard(place, read, files, folder, entry) for entry in entries)
    except ConfigError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"{utf8_name(index.path)} of {utf8_name(place.url)} is no index of MDS shards:"
            f" {type(error).__name__} {error}"
        ) from error
    counts = [len(shard.offsets) - 1 for shard in shards]
    keys = [
        f"{shard.file.path}/{n}"
        for shard, count in zip(shards, counts, strict=True)
        for n in range(count)
    ]
    sizes = np.concatenate([np.diff(shard.offsets) for shard in shards])
    packed = any(shard.packed for shard in shards)
    firsts = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64)
    # Packed shards are unpacked as a whole, so their samples are best read together.
    listing = SplitListing(name, keys, sizes, groups=np.unique(firsts) if packed else None)
    return MdsSplit(listing, columns, shards, firsts)


def _columns(entries: Sequence[Mapping[str, Any]]) -> tuple[MdsColumn, ...]:
    def described(entry: Mapping[str, Any]) -> list[tuple[str, str, int | None]]:
        if entry["format"] != "mds":
            raise ConfigError(f"shards of format {entry['format']!r} are not read, only MDS")
        names, encodings = entry["column_names"], entry["column_encodings"]
        return list(zip(names, encodings, entry["column_sizes"], strict=True))

    first = described(entries[0])
    for entry in entries:
        if described(entry) != first:
            raise ConfigError("the shards of the MDS data set have different columns")
    return tuple(parse_column(name, encoding, size) for name, encoding, size in first)


def _read_shard(
    place: Place,
    read: ReadRanges,
    files: Mapping[str, SourceFile],
    folder: str,
    entry: Mapping[str, Any],
) -> MdsShard:
    samples, raw = int(entry["samples"]), entry["raw_data"]
    raw_file = files.get(folder + raw["basename"])
    zipped = entry["zip_data"]
    packed = raw_file is None and zipped is not None
    stored = zipped if packed else raw
    name = folder + stored["basename"]
    file = files.get(name)
    if file is None:
        raise ConfigError(f"the index names {utf8_name(name)}, but it is not there")
    stated = int(stored["bytes"])
    if file.size != stated:
        raise ConfigError(
            f"{utf8_name(name)} has {file.size} bytes, its index says {stated}: it is damaged"
        )
    head_bytes = 4 * (samples + 2)
    if packed:
        _require_zstd(str(entry["compression"]), name)
        (data,) = read([FileRange.whole(file)])
        head = _unpack(require_bytes(data, place, file), int(raw["bytes"]))[:head_bytes]
    else:
        (data,) = read([FileRange(file, 0, min(head_bytes, file.size))])
        head = require_bytes(data, place, file)
    return MdsShard(
        file, int(raw["bytes"]), packed, _offsets(head, samples, int(raw["bytes"]), name)
    )


def _offsets(head: bytes, samples: int, raw_bytes: int, name: str) -> Int64Array:
    if len(head) == 4 * (samples + 2) and struct.unpack_from("<I", head)[0] == samples:
        offsets = np.frombuffer(head, "<u4", samples + 1, 4).astype(np.int64)
        if (
            offsets[0] >= len(head)
            and offsets[-1] == raw_bytes
            and bool((np.diff(offsets) >= 0).all())
        ):
            return offsets
    raise ConfigError(f"{utf8_name(name)} is no MDS shard of {samples} samples, or is damaged")


class UnpackedShards:
    """Shards that are compressed as a whole, the last few used of them unpacked."""

    def __init__(self, read: ReadRanges) -> None:
        self._read = read
        self._held: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def sample(self, shard: MdsShard, number: int) -> bytes | Unreadable:
        """Return the bytes of one sample."""
        # One at a time, so that threads which need the same shard do not all unpack it.
        with self._lock:
            data = self._held.get(shard.file.path)
            if data is None:
                (packed,) = self._read([FileRange.whole(shard.file)])
                if isinstance(packed, Unreadable):
                    return packed
                data = _unpack(packed, shard.raw_bytes)
                self._held[shard.file.path] = data
                if len(self._held) > _UNPACKED_HELD:
                    self._held.popitem(last=False)
            else:
                self._held.move_to_end(shard.file.path)
        return data[int(shard.offsets[number]) : int(shard.offsets[number + 1])]


def _require_zstd(compression: str, name: str) -> None:
    if compression.split(":")[0] != "zstd":
        raise ConfigError(
            f"{utf8_name(name)} is compressed with {compression}, only zstd is read; unpack the"
            " shards first"
        )
    require_zstandard("an MDS data set compressed with zstd")


def _unpack(data: bytes, raw_bytes: int) -> bytes:
    import zstandard

    if raw_bytes > DEFAULT_LIMITS.raw_bytes:
        raise ConfigError(f"an MDS shard of {raw_bytes} bytes is too large to be unpacked")
    try:
        raw = zstandard.ZstdDecompressor().decompress(data, max_output_size=raw_bytes)
    except zstandard.ZstdError as error:
        raise ConfigError(f"an MDS shard cannot be unpacked: {error}") from error
    if len(raw) != raw_bytes:
        raise ConfigError(f"an MDS shard has {len(raw)} bytes unpacked, its index says {raw_bytes}")
    return raw

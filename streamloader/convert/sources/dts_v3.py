"""The original DTS, version 3: one file a split, without keys and checksums of samples.

Little-endian. A header of 144 bytes; ImageNet files then have it padded to a block, and blocks of
a fixed size, each with its own index of offsets, sizes and labels; MNIST and CIFAR files have it
padded to 256 bytes, then one byte of label a sample, then the pixels of all, row by row.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from streamloader.convert.report import Rejected, utf8_name
from streamloader.convert.run_memory import RunMemory
from streamloader.convert.sources.places import (
    FileRange,
    Place,
    ReadRanges,
    SourceFile,
    Unreadable,
    require_bytes,
)
from streamloader.convert.sources.source import (
    Int64Array,
    Listing,
    ReadSamples,
    Record,
    Source,
    SplitListing,
)
from streamloader.dts import Field
from streamloader.errors import ConfigError

MAGIC = b".DTS"
_HEADER = struct.Struct("<4sBBBB8sIIII4sIII4sIIIIIQIQIIIIIfffffffI")
_MAJOR = 3
_PIXELS_OFFSET = 256
_BLOCK_MAGICS = (b"LV0B", b"LV1B", b"LV2B", b"LV3B")
_BLOCK_FIXED_BYTES = 12
_MAX_BLOCK_BYTES = 1 << 30
_MAX_IN_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class _Header:
    """What of the header is needed."""

    kind: str
    is_training: bool
    num_classes: int
    width: int
    height: int
    channels: int
    num_samples: int
    num_blocks: int
    block_bytes: int
    header_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class _Split:
    """Where the samples of one file are, int64 each."""

    file: SourceFile
    offsets: Int64Array
    sizes: Int64Array
    labels: Int64Array


@dataclass(frozen=True, slots=True, eq=False)
class DtsV3Source(Source):
    """Samples of original DTS files.

    Args:
        place: where they are.
        listing: keys are the file's name and the place in it.
        splits: one a file.
        shape: of the pixels, for files that hold pixels and not pictures; else None.
    """

    place: Place
    listing: Listing
    splits: tuple[_Split, ...]
    shape: tuple[int, int, int] | None

    @classmethod
    def scan(cls, place: Place) -> DtsV3Source:
        """Read headers and indexes.

        Raises:
            ConfigError: a file that is not of this format, or is damaged.
            StorageError: the bucket cannot be read.
        """
        files = [file for file in place.list_files() if file.path.lower().endswith(".dts")]
        if not files:
            raise ConfigError(f"no .dts file in {utf8_name(place.url)}")
        with place.reading() as read:
            headers = [_read_header(place, read, file) for file in files]
            splits = tuple(
                _read_index(place, read, file, header)
                for file, header in zip(files, headers, strict=True)
            )
        return cls(place, _listing(headers, splits), splits, _shape(headers))

    @contextmanager
    def reading(self) -> Iterator[ReadSamples]:
        with self.place.reading() as read_ranges:

            def read(
                split: int, places: Sequence[int], _memory: RunMemory | None = None
            ) -> Iterator[Record | Rejected]:
                return self._read(read_ranges, split, places)

            yield read

    def _read(
        self, read_ranges: ReadRanges, split: int, places: Sequence[int]
    ) -> Iterator[Record | Rejected]:
        known = self.splits[split]
        ranges = [FileRange(known.file, int(known.offsets[p]), int(known.sizes[p])) for p in places]
        for place, data in zip(places, read_ranges(ranges), strict=True):
            if isinstance(data, Unreadable):
                yield Rejected(self.listing.splits[split].keys[place], data.reason)
                continue
            label = int(known.labels[place])
            if self.shape is None:
                yield {"image": data, "label": label}
            else:
                pixels = np.frombuffer(data, np.uint8).reshape(self.shape)
                yield {"image": pixels, "label": label}


def _read_header(place: Place, read: ReadRanges, file: SourceFile) -> _Header:
    (data,) = read([FileRange(file, 0, min(_HEADER.size, file.size))])
    raw = require_bytes(data, place, file)
    if raw[:4] != MAGIC or len(raw) < _HEADER.size:
        hint = (
            "; it is a shard of ours, give the folder of its data set" if raw[1:4] == b"DTS" else ""
        )
        raise ConfigError(f"{utf8_name(file.path)} is no original DTS file{hint}")
    fields = _HEADER.unpack(raw)
    header = _Header(
        kind=fields[5].decode("ascii", "replace").strip(),
        is_training=bool(fields[6]),
        num_classes=fields[9],
        width=fields[11],
        height=fields[12],
        channels=fields[13],
        num_samples=fields[15],
        num_blocks=fields[19],
        header_bytes=fields[21],
        block_bytes=fields[22],
    )
    if fields[1] != _MAJOR:
        raise ConfigError(f"{utf8_name(file.path)} is of version {fields[1]}, read is {_MAJOR}")
    return header


def _read_index(place: Place, read: ReadRanges, file: SourceFile, header: _Header) -> _Split:
    if header.kind != "IMAGENET":
        return _pixel_index(place, read, file, header)
    block_bytes = header.block_bytes
    if not _BLOCK_FIXED_BYTES <= block_bytes <= _MAX_BLOCK_BYTES:
        raise _damaged(file, f"blocks of {block_bytes} bytes")
    if file.size < block_bytes * (1 + header.num_blocks):
        raise _damaged(file, f"{header.num_blocks} blocks in {file.size} bytes")
    parts = [
        _read_block(place, read, file, block_bytes, number) for number in range(header.num_blocks)
    ]
    table = np.concatenate([np.empty((3, 0), np.int64), *parts], axis=1)
    if table.shape[1] != header.num_samples:
        raise _damaged(file, f"{header.num_samples} samples stated, {table.shape[1]} in its blocks")
    return _Split(file, table[0], table[1], table[2])


def _read_block(
    place: Place, read: ReadRanges, file: SourceFile, block_bytes: int, number: int
) -> Int64Array:
    """Return offsets in the file, sizes and labels of a block, int64 ``[3, pictures]``."""
    start = block_bytes * (1 + number)
    (data,) = read([FileRange(file, start, _BLOCK_FIXED_BYTES)])
    fixed = require_bytes(data, place, file)
    magic, block_id, count = struct.unpack("<4sII", fixed)
    index_end = _BLOCK_FIXED_BYTES + 12 * count
    if magic not in _BLOCK_MAGICS or block_id != number or count > _MAX_IN_BLOCK:
        raise _damaged(file, f"block {number} does not begin like one")
    if index_end > block_bytes:
        raise _damaged(file, f"block {number} has an index of {count} pictures")
    (data,) = read([FileRange(file, start + _BLOCK_FIXED_BYTES, 12 * count)])
    table = np.frombuffer(require_bytes(data, place, file), "<u4").astype(np.int64)
    table = table.reshape(3, count)
    # 64-bit sums: the original adds in 32 bits, where an offset and a size can wrap round.
    if count and (table[0].min() < index_end or (table[0] + table[1]).max() > block_bytes):
        raise _damaged(file, f"block {number} has a picture that is not inside of it")
    table[0] += start
    return table


def _pixel_index(place: Place, read: ReadRanges, file: SourceFile, header: _Header) -> _Split:
    picture_bytes = header.width * header.height * header.channels
    count = header.num_samples
    if picture_bytes == 0 or file.size < _PIXELS_OFFSET + count * (1 + picture_bytes):
        raise _damaged(file, f"{count} pictures of {picture_bytes} bytes in {file.size} bytes")
    (data,) = read([FileRange(file, _PIXELS_OFFSET, count)])
    labels = np.frombuffer(require_bytes(data, place, file), np.uint8).astype(np.int64)
    first = _PIXELS_OFFSET + count
    offsets = first + picture_bytes * np.arange(count, dtype=np.int64)
    return _Split(file, offsets, np.full(count, picture_bytes, np.int64), labels)


def _shape(headers: Sequence[_Header]) -> tuple[int, int, int] | None:
    shapes = {None if h.kind == "IMAGENET" else (h.height, h.width, h.channels) for h in headers}
    if len(shapes) > 1:
        raise ConfigError("the original DTS files are of different data sets; convert them apart")
    return shapes.pop()


def _listing(headers: Sequence[_Header], splits: Sequence[_Split]) -> Listing:
    names: list[str | None] = ["train" if header.is_training else "val" for header in headers]
    if len(set(names)) < len(names):
        raise ConfigError("several original DTS files are of one split; convert them apart")
    if len(names) == 1:
        names = [None]
    shape = _shape(headers)
    image = Field("image", "picture") if shape is None else Field("image", "u1", shape)
    listed = tuple(
        SplitListing(
            name,
            [f"{split.file.path}/{place}" for place in range(len(split.sizes))],
            split.sizes,
            split.labels,
        )
        for name, split in zip(names, splits, strict=True)
    )
    return Listing((image, Field("label", "i8")), listed)


def _damaged(file: SourceFile, reason: str) -> ConfigError:
    return ConfigError(f"{utf8_name(file.path)} is damaged: {reason}")

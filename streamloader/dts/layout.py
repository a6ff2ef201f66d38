"""The fixed-size structures of a shard: head, trailer, directory. All integers little-endian."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final, TypeAlias

from streamloader.errors import ConfigError, ShardError

if TYPE_CHECKING:
    from typing_extensions import Buffer

Uuid: TypeAlias = bytes
"""16 bytes that identify a shard or a data set."""

HEAD_BYTES: Final = 64
TRAILER_BYTES: Final = 64
DIRECTORY_ENTRY_BYTES: Final = 32
SECTION_ALIGN: Final = 64
FIELD_ALIGN: Final = 64
MAX_SAMPLE_ALIGN: Final = 4096
UUID_BYTES: Final = 16

MAJOR: Final = 1
MINOR: Final = 0

HEAD_MAGIC: Final = b"\x89DTS\r\n\x1a\n"
TRAILER_MAGIC: Final = b"DTSEND\r\n"
ORIGINAL_MAGIC: Final = b".DTS"

MUST_UNDERSTAND: Final = 1

_HEAD = struct.Struct("<8sHHI16sIIQQII")
_TRAILER = struct.Struct("<QQQII16sHHI8s")
_ENTRY = struct.Struct("<HHIQQII")
_HEAD_CRC_AT: Final = 60
_TRAILER_CRC_AT: Final = 52


class SectionKind(IntEnum):
    """Kinds of sections in the tail; numbers from 0x8000 up are free for vendors."""

    SCHEMA = 1
    OFFSETS = 2
    LENS = 3
    HASHES = 4
    COLUMN = 5
    RAWLENS = 6
    ZDICT = 7
    STATS = 8
    KEYS = 9


def align_up(value: int, alignment: int) -> int:
    """The smallest multiple of `alignment` (a power of two) that is not below `value`."""
    return (value + alignment - 1) & -alignment


def is_sample_align(value: int) -> bool:
    return 1 <= value <= MAX_SAMPLE_ALIGN and value & (value - 1) == 0


def data_offset_of(sample_align: int) -> int:
    """Where the first record of a shard starts, in bytes from its beginning."""
    return align_up(HEAD_BYTES, sample_align)


def byte_view(data: Buffer) -> memoryview:
    """A flat, read-only view of single bytes, whatever the buffer's own shape and items."""
    view = memoryview(data).toreadonly()
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def is_zero(data: Buffer) -> bool:
    return not any(byte_view(data))


@dataclass(frozen=True, slots=True)
class Head:
    """The first 64 bytes of a shard: all of it is known before the first sample."""

    uuid: bytes
    sample_align: int
    minor: int = MINOR

    def __post_init__(self) -> None:
        if len(self.uuid) != UUID_BYTES:
            raise ConfigError(f"uuid must be {UUID_BYTES} bytes, got {len(self.uuid)}")
        if not is_sample_align(self.sample_align):
            raise ConfigError(
                f"sample_align must be a power of two of 1 to {MAX_SAMPLE_ALIGN}, "
                f"got {self.sample_align}"
            )

    @property
    def data_offset(self) -> int:
        return data_offset_of(self.sample_align)

    def pack(self) -> bytes:
        body = _HEAD.pack(
            HEAD_MAGIC,
            MAJOR,
            self.minor,
            HEAD_BYTES,
            self.uuid,
            self.sample_align,
            0,
            self.data_offset,
            0,
            0,
            0,
        )[:_HEAD_CRC_AT]
        return body + struct.pack("<I", zlib.crc32(body))

    @classmethod
    def parse(cls, data: Buffer, name: str) -> Head:
        """Check the head of `data`, which may go on beyond it.

        Raises:
            ShardError: when it is not the head of a DTS1 shard.
        """
        head = bytes(byte_view(data)[:HEAD_BYTES])
        _check_head_magic(head, name)
        if len(head) < HEAD_BYTES:
            raise ShardError(f"shard ends after {len(head)} bytes", shard=name, offset=len(head))
        (_, major, minor, head_bytes, uuid, align, incompat, data_offset, zero_a, zero_b, crc) = (
            _HEAD.unpack(head)
        )
        _check_major(major, name, offset=8)
        if zlib.crc32(head[:_HEAD_CRC_AT]) != crc:
            raise ShardError("checksum of the head does not match", shard=name, offset=0)
        if incompat:
            raise ShardError(
                f"needs features {incompat:#x} that this version does not have",
                shard=name,
                offset=36,
            )
        if head_bytes != HEAD_BYTES or zero_a or zero_b:
            raise ShardError("head has reserved fields in use", shard=name, offset=12)
        if not is_sample_align(align):
            raise ShardError(f"sample_align is {align}", shard=name, offset=32)
        if data_offset != data_offset_of(align):
            raise ShardError(
                f"data_offset is {data_offset}, not {data_offset_of(align)}", shard=name, offset=40
            )
        return cls(uuid=uuid, sample_align=align, minor=minor)


@dataclass(frozen=True, slots=True)
class Trailer:
    """The last 64 bytes of a shard."""

    file_bytes: int
    tail_offset: int
    num_samples: int
    num_sections: int
    directory_crc32: int
    uuid: bytes
    minor: int = MINOR

    @property
    def tail_bytes(self) -> int:
        return self.file_bytes - self.tail_offset

    @property
    def directory_offset(self) -> int:
        return self.file_bytes - TRAILER_BYTES - DIRECTORY_ENTRY_BYTES * self.num_sections

    def pack(self) -> bytes:
        body = _TRAILER.pack(
            self.file_bytes,
            self.tail_offset,
            self.num_samples,
            self.num_sections,
            self.directory_crc32,
            self.uuid,
            MAJOR,
            self.minor,
            0,
            TRAILER_MAGIC,
        )[:_TRAILER_CRC_AT]
        return body + struct.pack("<I8s", zlib.crc32(body), TRAILER_MAGIC)

    @classmethod
    def parse(cls, data: Buffer, name: str, file_bytes: int) -> Trailer:
        """Check the trailer at the end of `data`, the end of a shard of `file_bytes`.

        Raises:
            ShardError: when it is not the trailer of a DTS1 shard of that length.
        """
        trailer = bytes(byte_view(data)[-TRAILER_BYTES:])
        at = file_bytes - TRAILER_BYTES
        if len(trailer) < TRAILER_BYTES or at < HEAD_BYTES:
            raise ShardError(
                f"{min(file_bytes, len(trailer))} bytes are too few for a shard", shard=name
            )
        (length, tail_offset, samples, sections, directory_crc, uuid, major, minor, crc, magic) = (
            _TRAILER.unpack(trailer)
        )
        if magic != TRAILER_MAGIC:
            raise ShardError(
                "has no DTS1 trailer: not a shard, or cut short", shard=name, offset=at + 56
            )
        _check_major(major, name, offset=at + 48)
        if zlib.crc32(trailer[:_TRAILER_CRC_AT]) != crc:
            raise ShardError("checksum of the trailer does not match", shard=name, offset=at)
        if length != file_bytes:
            raise ShardError(
                f"was written with {length} bytes and has {file_bytes}", shard=name, offset=at
            )
        return cls(length, tail_offset, samples, sections, directory_crc, uuid, minor)


@dataclass(frozen=True, slots=True)
class Section:
    """One entry of the directory: where a section lies in the file, and its CRC-32."""

    kind: int
    column_id: int
    offset: int
    length: int
    crc32: int
    flags: int = 0

    def pack(self) -> bytes:
        return _ENTRY.pack(
            self.kind, self.flags, self.column_id, self.offset, self.length, self.crc32, 0
        )

    @classmethod
    def parse_directory(cls, directory: Buffer, name: str, offset: int) -> list[Section]:
        """All entries; `offset` is where the directory starts in the file."""
        sections = []
        for kind, flags, column_id, start, length, crc, zero in _ENTRY.iter_unpack(directory):
            if flags & ~MUST_UNDERSTAND or zero:
                raise ShardError(
                    "directory entry has reserved fields in use", shard=name, offset=offset
                )
            sections.append(cls(kind, column_id, start, length, crc, flags))
            offset += DIRECTORY_ENTRY_BYTES
        return sections


def _check_head_magic(head: bytes, name: str) -> None:
    if head[: len(ORIGINAL_MAGIC)] == ORIGINAL_MAGIC:
        raise ShardError(
            "is an original DTS file (magic '.DTS'), not a DTS1 shard; "
            "read it with the program that wrote it, and store its samples with DatasetWriter",
            shard=name,
            offset=0,
        )
    if head[: len(HEAD_MAGIC)] != HEAD_MAGIC:
        raise ShardError("does not start as a DTS1 shard", shard=name, offset=0)


def _check_major(major: int, name: str, *, offset: int) -> None:
    if major != MAJOR:
        raise ShardError(
            f"has format version {major}, this build reads {MAJOR}; update streamloader",
            shard=name,
            offset=offset,
        )

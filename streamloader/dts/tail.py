"""The tail of a shard as sections: packed by the writer, taken apart and checked by the reader."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from streamloader.dts.layout import (
    DIRECTORY_ENTRY_BYTES,
    HEAD_BYTES,
    MUST_UNDERSTAND,
    SECTION_ALIGN,
    TRAILER_BYTES,
    Section,
    SectionKind,
    Trailer,
    align_up,
    byte_view,
    is_zero,
)
from streamloader.dts.limits import Limits
from streamloader.errors import ShardError

if TYPE_CHECKING:
    from typing_extensions import Buffer

_KNOWN_KINDS = frozenset(int(kind) for kind in SectionKind)


@dataclass(frozen=True, slots=True)
class SectionContent:
    """A section to be written."""

    kind: int
    column_id: int
    data: Buffer
    flags: int = 0


def pack_tail(
    contents: Sequence[SectionContent], *, tail_offset: int, num_samples: int, uuid: bytes
) -> bytes:
    """Sections, directory and trailer of a shard whose payload ends at `tail_offset`.

    Args:
        contents: in the order they are to lie in the file.
        tail_offset: a multiple of 64.
    """
    parts: list[Buffer] = []
    directory: list[bytes] = []
    at = tail_offset
    for content in contents:
        length = memoryview(content.data).nbytes
        start = align_up(at, SECTION_ALIGN)
        parts += [bytes(start - at), content.data]
        section = Section(
            content.kind,
            content.column_id,
            start,
            length,
            zlib.crc32(content.data),
            content.flags,
        )
        directory.append(section.pack())
        at = start + length
    packed = b"".join(directory)
    parts += [bytes(align_up(at, SECTION_ALIGN) - at), packed]
    trailer = Trailer(
        file_bytes=align_up(at, SECTION_ALIGN) + len(packed) + TRAILER_BYTES,
        tail_offset=tail_offset,
        num_samples=num_samples,
        num_sections=len(directory),
        directory_crc32=zlib.crc32(packed),
        uuid=uuid,
    )
    return b"".join([*parts, trailer.pack()])


@dataclass(frozen=True, slots=True)
class Tail:
    """A tail whose structure holds: every byte accounted for, every checksum right."""

    name: str
    trailer: Trailer
    sections: dict[tuple[int, int], Section]
    view: memoryview

    def content(self, kind: int, column_id: int = 0) -> memoryview:
        """Bytes of a section, without a copy."""
        section = self.sections[kind, column_id]
        start = section.offset - self.trailer.tail_offset
        return self.view[start : start + section.length]

    def array(self, kind: int, column_id: int, dtype: str) -> npt.NDArray[Any]:
        """A section as a flat, read-only array over its bytes."""
        return np.frombuffer(self.content(kind, column_id), dtype=dtype)

    def fault(self, reason: str, offset: int | None = None) -> ShardError:
        return ShardError(reason, shard=self.name, offset=offset)


def parse_trailer(data: Buffer, file_bytes: int, name: str, limits: Limits) -> Trailer:
    """The trailer at the end of `data`, with every bound that it alone decides.

    Raises:
        ShardError: when it is not the trailer of a shard of `file_bytes`.
    """
    if file_bytes > limits.file_bytes:
        raise ShardError(
            f"has {file_bytes} bytes, more than the limit of {limits.file_bytes}", shard=name
        )
    trailer = Trailer.parse(data, name, file_bytes)
    at = file_bytes - TRAILER_BYTES
    if trailer.num_sections > limits.sections:
        raise ShardError(
            f"states {trailer.num_sections} sections, the limit is {limits.sections}",
            shard=name,
            offset=at + 24,
        )
    if trailer.num_samples > limits.samples:
        raise ShardError(
            f"states {trailer.num_samples} samples, the limit is {limits.samples}",
            shard=name,
            offset=at + 16,
        )
    start = trailer.tail_offset
    if start % SECTION_ALIGN or not HEAD_BYTES <= start <= trailer.directory_offset:
        raise ShardError(f"states a tail at byte {start}", shard=name, offset=at + 8)
    if trailer.tail_bytes > limits.tail_bytes:
        raise ShardError(
            f"states a tail of {trailer.tail_bytes} bytes, the limit is {limits.tail_bytes}",
            shard=name,
            offset=at + 8,
        )
    return trailer


def parse_tail(data: Buffer, file_bytes: int, name: str, limits: Limits) -> Tail:
    """Take a tail apart; `data` is the end of the file, the tail or more.

    Raises:
        ShardError: for any byte that is not as the format has it.
    """
    view = byte_view(data)
    trailer = parse_trailer(view, file_bytes, name, limits)
    if len(view) < trailer.tail_bytes:
        raise ShardError(
            f"tail has {trailer.tail_bytes} bytes, only {len(view)} were given", shard=name
        )
    view = view[len(view) - trailer.tail_bytes :]
    directory_at = trailer.directory_offset - trailer.tail_offset
    directory = view[directory_at : directory_at + trailer.num_sections * DIRECTORY_ENTRY_BYTES]
    if zlib.crc32(directory) != trailer.directory_crc32:
        raise ShardError(
            "checksum of the directory does not match",
            shard=name,
            offset=trailer.directory_offset,
        )
    entries = Section.parse_directory(directory, name, trailer.directory_offset)
    sections = _check_sections(entries, trailer, view, name)
    return Tail(name, trailer, sections, view)


def _check_sections(
    entries: list[Section], trailer: Trailer, view: memoryview, name: str
) -> dict[tuple[int, int], Section]:
    """Sections follow each other without overlap; between them only zeros, fewer than 64."""
    sections: dict[tuple[int, int], Section] = {}
    at = trailer.tail_offset
    for entry in entries:
        what = f"section {_kind_name(entry.kind)}({entry.column_id})"
        if entry.kind not in _KNOWN_KINDS and entry.flags & MUST_UNDERSTAND:
            raise ShardError(
                f"needs {what}, which this version does not know; update streamloader",
                shard=name,
                offset=entry.offset,
            )
        if (entry.kind, entry.column_id) in sections:
            raise ShardError(f"has {what} twice", shard=name, offset=entry.offset)
        if entry.offset != align_up(at, SECTION_ALIGN):
            raise ShardError(f"{what} is not right behind the one before", shard=name, offset=at)
        if entry.offset + entry.length > trailer.directory_offset:
            raise ShardError(f"{what} runs into the directory", shard=name, offset=entry.offset)
        _check_gap(view, at, entry.offset, trailer, name)
        start = entry.offset - trailer.tail_offset
        if zlib.crc32(view[start : start + entry.length]) != entry.crc32:
            raise ShardError(f"checksum of {what} does not match", shard=name, offset=entry.offset)
        sections[entry.kind, entry.column_id] = entry
        at = entry.offset + entry.length
    if align_up(at, SECTION_ALIGN) != trailer.directory_offset:
        raise ShardError("directory is not right behind the sections", shard=name, offset=at)
    _check_gap(view, at, trailer.directory_offset, trailer, name)
    return sections


def _check_gap(view: memoryview, start: int, end: int, trailer: Trailer, name: str) -> None:
    if not is_zero(view[start - trailer.tail_offset : end - trailer.tail_offset]):
        raise ShardError("bytes between sections are not zero", shard=name, offset=start)


def _kind_name(kind: int) -> str:
    return SectionKind(kind).name if kind in _KNOWN_KINDS else f"{kind:#x}"

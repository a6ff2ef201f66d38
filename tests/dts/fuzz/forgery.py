"""Changes to shards with every checksum made right again, as an attacker would."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from streamloader.dts import DEFAULT_LIMITS, ShardIndex
from streamloader.dts.hashes import hash_function
from streamloader.dts.layout import FIELD_ALIGN, Head, Section, SectionKind, Trailer, align_up
from streamloader.dts.tail import SectionContent, pack_tail, parse_tail
from tests.dts.fuzz.edits import NUMBERS, edit_bytes


def _sections(data: bytes) -> list[SectionContent]:
    tail = parse_tail(data, len(data), "corpus", DEFAULT_LIMITS)
    return [
        SectionContent(s.kind, s.column_id, bytes(tail.content(s.kind, s.column_id)), s.flags)
        for s in tail.sections.values()
    ]


def _seal(payload: bytes, contents: list[SectionContent], trailer: Trailer) -> bytes:
    tail = pack_tail(
        contents,
        tail_offset=len(payload),
        num_samples=trailer.num_samples,
        uuid=trailer.uuid,
    )
    return payload + tail


def _seal_directory(data: bytes, entries: list[Section], trailer: Trailer) -> bytes:
    directory = b"".join(entry.pack() for entry in entries)
    forged = replace(trailer, directory_crc32=zlib.crc32(directory))
    return data[: trailer.directory_offset] + directory + forged.pack()


def forge_section(rng: random.Random, data: bytes) -> bytes:
    trailer, contents = Trailer.parse(data, "corpus", len(data)), _sections(data)
    for _ in range(rng.choice((1, 1, 2))):
        place = rng.randrange(len(contents))
        edited = edit_bytes(rng, bytes(contents[place].data))
        contents[place] = replace(contents[place], data=edited)
    return _seal(data[: trailer.tail_offset], contents, trailer)


def forge_section_list(rng: random.Random, data: bytes) -> bytes:
    trailer, contents = Trailer.parse(data, "corpus", len(data)), _sections(data)
    place = rng.randrange(len(contents))
    chosen = contents[place]
    match rng.randrange(6):
        case 0:
            del contents[place]
        case 1:
            contents.append(chosen)
        case 2:
            contents[place] = replace(chosen, kind=rng.choice((*range(12), 0x8000, 0xFFFF)))
        case 3:
            contents[place] = replace(chosen, column_id=rng.choice((*range(16), 2**32 - 1)))
        case 4:
            contents[place] = replace(chosen, flags=rng.randrange(4))
        case _:
            rng.shuffle(contents)
    return _seal(data[: trailer.tail_offset], contents, trailer)


def forge_directory(rng: random.Random, data: bytes) -> bytes:
    trailer = Trailer.parse(data, "corpus", len(data))
    start = trailer.directory_offset
    entries = Section.parse_directory(data[start:-64], "corpus", start)
    for _ in range(rng.choice((1, 1, 2))):
        place = rng.randrange(len(entries))
        field = rng.choice(("offset", "length", "kind", "column_id", "flags", "crc32"))
        bits = {"offset": 64, "length": 64, "kind": 16, "flags": 16}.get(field, 32)
        value = getattr(entries[place], field) + rng.choice((-64, -1, 1, 64))
        value = rng.choice((value, *NUMBERS)) % 2**bits
        entries[place] = replace(entries[place], **{field: value})
    return _seal_directory(data, entries, trailer)


def forge_trailer(rng: random.Random, data: bytes) -> bytes:
    trailer = Trailer.parse(data, "corpus", len(data))
    field = rng.choice(("file_bytes", "tail_offset", "num_samples", "num_sections", "minor"))
    bits = {"num_sections": 32, "minor": 16}.get(field, 64)
    value = rng.choice((getattr(trailer, field) + rng.choice((-64, -1, 1, 64)), *NUMBERS))
    return data[:-64] + replace(trailer, **{field: value % 2**bits}).pack()


def forge_head(rng: random.Random, data: bytes) -> bytes:
    align = 1 << rng.randrange(13)
    head = bytearray(rng.choice((data[:64], Head(data[16:32], align).pack())))
    struct.pack_into("<H", head, rng.randrange(4, 30) * 2, rng.choice(NUMBERS) % 2**16)
    struct.pack_into("<I", head, 60, zlib.crc32(head[:60]))
    return bytes(head) + data[64:]


def forge_record(rng: random.Random, data: bytes) -> bytes:
    """A stored value changed within its length, and its hash with it: reaches the decoders."""
    index = ShardIndex.parse(data, name="corpus", file_bytes=len(data))
    if not index.schema.payload_fields:
        return forge_section(rng, data)
    field = rng.choice(index.schema.payload_fields)
    sample = rng.randrange(index.num_samples)
    (offset,), (length,) = index.field_ranges(field.name, sample, 1)
    start, end = int(offset), int(offset + length)
    value = edit_bytes(rng, data[start:end])[: end - start].ljust(end - start, b"\0")
    place = index.schema.field_id(field.name)
    digest = hash_function(index.schema.hash)(value)
    contents = [
        replace(c, data=_with_number(c.data, "<Q", sample, digest))
        if (c.kind, c.column_id) == (SectionKind.HASHES, place)
        else c
        for c in _sections(data)
    ]
    payload = data[:start] + value + data[end : index.tail_offset]
    return _seal(payload, contents, Trailer.parse(data, "corpus", len(data)))


def forge_lengths(rng: random.Random, data: bytes) -> bytes:
    """Lengths changed and the offsets made to fit, so that the layout alone is right."""
    index = ShardIndex.parse(data, name="corpus", file_bytes=len(data))
    contents = {(c.kind, c.column_id): c for c in _sections(data)}
    places = [place for kind, place in contents if kind == SectionKind.LENS]
    if not places:
        return forge_section(rng, data)
    samples = index.num_samples
    place, sample = rng.choice(places), rng.randrange(samples)
    kinds = rng.choice(((SectionKind.LENS,), (SectionKind.LENS, SectionKind.RAWLENS)))
    value = rng.choice((*NUMBERS[:10], rng.randrange(2000)))
    for kind in kinds:
        if (kind, place) in contents:
            old = contents[kind, place]
            contents[kind, place] = replace(old, data=_with_number(old.data, "<I", sample, value))
    align = Head.parse(data, "corpus").sample_align
    offsets, at = [index.data_offset], index.data_offset
    for number in range(samples):
        used = 0
        for field_id, field in enumerate(index.schema.fields):
            if not field.is_column:
                used = align_up(used, FIELD_ALIGN)
                lengths = contents.get((SectionKind.LENS, field_id))
                known = field.fixed_bytes or 0
                used += struct.unpack_from("<I", lengths.data, 4 * number)[0] if lengths else known
        at += align_up(used, align)
        offsets.append(at)
    section = replace(contents[SectionKind.OFFSETS, 0], data=np.array(offsets, "<u8").tobytes())
    contents[SectionKind.OFFSETS, 0] = section
    payload = data[: index.tail_offset].ljust(align_up(at, 64), b"\0")[: align_up(at, 64)]
    return _seal(payload, list(contents.values()), Trailer.parse(data, "corpus", len(data)))


def _with_number(raw: bytes, code: str, place: int, value: int) -> bytes:
    data = bytearray(raw)
    struct.pack_into(code, data, place * struct.calcsize(code), value)
    return bytes(data)


FORGERY: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    forge_section,
    forge_section,
    forge_section_list,
    forge_directory,
    forge_trailer,
    forge_head,
    forge_record,
    forge_record,
    forge_lengths,
)

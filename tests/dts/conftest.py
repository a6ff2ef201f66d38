from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from streamloader.dts import Schema, ShardIndex, ShardSummary, ShardWriter
from streamloader.dts.layout import DIRECTORY_ENTRY_BYTES, Section, Trailer
from streamloader.dts.limits import DEFAULT_LIMITS
from streamloader.dts.tail import SectionContent, pack_tail, parse_tail

UUID = bytes(range(16))


class Workshop:
    """Builds shards, opens them fully, and rebuilds damaged ones with right checksums."""

    uuid = UUID

    def write(
        self,
        fields: Mapping[str, Any] | Schema,
        records: Iterable[Mapping[str, Any]],
        names: Iterable[str | None] | None = None,
        **options: Any,
    ) -> tuple[bytes, ShardSummary]:
        schema = fields if isinstance(fields, Schema) else Schema.of(fields)
        out = bytearray()
        writer = ShardWriter(schema, uuid=UUID, sink=out.extend, **options)
        given = iter(names) if names is not None else None
        for record in records:
            writer.add(record, next(given) if given is not None else None)
        summary = writer.finish()
        assert len(out) == summary.bytes
        return bytes(out), summary

    def check_all(self, data: bytes, file_bytes: int | None = None) -> ShardIndex:
        """Every check that there is; ShardError from parsing, AssertionError for record faults."""
        index = ShardIndex.parse(
            data, name="x.dts", file_bytes=len(data) if file_bytes is None else file_bytes
        )
        index.check_head(data[: index.data_offset])
        faults = index.verify_records(0, index.num_samples, data, 0)
        assert not faults, faults
        return index

    def sections(self, data: bytes) -> list[SectionContent]:
        tail = parse_tail(data, len(data), "x.dts", DEFAULT_LIMITS)
        return [
            SectionContent(s.kind, s.column_id, bytes(tail.content(s.kind, s.column_id)), s.flags)
            for s in tail.sections.values()
        ]

    def replace_section(
        self, data: bytes, kind: int, column_id: int, edit: Callable[[bytearray], Any]
    ) -> bytes:
        """The shard with one section edited and every checksum made right again."""
        contents = []
        for content in self.sections(data):
            if (content.kind, content.column_id) == (kind, column_id):
                raw = bytearray(content.data)
                edit(raw)
                content = SectionContent(kind, column_id, bytes(raw), content.flags)
            contents.append(content)
        return self.with_sections(data, contents)

    def with_sections(self, data: bytes, contents: list[SectionContent]) -> bytes:
        trailer = Trailer.parse(data, "x.dts", len(data))
        tail = pack_tail(
            contents,
            tail_offset=trailer.tail_offset,
            num_samples=trailer.num_samples,
            uuid=trailer.uuid,
        )
        return data[: trailer.tail_offset] + tail

    def with_directory(self, data: bytes, edit: Callable[[list[Section]], Any]) -> bytes:
        """The shard with its directory edited in place, same length, checksums made right."""
        trailer = Trailer.parse(data, "x.dts", len(data))
        start = trailer.directory_offset
        end = start + DIRECTORY_ENTRY_BYTES * trailer.num_sections
        entries = Section.parse_directory(data[start:end], "x.dts", start)
        edit(entries)
        directory = b"".join(entry.pack() for entry in entries)
        assert len(directory) == end - start
        return data[:start] + directory + self.trailer_like(trailer, zlib.crc32(directory)).pack()

    def trailer_like(self, trailer: Trailer, directory_crc32: int) -> Trailer:
        return Trailer(
            trailer.file_bytes,
            trailer.tail_offset,
            trailer.num_samples,
            trailer.num_sections,
            directory_crc32,
            trailer.uuid,
            trailer.minor,
        )


@pytest.fixture(scope="session")
def workshop() -> Workshop:
    return Workshop()


@pytest.fixture(scope="session")
def small_shard(workshop: Workshop) -> bytes:
    """Three records with two payload fields, a column and keys, in well under 2 KB."""
    records = [
        {"data": b"first record", "caption": "a", "label": 1},
        {"data": b"", "caption": "", "label": 2},
        {"data": b"\xff" * 70, "caption": "c" * 9, "label": 3},
    ]
    fields = {"data": "bytes", "caption": "str", "label": "uint8"}
    data, _ = workshop.write(fields, records, names=["a", "b", "c"])
    return data


@pytest.fixture(scope="session")
def picture() -> bytes:
    """A small JPEG of 48 x 32 pixels."""
    pictures = Path(__file__).parents[1] / "hostile" / "images"
    return (pictures / "sampling" / "s420.jpg").read_bytes()

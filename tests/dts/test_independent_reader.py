"""A reader written from docs/format.md alone, without the library, reads the golden files."""

from __future__ import annotations

import importlib.util
import json
import struct
import zlib
from pathlib import Path

import pytest
import xxhash
import zstandard

GOLDEN = Path(__file__).parent / "golden"
ELEMENTS = {
    "u1": "B", "i1": "b", "u2": "H", "i2": "h", "u4": "I", "i4": "i", "u8": "Q", "i8": "q",
    "f2": "e", "f4": "f", "f8": "d", "bf16": "H", "bool": "?",
}  # fmt: skip
HASHES = {"xxh3-64": xxhash.xxh3_64_intdigest, "crc32": zlib.crc32}


def _align(number: int, alignment: int) -> int:
    return -(-number // alignment) * alignment


def _sections(data: bytes) -> tuple[int, dict[tuple[int, int], bytes]]:
    trailer = data[-64:]
    file_bytes, _, samples, count, crc = struct.unpack_from("<QQQII", trailer)
    assert trailer[56:] == b"DTSEND\r\n"
    assert struct.unpack_from("<I", trailer, 52)[0] == zlib.crc32(trailer[:52])
    assert file_bytes == len(data)
    directory = data[-64 - 32 * count : -64]
    assert zlib.crc32(directory) == crc
    sections = {}
    for kind, _, column, offset, length, crc, _ in struct.iter_unpack("<HHIQQII", directory):
        content = data[offset : offset + length]
        assert zlib.crc32(content) == crc
        sections[kind, column] = content
    return samples, sections


def _value(field: dict, raw: bytes):
    match field["type"]:
        case "picture" | "bytes":
            return raw
        case "utf8":
            return raw.decode()
        case "json":
            return json.loads(raw)
    code = ELEMENTS[field["type"]]
    numbers = list(struct.unpack(f"<{len(raw) // struct.calcsize(code)}{code}", raw))
    if field["type"] == "bf16":
        wide = b"".join(struct.pack("<HH", 0, bits) for bits in numbers)
        numbers = list(struct.unpack(f"<{len(numbers)}f", wide))
    if not field["shape"]:
        return numbers[0]
    for size in field["shape"][:0:-1]:
        numbers = [numbers[i : i + size] for i in range(0, len(numbers), size)]
    return numbers


def _size(field: dict) -> int | None:
    if field["type"] not in ELEMENTS or field["shape"] == [-1]:
        return None
    size = struct.calcsize(ELEMENTS[field["type"]])
    for length in field["shape"]:
        size *= length
    return size


def _decompressed(stored: bytes, raw_length: int, dictionary: bytes | None) -> bytes:
    if len(stored) == raw_length:
        return stored
    known = zstandard.ZstdCompressionDict(dictionary) if dictionary else None
    return zstandard.ZstdDecompressor(dict_data=known).decompress(stored, raw_length)


def _read(data: bytes) -> list[dict]:
    samples, sections = _sections(data)
    schema = json.loads(sections[1, 0])
    records = []
    for i in range(samples):
        (start,) = struct.unpack_from("<Q", sections[2, 0], 8 * i)
        record, used = {}, 0
        for column, field in enumerate(schema["fields"]):
            size = _size(field)
            if size is not None and size <= 64:
                record[field["name"]] = _value(field, sections[5, column][size * i :][:size])
                continue
            used = _align(used, 64)
            lengths = sections.get((3, column))
            length = struct.unpack_from("<I", lengths, 4 * i)[0] if lengths else size
            stored = data[start + used : start + used + length]
            used += length
            (digest,) = struct.unpack_from("<Q", sections[4, column], 8 * i)
            assert HASHES[schema["hash"]](stored) == digest
            if field["codec"] == "zstd":
                (raw_length,) = struct.unpack_from("<I", sections[6, column], 4 * i)
                stored = _decompressed(stored, raw_length, sections.get((7, column)))
            record[field["name"]] = _value(field, stored)
        records.append(record)
    return records


@pytest.fixture(scope="module")
def build():
    spec = importlib.util.spec_from_file_location("golden_build", GOLDEN / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_plain_shards(build):
    expected = json.loads((GOLDEN / "values.json").read_bytes())
    records = [r for n in range(3) for r in _read((GOLDEN / f"{n:05d}.dts").read_bytes())]
    for record in records:
        record["image"] = len(record["image"])
        record["raw"] = record["raw"].hex()
    assert records == expected


def test_the_shard_of_compressed_fields(build):
    records = _read((GOLDEN / build.COMPRESSED).read_bytes())
    assert records == [build.compressed_record(number) for number in range(6)]

"""Which hash guards the records is the schema's choice."""

from __future__ import annotations

import json
import zlib

import pytest
import xxhash

from streamloader.dts import HASH_NAMES, Manifest, Schema, ShardEntry, SidecarEntry
from streamloader.errors import ConfigError, ShardError

EXPECTED = {"xxh3-64": xxhash.xxh3_64_intdigest(b"123456789"), "crc32": 0xCBF43926}


@pytest.mark.parametrize("name", HASH_NAMES)
def test_each_hash_is_written_and_checked(workshop, name):
    schema = Schema.of({"d": "bytes", "e": "bytes"}, hash=name)
    data, _ = workshop.write(schema, [{"d": b"123456789", "e": b""}, {"d": b"", "e": b"abc"}])
    index = workshop.check_all(data)
    assert index.schema.hash == name
    assert index.hashes("d")[0] == EXPECTED[name]
    at = int(index.field_ranges("e", 1, 1)[0][0])
    for bit in range(8):
        damaged = bytearray(data)
        damaged[at] ^= 1 << bit
        (fault,) = index.verify_records(0, 2, damaged, 0)
        assert (fault.sample_in_shard, fault.field, fault.offset) == (1, "e", at)


def test_crc32_is_zlibs():
    assert EXPECTED["crc32"] == zlib.crc32(b"123456789")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("crc32c", "'crc32c' is reserved by the format, and this build has xxh3-64, crc32 only"),
        ("md5", "hash 'md5' is unknown"),
        ("", "hash '' is unknown"),
    ],
)
def test_other_hashes_are_refused_by_name(name, message):
    with pytest.raises(ConfigError, match=message):
        Schema.of({"d": "bytes"}, hash=name)
    text = json.dumps({"fields": Schema.of({"d": "bytes"}).to_object()["fields"], "hash": name})
    with pytest.raises(ShardError, match=message):
        Schema.parse(text.encode(), "x.dts")


def _manifest(*hashes):
    entry = ShardEntry("0.dts", 6400, 10, 640, b"u" * 16, 123, "ab" * 32)
    return Manifest(
        dataset_uuid=b"d" * 16,
        rev=1,
        schemas=tuple(Schema.of({"d": "bytes"}, hash=name) for name in hashes),
        shards=[entry],
        block_samples=4,
        max_block_bytes=5000,
        max_record_bytes=700,
        sidecar=SidecarEntry("offsets-000001.bin", "cd" * 32),
    )


def test_a_data_set_has_one_hash():
    manifest = _manifest("crc32", "crc32")
    assert Manifest.parse(manifest.to_bytes(), "m").hash == "crc32"
    with pytest.raises(ConfigError, match="hashes crc32 and xxh3-64"):
        _manifest("crc32", "xxh3-64")
    text = json.loads(manifest.to_bytes())
    text["hash"] = "xxh3-64"
    with pytest.raises(ShardError, match="states the hash 'xxh3-64', its schemas have 'crc32'"):
        Manifest.parse(json.dumps(text).encode(), "m")

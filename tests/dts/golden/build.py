"""Writes the golden data set next to itself: ``python build.py``.

The files fix the format. A change that alters them changes what old readers see, so rebuild
them only together with the format's version. ``compressed.dts`` fixes reading alone: its bytes
depend on the zstd that wrote it.
"""

from __future__ import annotations

import json
from pathlib import Path

import zstandard

from streamloader.dts import (
    Field,
    Manifest,
    Pointer,
    Schema,
    ShardWriter,
    SidecarEntry,
    SplitEntry,
    build_sidecar,
    manifest_name,
    shard_uuid,
    sidecar_name,
)

HERE = Path(__file__).parent
PICTURES = HERE.parents[1] / "hostile" / "images"
NAMES = (
    "sampling/s420.jpg",
    "sampling/progressive.jpg",
    "exif/orient6.jpg",
    "colour/gray.jpg",
    "other/palette.png",
)
ELEMENTS = ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "bf16", "bool")
SCHEMA = Schema(
    (
        Field("image", "picture"),
        Field("caption", "utf8"),
        Field("meta", "json"),
        Field("raw", "bytes"),
        Field("tokens", "i4", (-1,)),
        Field("mask", "u1", (9, 9)),
        *(Field(f"column.{element}", element) for element in ELEMENTS),
        Field("box", "f4", (4,)),
    )
)


COMPRESSED = "compressed.dts"
COMPRESSED_SCHEMA = Schema(
    (
        Field("caption", "utf8", codec="zstd"),
        Field("image", "picture", codec="zstd"),
        Field("meta", "json", codec="zstd", default={}),
        Field("mask", "u1", (64, 64), "zstd"),
        Field("label", "i8", default=-1),
    ),
    hash="crc32",
)


def _record(number: int) -> dict[str, object]:
    columns = {f"column.{element}": number % 2 for element in ELEMENTS}
    return {
        "image": (PICTURES / NAMES[number % len(NAMES)]).read_bytes(),
        "caption": "grüße " * number,
        "meta": {"number": number, "tags": ["a", None, 0.5]},
        "raw": bytes(range(number)),
        "tokens": list(range(-number, number)),
        "mask": [[(number + row * column) % 256 for column in range(9)] for row in range(9)],
        "box": [0.25 * number, 1, 2, -3],
        **columns,
    }


def build() -> dict[str, bytes]:
    """Content of every file of the data set by name."""
    files: dict[str, bytes] = {}
    summaries = []
    for shard, numbers in enumerate((range(0, 3), range(3, 5), range(5, 8))):
        keys = [f"class/{number}.jpg" for number in numbers]
        out = bytearray()
        uuid = shard_uuid(b"golden", [(key, shard) for key in keys])
        writer = ShardWriter(SCHEMA, uuid=uuid, sink=out.extend)
        for number, key in zip(numbers, keys, strict=True):
            writer.add(_record(number), key)
        summaries.append(writer.finish(stats={"shard": shard}))
        files[f"{shard:05d}.dts"] = bytes(out)
    sidecar, longest = build_sidecar([s.offsets for s in summaries], 2, [0, 2])
    files[sidecar_name(1)] = sidecar.to_bytes()
    manifest = Manifest(
        dataset_uuid=bytes(range(16)),
        rev=1,
        schemas=(SCHEMA,),
        shards=[s.entry(f"{i:05d}.dts") for i, s in enumerate(summaries)],
        splits={"train": SplitEntry(0, 2), "val": SplitEntry(2, 1)},
        classes=("cat", "dog"),
        block_samples=2,
        max_block_bytes=longest,
        max_record_bytes=max(s.max_record_bytes for s in summaries),
        sidecar=SidecarEntry(sidecar_name(1), sidecar.sha256),
        export_seed=0,
        created_by="streamloader golden",
    )
    files[manifest_name(1)] = manifest.to_bytes()
    files["latest.json"] = Pointer(1, manifest_name(1), manifest.fingerprint).to_bytes()
    values = [_record(number) for number in range(8)]
    for value in values:
        value["image"] = len(value["image"])
        value["raw"] = value["raw"].hex()
    files["values.json"] = json.dumps(values, indent=1, sort_keys=True).encode() + b"\n"
    return files


def compressed_record(number: int) -> dict[str, object]:
    """What record `number` of the compressed shard holds."""
    words = ("shard", "tail", "block", "sample", "batch")
    caption = " ".join(words[(number * 3 + i * i) % len(words)] for i in range(30 * number))
    return {
        "caption": caption,
        "image": (PICTURES / NAMES[number % len(NAMES)]).read_bytes() + bytes(999 * (number % 2)),
        "meta": {"number": number, "words": caption.split()},
        "mask": [
            [(row * column * number) // 64 % 256 for column in range(64)] for row in range(64)
        ],
        "label": number,
    }


def build_compressed() -> bytes:
    """A shard of compressed fields, one of them with a dictionary."""
    samples = [str(compressed_record(1 + n % 9)["caption"])[n:].encode() for n in range(200)]
    dictionary = zstandard.train_dictionary(512, samples, dict_id=40_000)
    out = bytearray()
    writer = ShardWriter(
        COMPRESSED_SCHEMA,
        uuid=bytes(range(16)),
        sink=out.extend,
        dictionaries={"caption": dictionary.as_bytes()},
    )
    for number in range(6):
        writer.add(compressed_record(number), f"{number}.jpg")
    writer.finish()
    return bytes(out)


if __name__ == "__main__":
    (HERE / COMPRESSED).write_bytes(build_compressed())
    for file_name, content in build().items():
        (HERE / file_name).write_bytes(content)

"""The valid files that every case starts from."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np

from streamloader.dts import (
    Field,
    Manifest,
    Pointer,
    Schema,
    ShardWriter,
    SidecarEntry,
    build_sidecar,
    manifest_name,
    sidecar_name,
)

PICTURE = Path(__file__).parents[2] / "hostile" / "images" / "sampling" / "s420.jpg"


def _text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(("shard", "tail", "sample", "grüße", "block")) for _ in range(words))


def shard_corpus() -> list[bytes]:
    """Shards of every type, codec, hash and alignment, each of a few kilobytes."""
    rng = random.Random(7)
    rich = (
        Field("image", "picture"),
        Field("text", "utf8", codec="zstd"),
        Field("meta", "json", codec="zstd", default={}),
        Field("mask", "u1", (16, 16), "zstd"),
        Field("tokens", "i4", (-1,)),
        Field("flags", "bool", (-1,), "zstd"),
        Field("half", "bf16", (40,)),
        Field("box", "f4", (4,)),
        Field("label", "i8", default=-1),
        Field("seen", "bool"),
    )
    schemas = (Schema(rich), Schema((rich[1], rich[8]), "crc32"), Schema((rich[8],)))
    corpus = []
    for number, schema in enumerate(schemas):
        for align, keys in ((1, True), (64, True), (512, False)):
            out = bytearray()
            uuid = bytes([number, align % 251]) * 8
            writer = ShardWriter(schema, uuid=uuid, sink=out.extend, sample_align=align, keys=keys)
            for sample in range(rng.randrange(1, 5)):
                values = {
                    "image": PICTURE.read_bytes(),
                    "text": _text(rng, 40),
                    "meta": {"a": [_text(rng, 9)] * 9, "b": None},
                    "mask": np.arange(256).reshape(16, 16) // 32,
                    "tokens": list(range(sample)),
                    "flags": [True, False] * 50,
                    "half": [0.5] * 40,
                    "box": [1, 2, 3, 4],
                    "label": sample,
                    "seen": sample % 2 == 0,
                }
                record = {field.name: values[field.name] for field in schema.fields}
                writer.add(record, f"class/{sample}.jpg")
            writer.finish(stats={"mean": 0.5} if keys else None)
            corpus.append(bytes(out))
    return corpus


def manifest_corpus() -> tuple[bytes, bytes, bytes]:
    """(manifest, sidecar, pointer) of one data set."""
    schema = Schema((Field("d", "bytes"), Field("label", "i8", default=0)))
    old = Schema((Field("d", "bytes"),))
    summaries = []
    for number, each in enumerate((old, schema, schema)):
        writer = ShardWriter(each, uuid=bytes([number]) * 16, sink=lambda data: None)
        for sample in range(5):
            values = {"d": bytes(sample * 30), "label": sample}
            writer.add({field.name: values[field.name] for field in each.fields}, str(sample))
        summaries.append(writer.finish())
    sidecar, longest = build_sidecar([s.offsets for s in summaries], 2, [0])
    manifest = Manifest(
        dataset_uuid=bytes(16),
        rev=1,
        schemas=(old, schema),
        shards=[s.entry(f"{i}.dts", schema_id=min(i, 1)) for i, s in enumerate(summaries)],
        block_samples=2,
        max_block_bytes=longest,
        max_record_bytes=max(s.max_record_bytes for s in summaries),
        sidecar=SidecarEntry(sidecar_name(1), sidecar.sha256),
        classes=("cat", "dog"),
    )
    pointer = Pointer(1, manifest_name(1), manifest.fingerprint)
    return manifest.to_bytes(), sidecar.to_bytes(), pointer.to_bytes()

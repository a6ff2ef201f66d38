"""Hard bounds of the format, checked in Python integers before anything is allocated."""

from __future__ import annotations

from dataclasses import dataclass, fields

from streamloader.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Limits:
    """What a reader accepts. Every bound can be lowered, none raised above the format's own.

    Args:
        file_bytes: length of a shard.
        tail_bytes: length of a shard's tail (all sections, directory and trailer).
        samples: samples in one shard.
        sections: sections in one tail.
        schema_bytes: length of a SCHEMA or STATS section.
        json_depth: nesting of SCHEMA, STATS and manifest.
        field_json_depth: nesting of a value of a ``json`` field.
        record_bytes: used bytes of one record.
        raw_bytes: one field of one record after decompression.
        raw_ratio: decompressed over stored length.
        manifest_bytes: length of a manifest.
    """

    file_bytes: int = 2**44
    tail_bytes: int = 2**30
    samples: int = 2**32 - 1
    sections: int = 256
    schema_bytes: int = 2**20
    json_depth: int = 16
    field_json_depth: int = 64
    record_bytes: int = 2**32 - 1
    raw_bytes: int = 2**31
    raw_ratio: int = 1000
    manifest_bytes: int = 2**28

    def __post_init__(self) -> None:
        for bound in fields(self):
            value = getattr(self, bound.name)
            if not 0 < value <= bound.default:
                raise ConfigError(
                    f"limit {bound.name} must be 1 to {bound.default}, got {value}; "
                    "limits can be lowered only"
                )


DEFAULT_LIMITS = Limits()

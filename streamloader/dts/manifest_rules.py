"""What the values of a manifest must satisfy, whoever made it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from streamloader.dts.fields import is_name
from streamloader.dts.layout import UUID_BYTES, is_sample_align
from streamloader.dts.naming import MAX_REV, is_object_name
from streamloader.dts.strict_json import parse_hex

if TYPE_CHECKING:
    from streamloader.dts.manifest import Manifest

MAX_SCHEMAS: Final = 256
MAX_SPLITS: Final = 1024
MAX_SHARDS: Final = 2**24
MAX_SEED: Final = 2**64 - 1


def first_fault(manifest: Manifest) -> str | None:
    """What is wrong with a manifest's values, in words that follow "manifest"."""
    checks: tuple[tuple[bool, str], ...] = (
        (
            type(manifest.dataset_uuid) is bytes and len(manifest.dataset_uuid) == UUID_BYTES,
            f"needs a dataset_uuid of {UUID_BYTES} bytes",
        ),
        (1 <= manifest.rev <= MAX_REV, f"has rev {manifest.rev}, not 1 to {MAX_REV}"),
        (
            manifest.parent_rev is None or 1 <= manifest.parent_rev < manifest.rev,
            f"has parent_rev {manifest.parent_rev}, not below rev {manifest.rev}",
        ),
        (1 <= len(manifest.schemas) <= MAX_SCHEMAS, f"needs 1 to {MAX_SCHEMAS} schemas"),
        (
            manifest.table.max_schema_id < max(1, len(manifest.schemas)),
            "has a shard whose schema_id counts beyond its schemas",
        ),
        (len(manifest.shards) <= MAX_SHARDS, f"has more than {MAX_SHARDS} shards"),
        (1 <= manifest.block_samples <= 2**32 - 1, "needs block_samples of 1 to 2^32-1"),
        (manifest.max_block_bytes >= 0, "has a negative max_block_bytes"),
        (0 <= manifest.max_record_bytes <= 2**32, "has max_record_bytes beyond 2^32"),
        (is_sample_align(manifest.sample_align), f"has sample_align {manifest.sample_align}"),
        (is_object_name(manifest.sidecar.name), "has a sidecar name that is not relative"),
        (parse_hex(manifest.sidecar.sha256, 32) is not None, "needs the sidecar's SHA-256"),
        (
            manifest.export_seed is None or 0 <= manifest.export_seed <= MAX_SEED,
            "has an export_seed outside 0 to 2^64-1",
        ),
        (len(set(manifest.classes)) == len(manifest.classes), "has a class twice"),
    )
    return next((fault for holds, fault in checks if not holds), _split_fault(manifest))


def _split_fault(manifest: Manifest) -> str | None:
    if not manifest.splits:
        return None
    if len(manifest.splits) > MAX_SPLITS:
        return f"has more than {MAX_SPLITS} splits"
    for split in manifest.splits:
        if not is_name(split):
            return f"has the split name {ascii(split)[:80]}, not of letters, digits, '_', '.', '-'"
    at = 0
    for run in manifest.split_runs:
        if run.num_shards < 1 or run.first_shard != at:
            return f"has splits that overlap or leave out shards, at shard {at}"
        at += run.num_shards
    if at != manifest.num_shards:
        return f"has splits of {at} shards and {manifest.num_shards} shards"
    return None

"""DTS1, the shard format: layout, writer, reader, manifest, block arithmetic.

Bytes in, bytes out: nothing here knows where bytes live, in which order samples are used, or
what a tensor is. The byte-level description is ``docs/format.md``.
"""

from __future__ import annotations

from streamloader.dts.blocks import BlockTable, ShardSpan
from streamloader.dts.compression import DEFAULT_LEVEL as DEFAULT_ZSTD_LEVEL
from streamloader.dts.compression import check_zstd_level
from streamloader.dts.decompression import decode_stored, decompress, decompress_into
from streamloader.dts.defaults import default_bytes, default_value
from streamloader.dts.fields import CODECS, ELEMENT_DTYPES, NO_DEFAULT, Column, Field, is_name
from streamloader.dts.hashes import DEFAULT_HASH, HASH_NAMES, hash_function
from streamloader.dts.index import ShardIndex
from streamloader.dts.layout import HEAD_BYTES, TRAILER_BYTES
from streamloader.dts.limits import DEFAULT_LIMITS, Limits
from streamloader.dts.manifest import Manifest, SidecarEntry, SplitEntry
from streamloader.dts.naming import (
    POINTER_NAME,
    Pointer,
    decode_key,
    encode_key,
    manifest_name,
    shard_uuid,
    sidecar_name,
)
from streamloader.dts.opening import TAIL_GUESS_BYTES, open_shard
from streamloader.dts.packed import PackedJpegs, pack_jpegs, takes_packed
from streamloader.dts.pictures import (
    FORMAT_CODES,
    SAMPLING_CODES,
    PictureHeader,
    PictureHeaderError,
    read_picture_header,
)
from streamloader.dts.record_bytes import copy_rows, copy_values, is_hashed_natively
from streamloader.dts.row_source import TAKE_RECORDS_ADDRESS, RowPlaces
from streamloader.dts.schema import Schema
from streamloader.dts.schema_union import unite
from streamloader.dts.shard_summary import ShardSummary
from streamloader.dts.shard_table import ShardEntry, ShardTable
from streamloader.dts.sidecar import Sidecar, build_sidecar
from streamloader.dts.strict_json import canonical_json
from streamloader.dts.values import bf16_to_float32, float32_to_bf16
from streamloader.dts.verify import Ranges, RecordFault
from streamloader.dts.writer import ShardWriter
from streamloader.dts.zstd import Dictionary, require_zstandard

__all__ = [
    "CODECS",
    "DEFAULT_HASH",
    "DEFAULT_LIMITS",
    "DEFAULT_ZSTD_LEVEL",
    "ELEMENT_DTYPES",
    "FORMAT_CODES",
    "HASH_NAMES",
    "HEAD_BYTES",
    "NO_DEFAULT",
    "POINTER_NAME",
    "SAMPLING_CODES",
    "TAIL_GUESS_BYTES",
    "TAKE_RECORDS_ADDRESS",
    "TRAILER_BYTES",
    "BlockTable",
    "Column",
    "Dictionary",
    "Field",
    "Limits",
    "Manifest",
    "PackedJpegs",
    "PictureHeader",
    "PictureHeaderError",
    "Pointer",
    "Ranges",
    "RecordFault",
    "RowPlaces",
    "Schema",
    "ShardEntry",
    "ShardIndex",
    "ShardSpan",
    "ShardSummary",
    "ShardTable",
    "ShardWriter",
    "Sidecar",
    "SidecarEntry",
    "SplitEntry",
    "bf16_to_float32",
    "build_sidecar",
    "canonical_json",
    "check_zstd_level",
    "copy_rows",
    "copy_values",
    "decode_key",
    "decode_stored",
    "decompress",
    "decompress_into",
    "default_bytes",
    "default_value",
    "encode_key",
    "float32_to_bf16",
    "hash_function",
    "is_hashed_natively",
    "is_name",
    "manifest_name",
    "open_shard",
    "pack_jpegs",
    "read_picture_header",
    "require_zstandard",
    "shard_uuid",
    "sidecar_name",
    "takes_packed",
    "unite",
]

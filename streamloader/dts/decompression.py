"""Stored bytes of one field of one record back to its raw bytes, bounded before they exist."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

from streamloader.dts.fields import Field
from streamloader.dts.layout import byte_view
from streamloader.dts.limits import DEFAULT_LIMITS, Limits
from streamloader.dts.values import decode
from streamloader.dts.zstd import FRAME_MAGIC, Dictionary, require_zstandard
from streamloader.errors import ConfigError, ShardError

if TYPE_CHECKING:
    from types import ModuleType

    from typing_extensions import Buffer

_CONTEXTS_PER_THREAD: Final = 4


class _Contexts(threading.local):
    """Decompression contexts of one thread by dictionary: they serve one thread at a time."""

    def __init__(self) -> None:
        self._held: OrderedDict[Dictionary | None, Any] = OrderedDict()

    def get(self, zstandard: ModuleType, dictionary: Dictionary | None) -> Any:
        context = self._held.pop(dictionary, None)
        if context is None:
            loaded = None if dictionary is None else dictionary.load(zstandard)
            context = zstandard.ZstdDecompressor(dict_data=loaded)
        self._held[dictionary] = context
        if len(self._held) > _CONTEXTS_PER_THREAD:
            self._held.popitem(last=False)
        return context


_contexts = _Contexts()


def decompress(
    field: Field,
    stored: Buffer,
    raw_bytes: int,
    *,
    dictionary: Dictionary | None = None,
    shard: str = "",
    offset: int | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> Buffer:
    """Raw bytes of one payload field of one record; any thread may call.

    Nothing of the shard is needed but what its index says about the record, so the caller may
    hold the stored bytes anywhere.

    Args:
        field: the payload field.
        stored: its stored bytes, their hash checked or not.
        raw_bytes: length that the index states, see `ShardIndex.raw_lengths`; equal to the
            stored length where the value is stored raw.
        dictionary: of the field in that shard, see `ShardIndex.dictionary`.
        shard: name for errors.
        offset: of the stored bytes in the shard, for errors.
        limits: bounds on `raw_bytes`.

    Returns:
        `stored` itself where it is raw, else new bytes; `raw_bytes` long either way.

    Raises:
        ShardError: when the bytes are not one zstd frame of exactly `raw_bytes`.
        ConfigError: when they are compressed and the zstd package is missing.
    """
    view = byte_view(stored)
    if len(view) == raw_bytes:
        return stored

    def fault(reason: str) -> ShardError:
        return ShardError(f"field {field.name!r} {reason}", shard=shard, offset=offset)

    if field.codec != "zstd":
        raise fault(f"has {len(view)} bytes, not {raw_bytes}")
    if not len(view) < raw_bytes <= min(limits.raw_bytes, limits.raw_ratio * len(view)):
        raise fault(f"states {raw_bytes} bytes from {len(view)} stored")
    zstandard = require_zstandard(f"field {field.name!r} of {shard or 'a shard'}")
    reason = _frame_fault(zstandard, view, raw_bytes, dictionary)
    if reason is not None:
        raise fault(reason)
    try:
        context = _contexts.get(zstandard, dictionary)
        raw: bytes = context.decompress(view, allow_extra_data=False)
    except zstandard.ZstdError as exc:
        raise fault(f"does not decompress: {exc}") from exc
    if len(raw) != raw_bytes:
        raise fault(f"decompresses to {len(raw)} bytes, not {raw_bytes}")
    return raw


def decompress_into(
    field: Field,
    stored: Buffer,
    out: Buffer,
    *,
    dictionary: Dictionary | None = None,
    shard: str = "",
    offset: int | None = None,
) -> None:
    """Like `decompress`, for values whose length is that of `out`: a writable buffer, filled.

    Raises:
        ShardError: as `decompress`; `out` is then as it was.
        ConfigError: when `out` cannot be written, or the zstd package is missing.
    """
    target = memoryview(out)
    if target.readonly or not target.c_contiguous:
        raise ConfigError("out must be a writable, contiguous buffer")
    raw = decompress(
        field, stored, target.nbytes, dictionary=dictionary, shard=shard, offset=offset
    )
    if target.nbytes:
        target.cast("B")[:] = byte_view(raw)


def decode_stored(
    field: Field,
    stored: Buffer,
    raw_bytes: int,
    *,
    dictionary: Dictionary | None = None,
    shard: str = "",
    offset: int = 0,
) -> Any:
    """The value behind stored bytes: `decompress`, then what the field's type makes of it.

    Raises:
        ShardError: when the bytes are no zstd frame of that length, or not of the field's type.
        ConfigError: when they are compressed and the zstd package is missing.
    """
    raw = decompress(field, stored, raw_bytes, dictionary=dictionary, shard=shard, offset=offset)
    if raw is stored:
        return decode(field, stored, shard, offset)
    try:
        return decode(field, raw, shard, 0)
    except ShardError as exc:
        # A place inside the raw bytes is no place in the file.
        raise ShardError(exc.reason, shard=shard, offset=offset) from exc


def _frame_fault(
    zstandard: ModuleType, view: memoryview, raw_bytes: int, dictionary: Dictionary | None
) -> str | None:
    """What the frame's header says against it: the raw length decides what is allocated."""
    if bytes(view[:4]) != FRAME_MAGIC:
        return "is compressed and does not start as a zstd frame"
    try:
        header = zstandard.get_frame_parameters(view)
    except zstandard.ZstdError as exc:
        return f"has no zstd frame header: {exc}"
    if header.content_size != raw_bytes:
        stated = header.content_size
        known = "no length" if stated == zstandard.CONTENTSIZE_UNKNOWN else f"{stated} bytes"
        return f"is a zstd frame of {known}, not of the {raw_bytes} bytes that the index states"
    if header.dict_id and (dictionary is None or header.dict_id != dictionary.id):
        have = "none" if dictionary is None else str(dictionary.id)
        return f"needs the zstd dictionary {header.dict_id}, the shard has {have}"
    return None

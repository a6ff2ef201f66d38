"""Compresses the values of one zstd field, where that pays."""

from __future__ import annotations

from typing import Final

from streamloader.dts.fields import Field
from streamloader.dts.limits import DEFAULT_LIMITS
from streamloader.dts.zstd import Dictionary, require_zstandard
from streamloader.errors import ConfigError

DEFAULT_LEVEL: Final = 3
MAX_LEVEL: Final = 22
_MIN_SAVED_SHIFT: Final = 4
"""A value is stored raw unless a 16th of it is saved: below that, decompressing costs more."""


def check_zstd_level(level: object) -> None:
    """ConfigError unless ``level`` is an integer of 1 to 22."""
    if type(level) is not int or not 1 <= level <= MAX_LEVEL:
        raise ConfigError(f"zstd_level must be an integer of 1 to {MAX_LEVEL}, got {level!r}")


class Compressor:
    """Turns raw values of one field into stored ones; not safe for several threads at once.

    Every compressed value is a single frame that states its raw length. The bytes depend on the
    version of zstd, so two machines give equal shards when their zstd is the same.

    Args:
        field: with codec ``zstd``.
        level: 1 to 22.
        dictionary: that every frame is made with.

    Raises:
        ConfigError: for another level, an unusable dictionary, or without the zstd package.
    """

    def __init__(self, field: Field, level: int, dictionary: Dictionary | None) -> None:
        check_zstd_level(level)
        zstandard = require_zstandard(f"field {field.name!r} with codec 'zstd'")
        loaded = None
        if dictionary is not None:
            loaded = dictionary.load(zstandard)
            try:
                loaded.precompute_compress(level=level)
            except zstandard.ZstdError as exc:
                raise ConfigError(f"dictionary of field {field.name!r} is unusable: {exc}") from exc
        self._compress = zstandard.ZstdCompressor(
            level=level,
            dict_data=loaded,
            write_checksum=False,
            write_content_size=True,
            write_dict_id=True,
        ).compress

    def stored(self, raw: bytes | memoryview) -> bytes | memoryview:
        """`raw` compressed, or `raw` itself where that saves too little or too much.

        Too much is beyond the ratio that readers accept: a mask of one colour shrinks 10,000
        times, which nobody can tell from an attack.
        """
        if not 0 < len(raw) <= DEFAULT_LIMITS.raw_bytes:
            return raw
        packed: bytes = self._compress(raw)
        pays = len(packed) < len(raw) - (len(raw) >> _MIN_SAVED_SHIFT)
        allowed = len(raw) <= DEFAULT_LIMITS.raw_ratio * len(packed)
        return packed if pays and allowed else raw

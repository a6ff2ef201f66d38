"""The hashes that guard the stored bytes of records."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import xxhash

from streamloader.errors import ConfigError

if TYPE_CHECKING:
    from typing_extensions import Buffer

HashFunction = Callable[["Buffer"], int]
"""Unsigned integer of at most 64 bits, made of bytes."""

DEFAULT_HASH: Final = "xxh3-64"
_RESERVED: Final = ("crc32c",)


def _crc32(data: Buffer) -> int:
    return zlib.crc32(data)


_FUNCTIONS: Final[dict[str, HashFunction]] = {
    DEFAULT_HASH: xxhash.xxh3_64_intdigest,
    "crc32": _crc32,
}

HASH_NAMES: Final = tuple(_FUNCTIONS)
"""Names that a schema may have: ``xxh3-64``, or ``crc32`` for readers with zlib alone."""


def hash_function(name: str) -> HashFunction:
    """The function behind the name in a schema.

    Raises:
        ConfigError: when this build does not have it.
    """
    function = _FUNCTIONS.get(name)
    if function is None:
        known = ", ".join(HASH_NAMES)
        if name in _RESERVED:
            raise ConfigError(
                f"hash {name!r} is reserved by the format, and this build has {known} only"
            )
        raise ConfigError(f"hash {name!r} is unknown; this build has {known}")
    return function

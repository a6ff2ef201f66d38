"""How values are stored: the codec of each field, its level, and the hash that guards them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from streamloader.dts import (
    CODECS,
    DEFAULT_HASH,
    DEFAULT_ZSTD_LEVEL,
    Field,
    Schema,
    check_zstd_level,
    hash_function,
    require_zstandard,
)
from streamloader.errors import ConfigError

CodecChoice = str | Mapping[str, str] | None

#: In a choice by field name, stands for every payload field but pictures.
OTHERS = "*"


@dataclass(frozen=True, slots=True)
class Encoding:
    """What the options say of it, before the fields are known.

    Args:
        codec: ``"none"`` or ``"zstd"`` for every payload field but pictures, which are compressed
            already; or codecs by field name, pictures included, where ``"*"`` stands for what
            one codec would; None leaves every field as it is declared.
        zstd_level: 1 to 22, only with codec ``zstd``; None is 3.
        hash: ``"xxh3-64"`` or ``"crc32"``.

    Raises:
        ConfigError: a codec, level or hash that does not exist, a level without codec ``zstd``,
            or codec ``zstd`` without the zstd package.
    """

    codec: CodecChoice = None
    zstd_level: int | None = None
    hash: str = DEFAULT_HASH

    def __post_init__(self) -> None:
        hash_function(self.hash)
        if self.zstd_level is not None:
            check_zstd_level(self.zstd_level)
        chosen = self._chosen()
        for codec in chosen.values():
            if codec not in CODECS:
                raise ConfigError(f"codec must be one of {', '.join(CODECS)}, got {codec!r}")
        if "zstd" in chosen.values():
            require_zstandard("codec 'zstd'")
        elif chosen:
            self._require_no_level()

    @property
    def level(self) -> int:
        """The level to compress with."""
        return DEFAULT_ZSTD_LEVEL if self.zstd_level is None else self.zstd_level

    def schema(self, fields: Iterable[Field]) -> Schema:
        """The schema of ``fields`` with their codecs and the hash.

        Raises:
            ConfigError: a named field does not exist or cannot have a codec, or ``zstd`` or a
                level was asked for and no field would be compressed.
        """
        fields, chosen = tuple(fields), self._chosen()
        names = [field.name for field in fields]
        for name in chosen:
            if name != OTHERS and name not in names:
                raise ConfigError(
                    f"a codec is given for {name!r}; the fields are {', '.join(names)}"
                )
        coded = tuple(dataclasses.replace(f, codec=_codec(f, chosen)) for f in fields)
        if any(field.codec == "zstd" for field in coded):
            require_zstandard("codec 'zstd'")
        elif "zstd" in chosen.values():
            raise ConfigError(_nothing_to_compress(fields))
        else:
            self._require_no_level()
        return Schema(coded, self.hash)

    def shaping(self, schema: Schema) -> dict[str, int]:
        """What of it shapes the bytes of a shard besides its schema."""
        compressed = any(field.codec == "zstd" for field in schema.fields)
        return {"zstd_level": self.level} if compressed else {}

    def _chosen(self) -> Mapping[str, str]:
        if self.codec is None:
            return {}
        return {OTHERS: self.codec} if isinstance(self.codec, str) else self.codec

    def _require_no_level(self) -> None:
        if self.zstd_level is not None:
            raise ConfigError("zstd_level has no use without codec 'zstd'; give both or neither")


def _codec(field: Field, chosen: Mapping[str, str]) -> str:
    if field.name in chosen:
        return chosen[field.name]
    if field.type == "picture" or field.is_column:
        return field.codec
    return chosen.get(OTHERS, field.codec)


def _nothing_to_compress(fields: tuple[Field, ...]) -> str:
    message = "codec 'zstd' has no field to compress"
    for field in fields:
        if field.type == "picture":
            return (
                f"{message}: {field.name!r} holds pictures, which are compressed already; for BMP "
                f"or plain TIFF name the field, as {field.name}=zstd"
            )
    return message

"""What the format demands of zstd data, and the way to the package that reads it."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from streamloader.errors import ConfigError

if TYPE_CHECKING:
    from types import ModuleType

FRAME_MAGIC: Final = b"\x28\xb5\x2f\xfd"
DICTIONARY_MAGIC: Final = b"\x37\xa4\x30\xec"
DICTIONARY_MAX_BYTES: Final = 2**20

_DICTIONARY_HEAD: Final = struct.Struct("<4sI")


def require_zstandard(purpose: str) -> ModuleType:
    """The ``zstandard`` module, imported when it is first needed.

    Args:
        purpose: what needs it, as the start of the error's sentence.

    Raises:
        ConfigError: when it is not installed; the message names the extra.
    """
    try:
        import zstandard
    except ImportError as exc:
        raise ConfigError(f"{purpose} needs zstd: pip install 'streamloader[zstd]'") from exc
    return zstandard


@dataclass(frozen=True, slots=True)
class Dictionary:
    """A dictionary of one zstd field, as trained by ``zstd --train`` or ``zstandard``.

    Args:
        data: in zstd's dictionary format, at most 1 MiB.

    Raises:
        ConfigError: when `data` does not start as such a dictionary.
    """

    data: bytes

    def __post_init__(self) -> None:
        if len(self.data) > DICTIONARY_MAX_BYTES:
            raise ConfigError(
                f"dictionary has {len(self.data)} bytes, more than {DICTIONARY_MAX_BYTES}"
            )
        if self.data[:4] != DICTIONARY_MAGIC or len(self.data) < 8 or self.id == 0:
            raise ConfigError(
                "dictionary is not in zstd's format, with an id that is not 0; train it with "
                "`zstd --train` or zstandard.train_dictionary"
            )

    @property
    def id(self) -> int:
        """Number that frames made with this dictionary state."""
        return int(_DICTIONARY_HEAD.unpack_from(self.data)[1])

    def load(self, zstandard: ModuleType) -> Any:
        """A new ``zstandard.ZstdCompressionDict`` of it."""
        return zstandard.ZstdCompressionDict(self.data, dict_type=zstandard.DICT_TYPE_FULLDICT)

"""Names of a data set's objects, the pointer to its newest revision, and shard identity."""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from streamloader.dts.layout import UUID_BYTES
from streamloader.dts.strict_json import JsonObject, canonical_json, parse_json
from streamloader.errors import ConfigError, ShardError

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAX_REV: Final = 999_999
POINTER_NAME: Final = "latest.json"
MAX_OBJECT_NAME_CHARS: Final = 1024
_POINTER_MAX_BYTES: Final = 4096
_UUID_DOMAIN: Final = b"DTS1 shard\0"

_PLAIN_SEGMENT: Final = r"[A-Za-z0-9_-][A-Za-z0-9_.-]*"
_PLAIN_NAME: Final = re.compile(rf"{_PLAIN_SEGMENT}(?:/{_PLAIN_SEGMENT})*", re.ASCII)
_CONTROL: Final = re.compile("[\x00-\x1f\x7f\\\\:\ud800-\udfff]")


def manifest_name(rev: int) -> str:
    """``manifest-000001.json``."""
    return f"manifest-{_checked_rev(rev):06d}.json"


def sidecar_name(rev: int) -> str:
    """``offsets-000001.bin``."""
    return f"offsets-{_checked_rev(rev):06d}.bin"


def _checked_rev(rev: int) -> int:
    if type(rev) is not int or not 1 <= rev <= MAX_REV:
        raise ConfigError(f"a revision is 1 to {MAX_REV}, got {rev!r}")
    return rev


def is_object_name(name: object) -> bool:
    """True for a name that stays below the data set's root on every kind of storage.

    Relative, ``/`` between non-empty segments, none of them ``.`` or ``..``; no scheme, drive,
    backslash, control character or lone surrogate.
    """
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_OBJECT_NAME_CHARS:
        return False
    if _PLAIN_NAME.fullmatch(name):
        return True
    if _CONTROL.search(name):
        return False
    return all(segment not in ("", ".", "..") for segment in name.split("/"))


@dataclass(frozen=True, slots=True)
class Pointer:
    """Content of ``latest.json``, written last of all.

    Args:
        rev: newest revision, 1 to 999,999.
        manifest: name of its manifest.
        sha256: digest of that manifest's bytes, 64 lower-case hex digits.
    """

    rev: int
    manifest: str
    sha256: str

    def to_bytes(self) -> bytes:
        return canonical_json({"rev": self.rev, "manifest": self.manifest, "sha256": self.sha256})

    @classmethod
    def parse(cls, data: Buffer, name: str = POINTER_NAME) -> Pointer:
        """
        Raises:
            ShardError: when it is not a valid pointer.
        """
        if memoryview(data).nbytes > _POINTER_MAX_BYTES:
            raise ShardError(f"pointer is longer than {_POINTER_MAX_BYTES} bytes", shard=name)
        value = parse_json(data, shard=name, what="pointer", max_depth=1)
        item = JsonObject(value, shard=name, what="pointer")
        rev = item.take_integer("rev", 1, MAX_REV)
        pointer = cls(rev, item.take_text("manifest"), item.take_hex("sha256", 32).hex())
        item.finish()
        if pointer.manifest != manifest_name(rev):
            raise ShardError(
                f"pointer names {pointer.manifest!r} as revision {rev}, whose manifest is "
                f"{manifest_name(rev)}",
                shard=name,
            )
        return pointer


def shard_uuid(options: bytes, samples: Iterable[tuple[str | bytes, int]]) -> bytes:
    """Identity of a shard from what is known before its first sample is read.

    The first 16 bytes of SHA-256 over a domain tag, the options, and each sample's key and size
    in order, every text preceded by its length, so that no two inputs run together.

    Args:
        options: canonical bytes of every option that changes the shard's content.
        samples: (key, size in bytes) in stored order.
    """
    digest = hashlib.sha256(_UUID_DOMAIN)
    digest.update(struct.pack("<Q", len(options)))
    digest.update(options)
    for key, size in samples:
        raw = encode_key(key) if isinstance(key, str) else key
        digest.update(struct.pack("<Q", len(raw)))
        digest.update(raw)
        digest.update(struct.pack("<Q", size))
    return digest.digest()[:UUID_BYTES]


def encode_key(key: str) -> bytes:
    """Stored bytes of a key: UTF-8; escaped surrogates become the raw bytes they stand for.

    So a path from `os.fsdecode` is stored as the file system has it, whatever its encoding.

    Raises:
        ConfigError: for surrogates that stand for no byte.
    """
    try:
        return key.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as exc:
        raise ConfigError(f"key {key!a} cannot be stored: {exc.reason}") from exc


def decode_key(raw: Buffer) -> str:
    """The reverse of `encode_key`; every byte string has one."""
    return bytes(raw).decode("utf-8", "surrogateescape")

"""The manifest's list of shards, held as columns so that 100,000 of them stay small and fast."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, overload

import numpy as np
import numpy.typing as npt

from streamloader.dts.layout import HEAD_BYTES, SECTION_ALIGN, TRAILER_BYTES, UUID_BYTES, Uuid
from streamloader.dts.limits import DEFAULT_LIMITS
from streamloader.dts.naming import MAX_OBJECT_NAME_CHARS, is_object_name
from streamloader.dts.strict_json import JsonObject, parse_hex
from streamloader.errors import ConfigError, ShardError

_SHA256_BYTES: Final = 32
_MAX_SCHEMAS: Final = 256


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """One shard as the manifest states it.

    Args:
        name: of the object, relative to the data set.
        bytes: its length.
        samples: records in it.
        tail_bytes: length of its tail.
        uuid: 16 bytes, as in its head.
        tail_crc32: CRC-32 of its tail.
        sha256: of the whole shard, 64 lower-case hex digits.
        schema_id: place of its schema in the manifest.
        store_checksum: what the storage returned for it, like ``crc64nvme:…``, if known.
    """

    name: str
    bytes: int
    samples: int
    tail_bytes: int
    uuid: Uuid
    tail_crc32: int
    sha256: str
    schema_id: int = 0
    store_checksum: str | None = None

    def to_object(self) -> dict[str, object]:
        """The entry as JSON values."""
        item: dict[str, object] = {
            "name": self.name,
            "bytes": self.bytes,
            "samples": self.samples,
            "tail_bytes": self.tail_bytes,
            "uuid": self.uuid.hex(),
            "tail_crc32": self.tail_crc32,
            "sha256": self.sha256,
            "schema_id": self.schema_id,
        }
        if self.store_checksum is not None:
            item["store_checksum"] = self.store_checksum
        return item


_REQUIRED: Final = frozenset(f.name for f in fields(ShardEntry)) - {"store_checksum"}
_INTEGERS: Final = {
    "bytes": (HEAD_BYTES + TRAILER_BYTES, DEFAULT_LIMITS.file_bytes),
    "samples": (0, DEFAULT_LIMITS.samples),
    "tail_bytes": (TRAILER_BYTES, DEFAULT_LIMITS.tail_bytes),
    "tail_crc32": (0, 2**32 - 1),
    "schema_id": (0, _MAX_SCHEMAS - 1),
}


class ShardTable(Sequence[ShardEntry]):
    """Immutable sequence of `ShardEntry`, each made when asked for.

    Attributes:
        names: name of each shard.
        bytes, samples, tail_bytes: int64 [num_shards], read-only.
    """

    __slots__ = (
        "_schema_ids",
        "_sha256",
        "_store_checksums",
        "_tail_crc32",
        "_uuids",
        "bytes",
        "names",
        "samples",
        "tail_bytes",
    )

    def __init__(self, entries: Iterable[ShardEntry]) -> None:
        items = [entry.to_object() for entry in entries]
        try:
            self._fill(items, "manifest")
        except ShardError as exc:
            raise ConfigError(exc.reason) from exc

    @classmethod
    def from_objects(cls, items: list[Any], name: str) -> ShardTable:
        """Table from the JSON values of the manifest `name`.

        Raises:
            ShardError: for the first entry that breaks a rule.
        """
        table = cls.__new__(cls)
        table._fill(items, name)  # noqa: SLF001  own class, before anyone else sees it
        return table

    def _fill(self, items: list[Any], manifest: str) -> None:
        _check_keys(items, manifest)
        numbers = {
            key: _integers([item[key] for item in items], key, low, high, manifest)
            for key, (low, high) in _INTEGERS.items()
        }
        self.names: list[str] = [item["name"] for item in items]
        _check_names(self.names, manifest)
        self.bytes = _read_only(numbers["bytes"])
        self.samples = _read_only(numbers["samples"])
        self.tail_bytes = _read_only(numbers["tail_bytes"])
        self._tail_crc32 = numbers["tail_crc32"].astype(np.uint32)
        self._schema_ids = numbers["schema_id"].astype(np.uint8)
        self._uuids = _digests([item["uuid"] for item in items], UUID_BYTES, "uuid", manifest)
        self._sha256 = _digests(
            [item["sha256"] for item in items], _SHA256_BYTES, "sha256", manifest
        )
        self._store_checksums = _store_checksums(items, manifest)
        payload_end = self.bytes - self.tail_bytes
        bad = (payload_end < HEAD_BYTES) | (payload_end % SECTION_ALIGN != 0)
        if bad.any():
            at = int(np.argmax(bad))
            raise ShardError(
                f"shard {at} has a tail of {self.tail_bytes[at]} bytes in {self.bytes[at]}, "
                "which no shard can have",
                shard=manifest,
            )

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, item: int) -> ShardEntry: ...

    @overload
    def __getitem__(self, item: slice) -> list[ShardEntry]: ...

    def __getitem__(self, item: int | slice) -> ShardEntry | list[ShardEntry]:
        if isinstance(item, slice):
            return [self.entry(i) for i in range(*item.indices(len(self)))]
        return self.entry(item)

    def entry(self, shard: int) -> ShardEntry:
        """Entry of one shard."""
        index = range(len(self))[shard]
        return ShardEntry(
            name=self.names[index],
            bytes=int(self.bytes[index]),
            samples=int(self.samples[index]),
            tail_bytes=int(self.tail_bytes[index]),
            uuid=self._uuids[index * UUID_BYTES : (index + 1) * UUID_BYTES],
            tail_crc32=int(self._tail_crc32[index]),
            sha256=self._sha256[index * _SHA256_BYTES : (index + 1) * _SHA256_BYTES].hex(),
            schema_id=int(self._schema_ids[index]),
            store_checksum=self._store_checksums.get(index),
        )

    def __iter__(self) -> Iterator[ShardEntry]:
        return (self.entry(i) for i in range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ShardTable):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # compared by content, too large to hash

    def __repr__(self) -> str:
        return f"<ShardTable of {len(self)} shards>"

    @property
    def max_schema_id(self) -> int:
        return int(self._schema_ids.max()) if len(self) else 0


def _check_keys(items: list[Any], manifest: str) -> None:
    with_checksum = _REQUIRED | {"store_checksum"}
    for index, item in enumerate(items):
        if type(item) is dict and (item.keys() == _REQUIRED or item.keys() == with_checksum):
            continue
        entry = JsonObject(item, shard=manifest, what=f"shard {index}")
        for key in sorted(_REQUIRED):
            entry.take(key)
        if isinstance(item, dict) and "store_checksum" in item:
            entry.take("store_checksum")
        entry.finish()


def _integers(
    values: list[Any], key: str, low: int, high: int, manifest: str
) -> npt.NDArray[np.int64]:
    if set(map(type, values)) <= {int} and (
        not values or (min(values) >= low and max(values) <= high)
    ):
        return np.array(values, dtype=np.int64)
    at = next(i for i, v in enumerate(values) if type(v) is not int or not low <= v <= high)
    raise ShardError(
        f"shard {at} has {key} that is not an integer of {low} to {high}", shard=manifest
    )


def _check_names(names: list[Any], manifest: str) -> None:
    for index, name in enumerate(names):
        if not is_object_name(name):
            raise ShardError(
                f"shard {index} has the name {ascii(name)[:80]}; names are relative, of at most "
                f"{MAX_OBJECT_NAME_CHARS} characters, without '..', scheme or backslash",
                shard=manifest,
            )
    if len(set(names)) != len(names):
        seen: set[str] = set()
        for index, name in enumerate(names):
            if name in seen:
                raise ShardError(f"shard {index} has the name {name!r} again", shard=manifest)
            seen.add(name)


def _digests(values: list[Any], num_bytes: int, key: str, manifest: str) -> bytes:
    """All digests one behind the other; read in one go, since there may be many."""
    if set(map(type, values)) <= {str} and set(map(len, values)) <= {2 * num_bytes}:
        joined = parse_hex("".join(values), num_bytes * len(values))
        if joined is not None:
            return joined
    at = next(i for i, value in enumerate(values) if parse_hex(value, num_bytes) is None)
    raise ShardError(
        f"shard {at} has {key} that is not {2 * num_bytes} lower-case hex digits", shard=manifest
    )


def _store_checksums(items: list[Any], manifest: str) -> dict[int, str]:
    found: dict[int, str] = {}
    for index, item in enumerate(items):
        if "store_checksum" not in item:
            continue
        value = item["store_checksum"]
        if not isinstance(value, str) or not value.isascii() or not 1 <= len(value) <= 256:
            raise ShardError(
                f"shard {index} has a store_checksum that is not 1 to 256 ASCII characters",
                shard=manifest,
            )
        found[index] = value
    return found


def _read_only(array: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    array.flags.writeable = False
    return array

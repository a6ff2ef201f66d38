"""JSON as the format uses it: canonical when written, closed and bounded when read."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from streamloader.errors import ConfigError, ShardError

if TYPE_CHECKING:
    from typing_extensions import Buffer


def canonical_json(value: object) -> bytes:
    """One byte string for one value: sorted keys, no spaces, UTF-8.

    Lone surrogates (file names that are not UTF-8) are written as ``\\udcXX`` escapes, so the
    result is always valid UTF-8 and gives the same text back.

    Raises:
        ConfigError: for NaN, infinities and values that JSON does not have.
    """
    try:
        text = json.dumps(
            value, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")
        )
    except (TypeError, ValueError, RecursionError) as exc:
        raise ConfigError(f"value cannot be written as JSON: {exc}") from exc
    return text.encode("utf-8", "backslashreplace")


def check_json_value(value: object, max_depth: int) -> None:
    """Refuse what would not come back as it was given: keys that are not text, deep nesting.

    Raises:
        ConfigError: naming the fault.
    """
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ConfigError(f"JSON keys must be str, got {key!r}")
        children: Collection[object] = value.values()
    elif isinstance(value, list | tuple):
        children = value
    else:
        return
    if max_depth <= 0:
        raise ConfigError("JSON value is nested too deeply; flatten it or store it as bytes")
    for child in children:
        check_json_value(child, max_depth - 1)


def parse_json(
    data: Buffer, *, shard: str, what: str, max_depth: int | None, offset: int | None = None
) -> Any:
    """Parse UTF-8 JSON that came from outside.

    Refused beyond bad syntax: duplicate keys, NaN and infinities (also by overflow, ``1e400``),
    nesting deeper than `max_depth`, other encodings. None leaves the depth to a caller that takes
    the value apart as a closed structure.

    Raises:
        ShardError: naming `what` and the fault; nothing else leaves this function.
    """
    try:
        value = json.loads(
            bytes(data).decode("utf-8"),
            object_pairs_hook=_unique_keys,
            parse_constant=_refuse_constant,
            parse_float=_finite_float,
        )
    except RecursionError as exc:
        raise ShardError(f"{what} is nested too deeply", shard=shard, offset=offset) from exc
    except ValueError as exc:
        raise ShardError(f"{what} is not valid JSON: {exc}", shard=shard, offset=offset) from exc
    if max_depth is not None and _deeper_than(value, max_depth):
        raise ShardError(
            f"{what} is nested deeper than {max_depth} levels", shard=shard, offset=offset
        )
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"key {key!r} appears twice")
            seen.add(key)
    return result


def _refuse_constant(token: str) -> Any:
    raise ValueError(f"{token} is not a JSON number")


def _finite_float(token: str) -> float:
    value = float(token)
    if not math.isfinite(value):
        raise ValueError(f"number {token[:40]} is out of range")
    return value


def _deeper_than(value: Any, levels: int) -> bool:
    """Level by level rather than by recursion, so a deep value cannot exhaust the stack."""
    layer = [value]
    for _ in range(levels + 1):
        layer = [
            child
            for node in layer
            if isinstance(node, dict | list)
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        ]
        if not layer:
            return False
    return True


class JsonObject:
    """Typed, closed-world reading of one JSON object: each key is taken once, none is left over.

    Raises:
        ShardError: from every method, naming the object, the key and the rule.
    """

    __slots__ = ("_rest", "_shard", "_what")

    def __init__(self, value: Any, *, shard: str, what: str) -> None:
        self._shard = shard
        self._what = what
        if not isinstance(value, dict):
            raise self.fault("is not a JSON object")
        self._rest = dict(value)

    def fault(self, reason: str) -> ShardError:
        return ShardError(f"{self._what} {reason}", shard=self._shard)

    def take(self, key: str, *absent: Any) -> Any:
        """Value of a key; `absent`, when given, stands for a key that is not there."""
        try:
            return self._rest.pop(key, *absent)
        except KeyError:
            raise self.fault(f"lacks the key {key!r}") from None

    def take_integer(self, key: str, low: int, high: int) -> int:
        value = self.take(key)
        if type(value) is not int or not low <= value <= high:
            raise self.fault(f"has {key} = {_shown(value)}, not an integer of {low} to {high}")
        return value

    def take_text(self, key: str, max_chars: int = 1024) -> str:
        value = self.take(key)
        if not isinstance(value, str) or len(value) > max_chars:
            raise self.fault(f"has {key} = {_shown(value)}, not a text of at most {max_chars}")
        return value

    def take_hex(self, key: str, num_bytes: int) -> bytes:
        value = self.take(key)
        digest = parse_hex(value, num_bytes)
        if digest is None:
            raise self.fault(f"has {key} = {_shown(value)}, not {2 * num_bytes} lower-case hex")
        return digest

    def take_list(self, key: str, max_items: int) -> list[Any]:
        value = self.take(key)
        if not isinstance(value, list) or len(value) > max_items:
            raise self.fault(f"has {key} that is not a list of at most {max_items}")
        return value

    def take_mapping(self, key: str) -> dict[str, Any]:
        value = self.take(key)
        if not isinstance(value, dict):
            raise self.fault(f"has {key} that is not a JSON object")
        return value

    def finish(self) -> None:
        """Refuse keys that nobody took."""
        if self._rest:
            key = min(self._rest)
            raise self.fault(
                f"has the unknown key {_shown(key)}; a newer version may have written it"
            )


def parse_hex(value: object, num_bytes: int) -> bytes | None:
    """The bytes behind a lower-case hexadecimal text of exactly `num_bytes`, else None."""
    if not isinstance(value, str) or len(value) != 2 * num_bytes:
        return None
    try:
        digest = bytes.fromhex(value)
    except ValueError:
        return None
    return digest if digest.hex() == value else None


def _shown(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."

"""Changes to bytes and JSON that know nothing of shards."""

from __future__ import annotations

import random
import struct

from streamloader.dts import canonical_json
from streamloader.dts.strict_json import parse_json

NUMBERS = (
    0,
    1,
    2,
    63,
    64,
    65,
    127,
    128,
    255,
    2**15,
    2**16 - 1,
    2**31,
    2**32 - 1,
    2**63,
    2**64 - 64,
)
TOKENS = (
    b"u1", b"i8", b"bf16", b"bool", b"picture", b"utf8", b"json", b"bytes", b"zstd", b"none",
    b"xxh3-64", b"crc32", b"crc32c", b"[]", b"[-1]", b"[0]", b"[1,1]", b"[4294967295]", b"null",
    b"true", b"1e999", b"NaN", b"-1", b"18446744073709551616", b'"', b"{", b"}", b",", b"\xff",
    b"\\ud800", b'"default":0,', b'"default":[[],{}],', b'"codec":"zstd"', b'"shape":[2]',
)  # fmt: skip


def edit_bytes(rng: random.Random, raw: bytes) -> bytes:
    """A few bytes or whole numbers changed, cut out, put in or said twice."""
    data = bytearray(raw)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(7):
            case 0 if data:
                data[at % len(data)] ^= 1 << rng.randrange(8)
            case 1 if data:
                data[at % len(data)] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            case 2 | 3 if len(data) >= 8:
                size, code = rng.choice(((4, "<I"), (8, "<Q"), (2, "<H")))
                place = at % (len(data) - size + 1) // size * size
                (value,) = struct.unpack_from(code, data, place)
                delta = rng.choice((-64, -1, 1, 64, 2**31))
                value = rng.choice((*NUMBERS, value + delta, rng.getrandbits(64)))
                struct.pack_into(code, data, place, value % 2 ** (8 * size))
            case 4:
                del data[at : at + rng.choice((1, 4, 8, 64))]
            case 5:
                data[at:at] = rng.choice((bytes(8), rng.randbytes(4), data[at : at + 64]))
            case _:
                token = rng.choice(TOKENS)
                data[at : at + rng.choice((0, len(token)))] = token
    return bytes(data)


def edit_json(rng: random.Random, data: bytes) -> bytes:
    """Some value anywhere in a JSON text replaced, removed or repeated."""
    value = parse_json(data, shard="corpus", what="corpus", max_depth=None)
    strange = (None, True, -1, 2**31, 2**64, 1.5, "", "../x", "\ud800", [], {}, [[]], "zstd")
    node = value
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            break
        key = rng.choice(keys)
        if isinstance(node[key], dict | list) and rng.random() < 0.8:
            node = node[key]
            continue
        match rng.randrange(4):
            case 0:
                del node[key]
            case 1 if isinstance(node, dict):
                node[rng.choice(("x", key + "x"))] = node[key]
            case 1:
                node.append(node[key])
            case _:
                node[key] = rng.choice((*strange, *(node[k] for k in keys)))
        break
    return canonical_json(value)


def flip_bits(rng: random.Random, data: bytes) -> bytes:
    raw = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    return bytes(raw)


def cut_or_grow(rng: random.Random, data: bytes) -> bytes:
    at = rng.choice((rng.randrange(len(data)), rng.randrange(len(data)) // 64 * 64))
    grown = data + rng.choice((bytes(64), rng.randbytes(8), data[-64:]))
    return rng.choice((data[:at], data[at:], grown, data[:at] + data[-64:]))


def splice(rng: random.Random, data: bytes, other: bytes) -> bytes:
    step = rng.choice((1, 64))
    at = rng.randrange(len(data)) // step * step
    end = rng.randrange(len(other)) // step * step
    return rng.choice((data[:at] + other[end:], data[:at] + other[at:]))


def overwrite(rng: random.Random, data: bytes) -> bytes:
    raw = bytearray(data)
    at, length = rng.randrange(len(raw)), rng.choice((1, 8, 64, 300))
    start = rng.randrange(len(raw))
    patch = rng.choice((bytes(length), rng.randbytes(length), data[start : start + length]))
    raw[at : at + len(patch)] = patch
    return bytes(raw[: len(data)])


DAMAGE = (flip_bits, cut_or_grow, overwrite)

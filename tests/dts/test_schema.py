from __future__ import annotations

import numpy as np
import pytest

from streamloader.dts import Field, Schema
from streamloader.errors import ConfigError, ShardError


@pytest.mark.parametrize(
    ("spec", "type_", "shape"),
    [
        ("picture", "picture", ()),
        ("bytes", "bytes", ()),
        (bytes, "bytes", ()),
        ("str", "utf8", ()),
        (str, "utf8", ()),
        ("json", "json", ()),
        ("int64", "i8", ()),
        ("int", "i8", ()),
        (int, "i8", ()),
        (float, "f8", ()),
        (bool, "bool", ()),
        ("i8", "i8", ()),
        ("float32", "f4", ()),
        (np.float32, "f4", ()),
        (np.dtype("uint16"), "u2", ()),
        ("bfloat16", "bf16", ()),
        ("int64:[4]", "i8", (4,)),
        ("f4:[3, 4]", "f4", (3, 4)),
        ("f4:[-1]", "f4", (-1,)),
        (("float32", (4,)), "f4", (4,)),
        ((np.uint8, (224, 224, 3)), "u1", (224, 224, 3)),
        (["int32", [2]], "i4", (2,)),
    ],
)
def test_fields_take_the_names_that_users_write(spec, type_, shape):
    assert Field.parse("x", spec) == Field("x", type_, shape)


@pytest.mark.parametrize(
    "spec",
    [
        "pickle",
        "int128",
        "object",
        object,
        "f4:[0]",
        "f4:[-1,2]",
        "f4:[a]",
        "bytes:[3]",
        "f4[3]",
        7,
        ("f4:[2]", (2,)),
        ("f4", ("x",)),
        "f4:[" + "1," * 9 + "]",
        "u1:[100000,100000]",
        "",
    ],
)
def test_what_the_format_does_not_have_is_a_config_error(spec):
    with pytest.raises(ConfigError):
        Field.parse("x", spec)


@pytest.mark.parametrize("name", ["", "a b", "é", "a/b", "x" * 129, "a\n", None])
def test_field_names_are_plain(name):
    with pytest.raises(ConfigError, match="name"):
        Field(name, "u1")


def test_small_fixed_fields_are_columns_and_the_rest_is_payload():
    schema = Schema.of(
        {
            "image": "picture",
            "label": "int64",
            "box": "f4:[16]",
            "big": "f4:[17]",
            "ids": "i4:[-1]",
            "text": "str",
            "mask": "picture",
        }
    )
    assert [(c.name, c.column_id) for c in schema.columns] == [
        ("label", 1),
        ("box", 2),
        ("image.width", 7),
        ("image.height", 8),
        ("image.kind", 9),
        ("mask.width", 10),
        ("mask.height", 11),
        ("mask.kind", 12),
    ]
    assert [f.name for f in schema.payload_fields] == ["image", "big", "ids", "text", "mask"]
    assert [f.name for f in schema.payload_fields if f.has_lengths] == [
        "image",
        "ids",
        "text",
        "mask",
    ]


def test_schema_json_is_canonical_and_comes_back():
    schema = Schema((Field("image", "picture"), Field("mask", "u1", (9, 9), "zstd")))
    text = schema.to_json()
    assert text == (
        b'{"fields":[{"codec":"none","name":"image","shape":[],"type":"picture"},'
        b'{"codec":"zstd","name":"mask","shape":[9,9],"type":"u1"}],"hash":"xxh3-64"}'
    )
    assert Schema.parse(text) == schema


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {f"f{i}": "u1" for i in range(257)},
        {f"f{i}": "bytes" for i in range(127)},
        {"image": "picture", "image.width": "u4"},
    ],
)
def test_schemas_that_no_shard_can_have_are_refused(fields):
    with pytest.raises(ConfigError):
        Schema.of(fields)


def test_repeated_field_names_are_refused():
    with pytest.raises(ConfigError, match="twice"):
        Schema((Field("a", "u1"), Field("a", "u1")))


def test_columns_have_no_codec():
    with pytest.raises(ConfigError, match="column"):
        Field("label", "i8", codec="zstd")


def test_a_schema_longer_than_its_limit_is_refused_before_it_is_parsed():
    with pytest.raises(ShardError, match="1 MiB"):
        Schema.parse(b" " * (2**20 + 1))

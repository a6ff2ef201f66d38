"""A table with a row of labels or captions for each picture: CSV, JSONL or Parquet."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from storage_backends import NotFound
from streamloader.convert.report import utf8_name
from streamloader.convert.sources.places import (
    FileRange,
    is_in_bucket,
    open_place,
    require_bytes,
)
from streamloader.dts import Field
from streamloader.errors import ConfigError

#: Names of the column that names the picture, the first that is there counts.
PATH_COLUMNS = ("file_name", "filename", "file", "path", "image", "key")
_CLASS_COLUMN = "label"
_MAX_FIELD_CHARS = 1 << 27

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LabelTable:
    """The rows of a table.

    Args:
        fields: that the rows have besides the picture's path.
        classes: names of the ``label`` column, sorted by code points, if its values are names.
        rows: values by path of the picture, in the fields' types.
        repeated: paths that have several rows.
    """

    fields: tuple[Field, ...]
    classes: tuple[str, ...]
    rows: Mapping[str, Row]
    repeated: frozenset[str]


def read_table(
    path: str | os.PathLike[str], options: Mapping[str, Any] | None = None
) -> LabelTable:
    """Read a table whole.

    Args:
        path: a path, or the URL of an object.
        options: of ``open_store``, for a table in a bucket.

    A column is of whole numbers, of numbers, of texts or, in JSONL and Parquet, of JSON: the
    first of these that all its values are. The texts of a column ``label`` are class names.

    Raises:
        ConfigError: it cannot be read, has no column of paths, or rows lack columns.
        StorageError: the bucket cannot be read.
    """
    name = utf8_name(os.fspath(path))
    read_rows = _reader(name)
    try:
        rows = read_rows(_content(os.fspath(path), options or {}))
    except OSError as error:
        raise ConfigError(f"the table {name} cannot be read: {error.strerror}") from error
    except (csv.Error, ValueError) as error:
        raise ConfigError(f"the table {name} cannot be read: {error}") from error
    if not rows:
        raise ConfigError(f"the table {name} has no rows")
    columns = list(rows[0])
    path_column = next((c for c in PATH_COLUMNS if c in columns), None)
    if path_column is None:
        raise ConfigError(
            f"the table {name} has no column that names the pictures; one of"
            f" {', '.join(PATH_COLUMNS)} is wanted, it has {', '.join(columns)}"
        )
    for number, row in enumerate(rows, start=1):
        if row.keys() != rows[0].keys() or None in row.values():
            raise ConfigError(f"row {number} of the table {name} has other columns than the first")
    others = [column for column in columns if column != path_column]
    return _typed(rows, path_column, others)


def _typed(rows: Sequence[Row], path_column: str, columns: Sequence[str]) -> LabelTable:
    fields, converters = [], {}
    classes: tuple[str, ...] = ()
    for column in columns:
        values = [row[column] for row in rows]
        kind, convert = _kind(values)
        if column == _CLASS_COLUMN and kind == "utf8":
            classes = tuple(sorted(set(values)))
            places = {text: place for place, text in enumerate(classes)}
            kind, convert = "i8", places.__getitem__
        fields.append(Field(column, kind))
        converters[column] = convert
    found: dict[str, Row] = {}
    repeated = set()
    for row in rows:
        key = str(row[path_column]).removeprefix("./")
        if key in found:
            repeated.add(key)
        found[key] = {column: converters[column](row[column]) for column in columns}
    return LabelTable(tuple(fields), classes, found, frozenset(repeated))


def _kind(values: Iterable[Any]) -> tuple[str, Callable[[Any], Any]]:
    kinds = {_kind_of(value) for value in values}
    if kinds == {"i8"}:
        return "i8", int
    if kinds <= {"i8", "f8"}:
        return "f8", float
    if kinds <= {"i8", "f8", "utf8"}:
        return "utf8", str
    return "json", lambda value: value


def _kind_of(value: Any) -> str:
    if isinstance(value, bool | list | dict):
        return "json"
    if isinstance(value, int):
        return "i8" if -(2**63) <= value < 2**63 else "json"
    if isinstance(value, float):
        return "f8"
    text = str(value)
    digits = text.removeprefix("-")
    # "007" is a name: as a number it would lose its zeros.
    if digits.isascii() and digits.isdigit() and len(digits) <= 18:
        return "i8" if digits == "0" or not digits.startswith("0") else "utf8"
    return "f8" if _is_decimal(text) else "utf8"


def _is_decimal(text: str) -> bool:
    if not text or text[-1].isspace() or text[0].isspace() or "_" in text:
        return False
    try:
        float(text)
    except ValueError:
        return False
    return any(character.isdigit() for character in text)


def _content(path: str, options: Mapping[str, Any]) -> bytes:
    if not is_in_bucket(path):
        with open(path, "rb") as local:
            return local.read()
    place = open_place(path, options, is_object=True)
    try:
        (file,) = place.list_files()
    except NotFound as error:
        raise ConfigError(f"the table {utf8_name(path)} is not there: {error}") from error
    with place.reading() as read:
        (data,) = read([FileRange.whole(file)])
        return require_bytes(data, place, file)


def _reader(name: str) -> Callable[[bytes], list[Row]]:
    ending = os.path.splitext(name)[1].lower()
    readers = {
        ".csv": _read_csv,
        ".tsv": _read_tsv,
        ".jsonl": _read_jsonl,
        ".ndjson": _read_jsonl,
        ".parquet": _read_parquet,
    }
    if ending not in readers:
        raise ConfigError(f"the table {name} must end in one of {', '.join(readers)}")
    return readers[ending]


def _read_csv(data: bytes, delimiter: str = ",") -> list[Row]:
    csv.field_size_limit(_MAX_FIELD_CHARS)
    text = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig", newline="")
    rows: list[Row] = []
    for row in csv.DictReader(text, delimiter=delimiter, strict=True):
        if None in row:
            raise ValueError(f"row {len(rows) + 1} has more values than there are columns")
        rows.append(row)
    return rows


def _read_tsv(data: bytes) -> list[Row]:
    return _read_csv(data, "\t")


def _read_jsonl(data: bytes) -> list[Row]:
    rows: list[Row] = []
    for number, line in enumerate(io.BytesIO(data), start=1):
        if not line.strip():
            continue
        row = json.loads(line)
        if not isinstance(row, dict):
            raise ValueError(f"line {number} is no JSON object")
        rows.append(row)
    return rows


def _read_parquet(data: bytes) -> list[Row]:
    from streamloader.convert.sources.arrow_columns import pyarrow

    arrow = pyarrow()
    try:
        rows: list[Row] = arrow.parquet.read_table(arrow.BufferReader(data)).to_pylist()
    except arrow.ArrowException as error:
        raise ValueError(str(error).splitlines()[0]) from error
    return rows

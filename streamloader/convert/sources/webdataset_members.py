"""What the members of a WebDataset sample become: fields by their endings, and values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamloader.convert.report import utf8_name
from streamloader.convert.sources.folder_scan import PICTURE_EXTENSIONS
from streamloader.convert.sources.npy import NotAnArrayError, NpyHeader, read_npy, read_npy_header
from streamloader.convert.sources.npz import read_npz
from streamloader.convert.sources.places import SourceFile, Unreadable
from streamloader.dts import Field, is_name
from streamloader.errors import ConfigError

#: Reading them would run whatever program they hold.
_PICKLES = frozenset({"pkl", "pickle", "pyd", "pth", "pt"})
_TEXTS = frozenset({"txt", "text", "transcript"})
_JSONS = frozenset({"json", "jsn"})
_INTEGERS = frozenset({"cls", "cls2", "index", "inx", "id"})
_ARRAYS = {"npy": "array", "npz": "arrays"}
_PICTURES = frozenset(name[1:] for name in PICTURE_EXTENSIONS)
_INTEGER_DIGITS = 19
_TYPES = {"picture": "picture", "bytes": "bytes", "text": "utf8", "json": "json", "integer": "i8"}


@dataclass(frozen=True, slots=True)
class Column:
    """A member that samples have.

    Args:
        member: its ending, or what stands for it.
        kind: how it is read: ``picture``, ``bytes``, ``text``, ``json``, ``integer``, ``array`` or
            ``arrays``.
        fields: what it becomes; several for ``arrays``, named after it and each of them.
    """

    member: str
    kind: str
    fields: tuple[Field, ...]

    def values(self, data: memoryview | Unreadable) -> dict[str, Any]:
        """Return the value of each field. Raises ValueError, with a reason, where it has none."""
        if isinstance(data, Unreadable):
            raise ValueError(data.reason)
        if self.kind == "arrays":
            return self._arrays(read_npz(bytes(data)))
        return {self.fields[0].name: self._value(data)}

    def _value(self, data: memoryview) -> Any:
        match self.kind:
            case "text":
                return _text(bytes(data))
            case "json":
                return _json(bytes(data))
            case "integer":
                return _integer(bytes(data))
            case "array":
                return _fitting(self.fields[0], read_npy(bytes(data)))
        return data

    def _arrays(self, found: dict[str, npt.NDArray[Any]]) -> dict[str, Any]:
        names = {field.name: field.name.removeprefix(f"{self.member}.") for field in self.fields}
        if set(names.values()) != found.keys():
            raise ValueError(
                f"has the arrays {', '.join(found)}, others {', '.join(names.values())}"
            )
        return {field.name: _fitting(field, found[names[field.name]]) for field in self.fields}


def simple_column(member: str, kind: str) -> Column:
    """Return the column of a member that is no array."""
    return Column(member, kind, (Field(member, _TYPES[kind]),))


def array_column(member: str, samples: Sequence[tuple[str, bytes]]) -> Column:
    """Return the column of ``.npy`` members.

    Args:
        member: its ending.
        samples: where the first few of them are, in words, and their beginnings.

    Raises:
        ConfigError: they are no arrays, or of several types or shapes.
    """
    headers = []
    for where, data in samples:
        try:
            headers.append(read_npy_header(data))
        except NotAnArrayError as error:
            raise ConfigError(f"{where} is {error}") from error
    return Column(member, "array", (_array_field(member, headers),))


def arrays_column(member: str, samples: Iterable[bytes]) -> Column:
    """Return the column of ``.npz`` members: a field for each array, or bytes where that cannot be.

    It can where the first few that can be read have arrays of the same names, types and shapes.
    """
    archives = [arrays for arrays in map(_archive, samples) if arrays]
    names = list(archives[0]) if archives else []
    same = all(list(archive) == names for archive in archives)
    if not names or not same or not all(is_name(f"{member}.{name}") for name in names):
        return simple_column(member, "bytes")
    try:
        fields = tuple(
            _array_field(f"{member}.{name}", [archive[name] for archive in archives])
            for name in names
        )
    except ConfigError:
        # Of several types or shapes, which is a refusal for .npy and a reason for bytes here.
        return simple_column(member, "bytes")
    return Column(member, "arrays", fields)


def _archive(data: bytes) -> dict[str, npt.NDArray[Any]] | None:
    try:
        return read_npz(data)
    except NotAnArrayError:
        # A damaged one is a reject later on, when its sample is read.
        return None


def field_of(ending: str, tar: SourceFile) -> tuple[str, str]:
    """Return the name and the kind of the field that an ending stands for."""
    last = ending.rpartition(".")[2]
    if last in _PICKLES:
        raise ConfigError(
            f"{utf8_name(tar.path)} has .{ending} members: pickles, which run whatever program"
            " they hold when they are read; store the values as .json, .npy or .txt instead"
        )
    if last in _PICTURES:
        return ("image" if ending == last else ending.removesuffix(f".{last}")), "picture"
    if last in _INTEGERS:
        return ("label" if ending == "cls" else ending), "integer"
    if last in _TEXTS:
        return ending, "text"
    if last in _JSONS:
        return ending, "json"
    return ending, _ARRAYS.get(last, "bytes")


def _array_field(name: str, arrays: Sequence[npt.NDArray[Any] | NpyHeader]) -> Field:
    dtype, shapes = arrays[0].dtype, {array.shape for array in arrays}
    if any(array.dtype != dtype for array in arrays):
        raise ConfigError(f"the arrays {name} are of several types; store them as one")
    if len(shapes) == 1 and min(arrays[0].shape, default=1) > 0:
        return Field(name, _element(dtype), arrays[0].shape)
    if any(len(shape) != 1 for shape in shapes):
        raise ConfigError(
            f"the arrays {name} are of several shapes with more than one dimension, which a"
            " field cannot hold; flatten or pad them"
        )
    return Field(name, _element(dtype), (-1,))


def _fitting(field: Field, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if field.shape == (-1,) and array.ndim != 1:
        raise NotAnArrayError(f"an array of shape {array.shape}, others have one dimension")
    if field.shape != (-1,) and array.shape != field.shape:
        raise NotAnArrayError(f"an array of shape {array.shape}, others have {field.shape}")
    if _element(array.dtype) != field.type:
        raise NotAnArrayError(f"an array of {array.dtype}, others are of {field.dtype}")
    return array


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError("is not UTF-8") from error


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError("is not JSON") from error


def _integer(data: bytes) -> int:
    text = data.strip()
    if not text.removeprefix(b"-").isdigit() or len(text) > _INTEGER_DIGITS:
        raise ValueError(f"{text[:20]!r} is no whole number")
    return int(text)


def _element(dtype: np.dtype[Any]) -> str:
    return "bool" if dtype.kind == "b" else f"{dtype.kind}{dtype.itemsize}"

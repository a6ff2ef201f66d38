"""Reads the arrays of a ``.npz`` archive, those of numbers only."""

from __future__ import annotations

import io
import zipfile
import zlib
from typing import Any

import numpy.typing as npt

from streamloader.convert.sources.npy import NotAnArrayError, read_npy
from streamloader.dts import DEFAULT_LIMITS

_SUFFIX = ".npy"


def read_npz(data: bytes) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays by name, in the order of the archive.

    Raises:
        NotAnArrayError: it is no such archive, or one of its members is no array of numbers.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
            if sum(member.file_size for member in members) > DEFAULT_LIMITS.record_bytes:
                raise NotAnArrayError("a .npz archive that is too large unpacked")
            return {
                member.filename.removesuffix(_SUFFIX): read_npy(_unpacked(archive, member))
                for member in members
            }
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise NotAnArrayError(f"no .npz archive that can be read ({error})") from error


def _unpacked(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """Return a member, of which no more is unpacked than it claims."""
    with archive.open(member) as file:
        return file.read(member.file_size + 1)

from __future__ import annotations

import ast
import sys
from pathlib import Path

import streamloader.dts

ROOM = Path(streamloader.dts.__file__).parent
OUTSIDE = {"cffi", "numpy", "xxhash", "typing_extensions", "zstandard"}


def _imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


def test_the_room_knows_nothing_of_storage_order_or_tensors():
    for path in ROOM.glob("*.py"):
        for name in _imported(path):
            allowed = (
                name.startswith("streamloader.dts.")
                or name == "streamloader.errors"
                or name.split(".")[0] in OUTSIDE | sys.stdlib_module_names
            )
            assert allowed, f"{path.name} imports {name}"


def test_everything_public_is_there():
    for name in streamloader.dts.__all__:
        assert hasattr(streamloader.dts, name)

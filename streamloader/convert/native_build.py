"""Builds the native part of the converter as the extension module ``streamloader.convert._native``.

Run by setuptools; needs a C compiler.
"""

from __future__ import annotations

from pathlib import Path

from cffi import FFI

SOURCE_FOLDER = "streamloader/convert/native"

_HERE = Path(__file__).resolve().parent / "native"
_declarations = [
    line for line in (_HERE / "files.h").read_text().splitlines() if not line.startswith("#")
]

ffibuilder = FFI()
ffibuilder.cdef("\n".join(_declarations))
ffibuilder.set_source(
    "streamloader.convert._native",
    '#include "files.h"',
    sources=[f"{SOURCE_FOLDER}/{path.name}" for path in sorted(_HERE.glob("*.c"))],
    depends=[f"{SOURCE_FOLDER}/{path.name}" for path in sorted(_HERE.glob("*.h"))],
    include_dirs=[SOURCE_FOLDER],
    extra_compile_args=["-std=gnu11", "-O3", "-fvisibility=hidden"],
    py_limited_api=True,
)

"""Builds the native part of the fetch as the extension module ``streamloader.fetch._native``.

Run by setuptools; needs a C compiler.
"""

from __future__ import annotations

from pathlib import Path

from cffi import FFI

SOURCE_FOLDER = "streamloader/fetch/native"
RECORDS_FOLDER = "streamloader/dts/native"

_HERE = Path(__file__).resolve().parent / "native"
_declarations = [
    line for line in (_HERE / "pieces.h").read_text().splitlines() if not line.startswith("#")
]

ffibuilder = FFI()
ffibuilder.cdef("\n".join(_declarations))
ffibuilder.set_source(
    "streamloader.fetch._native",
    '#include "pieces.h"',
    sources=[f"{SOURCE_FOLDER}/{path.name}" for path in sorted(_HERE.glob("*.c"))],
    depends=[
        *(f"{SOURCE_FOLDER}/{path.name}" for path in sorted(_HERE.glob("*.h"))),
        f"{RECORDS_FOLDER}/records.h",
    ],
    include_dirs=[SOURCE_FOLDER, RECORDS_FOLDER],
    extra_compile_args=["-std=gnu11", "-O3", "-fvisibility=hidden"],
    py_limited_api=True,
)

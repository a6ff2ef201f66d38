"""Builds the native JPEG kernel as the extension module ``streamloader.decode._native``.

Run by setuptools; needs a C compiler and the headers of libjpeg-turbo (Debian: libjpeg-dev).
"""

from __future__ import annotations

from pathlib import Path

from cffi import FFI

SOURCE_FOLDER = "streamloader/decode/native"

_HERE = Path(__file__).resolve().parent / "native"
# Contraction to fused multiply-adds would give crops other bits than numpy's.
COMPILE_ARGS = ["-std=gnu11", "-O3", "-fno-math-errno", "-ffp-contract=off", "-fvisibility=hidden"]

_declarations = [
    line
    for line in (_HERE / "kernel.h").read_text().splitlines()
    if not line.startswith("#") or line.startswith("#define SL_MESSAGE_BYTES")
]

ffibuilder = FFI()
ffibuilder.cdef("\n".join(_declarations))
ffibuilder.set_source(
    "streamloader.decode._native",
    '#include "kernel.h"',
    sources=[f"{SOURCE_FOLDER}/{path.name}" for path in sorted(_HERE.glob("*.c"))],
    depends=[f"{SOURCE_FOLDER}/{path.name}" for path in sorted(_HERE.glob("*.h"))],
    include_dirs=[SOURCE_FOLDER],
    libraries=["jpeg"],
    extra_compile_args=COMPILE_ARGS,
    py_limited_api=True,
)

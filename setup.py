"""The native parts: built where a compiler and the headers they need are, left out elsewhere."""

import os
import tempfile
from pathlib import Path

from setuptools import setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CCompilerError, ExecError, PlatformError

_KERNEL = "streamloader.decode._native"
_PYTHON_PROBE = """
#include <Python.h>
int main(void) { return 0; }
"""
_JPEG_PROBE = """
#include <stdio.h>
#include <jpeglib.h>
#ifndef LIBJPEG_TURBO_VERSION
#error "libjpeg-turbo's jpeg_crop_scanline and jpeg_skip_scanlines are needed"
#endif
int main(void) { return jpeg_std_error(NULL) == NULL; }
"""
_XXHASH_PROBE = """
#include <xxhash.h>
int main(void) { return 0; }
"""
_IS_REQUIRED = os.environ.get("STREAMLOADER_REQUIRE_KERNEL") == "1"


class BuildNative(build_ext):
    """Leaves a native part out, with one line, where a compiler or a header is missing."""

    def build_extensions(self) -> None:
        if not self._builds(_PYTHON_PROBE, libraries=[]):
            self._leave_out(
                "no C compiler, or no headers of Python (Debian: apt-get install gcc python3-dev),"
                " so records are checked in Python and pictures are decoded by Pillow",
                [extension.name for extension in self.extensions],
            )
        elif not self._builds(_JPEG_PROBE, libraries=["jpeg"]):
            self._leave_out(
                "no headers of libjpeg-turbo (Debian: apt-get install libjpeg-dev), so Pillow will"
                " decode the pictures",
                [_KERNEL],
            )
        elif not self._builds(_XXHASH_PROBE, libraries=[]):
            self._leave_out(
                "no header of xxHash (Debian: apt-get install libxxhash-dev), so hashes are checked"
                " in Python",
                [],
            )
        super().build_extensions()

    def _leave_out(self, message: str, names: list[str]) -> None:
        if _IS_REQUIRED:
            raise PlatformError(f"streamloader: {message}")
        self.warn(f"streamloader: {message}")
        self.extensions = [e for e in self.extensions if e.name not in names]

    def _builds(self, source_text: str, libraries: list[str]) -> bool:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "probe.c")
            source.write_text(source_text)
            try:
                objects = self.compiler.compile([str(source)], output_dir=folder)
                self.compiler.link_executable(objects, "probe", folder, libraries=libraries)
            except (CCompilerError, ExecError):
                return False
        return True

    def get_outputs(self) -> list[str]:
        return super().get_outputs() if self.extensions else []


setup(
    cffi_modules=[
        "streamloader/dts/native_build.py:ffibuilder",
        "streamloader/fetch/native_build.py:ffibuilder",
        "streamloader/convert/native_build.py:ffibuilder",
        "streamloader/decode/native_build.py:ffibuilder",
    ],
    cmdclass={"build_ext": BuildNative},
    # The native parts use the stable interface of Python: one wheel for 3.11 and later versions.
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)

"""The native JPEG kernel: built where a compiler and libjpeg's headers are, left out elsewhere."""

import os
import tempfile
from pathlib import Path

from setuptools import setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CCompilerError, ExecError, PlatformError

_PROBE = """
#include <Python.h>
#include <stdio.h>
#include <jpeglib.h>
#ifndef LIBJPEG_TURBO_VERSION
#error "libjpeg-turbo's jpeg_crop_scanline and jpeg_skip_scanlines are needed"
#endif
int main(void) { return jpeg_std_error(NULL) == NULL; }
"""
_IS_REQUIRED = os.environ.get("STREAMLOADER_REQUIRE_KERNEL") == "1"


class BuildKernel(build_ext):
    """Leaves the kernel out, with one line, where libjpeg-turbo or a compiler is missing."""

    def build_extensions(self) -> None:
        if not self._finds_libjpeg():
            message = (
                "streamloader: no C compiler, or no headers of Python or libjpeg-turbo (Debian: "
                "apt-get install gcc python3-dev libjpeg-dev), so Pillow will decode the pictures"
            )
            if _IS_REQUIRED:
                raise PlatformError(message)
            self.warn(message)
            self.extensions = []
        super().build_extensions()

    def _finds_libjpeg(self) -> bool:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "probe.c")
            source.write_text(_PROBE)
            try:
                objects = self.compiler.compile([str(source)], output_dir=folder)
                self.compiler.link_executable(objects, "probe", folder, libraries=["jpeg"])
            except (CCompilerError, ExecError):
                return False
        return True

    def get_outputs(self) -> list[str]:
        return super().get_outputs() if self.extensions else []


setup(
    cffi_modules=["streamloader/decode/native_build.py:ffibuilder"],
    cmdclass={"build_ext": BuildKernel},
    # The kernel uses the stable interface of Python: one wheel for 3.11 and all later versions.
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)

"""Bridge from setuptools to CMake. Everything else about the package is in pyproject.toml.

``pip install .``, ``pip install -e .`` and ``python setup.py build_ext --inplace`` all end in the
same ``cmake --install``: the extension module goes beside the Python files, the static helpers into
``sandboxd/_bin``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
BUILD = ROOT / "build"


class CMakeExtension(Extension):
    """A module that CMake builds from the sources it knows."""

    def __init__(self, name: str) -> None:
        super().__init__(name, sources=[])


class CMakeBuild(build_ext):
    def build_extension(self, ext: Extension) -> None:
        generator = [] if (BUILD / "CMakeCache.txt").exists() else self._generator()
        configure = [
            "cmake",
            "-S",
            str(ROOT),
            "-B",
            str(BUILD),
            *generator,
            "-DVENUS_PYTHON=ON",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-DCMAKE_BUILD_TYPE={'Debug' if self.debug else 'Release'}",
        ]
        subprocess.run(configure, check=True)
        jobs = ["--parallel", str(self.parallel)] if self.parallel else []
        subprocess.run(["cmake", "--build", str(BUILD), *jobs], check=True)
        # …/sandboxd/_native.so: the prefix is two levels up.
        self._install(Path(self.get_ext_fullpath(ext.name)).resolve().parents[1])

    def copy_extensions_to_source(self) -> None:
        """In-place and editable builds: the helpers must come along, not only the module."""
        self._install(ROOT)

    @staticmethod
    def _install(prefix: Path) -> None:
        subprocess.run(["cmake", "--install", str(BUILD), "--prefix", str(prefix)], check=True)

    @staticmethod
    def _generator() -> list[str]:
        found = any(
            os.access(Path(directory) / "ninja", os.X_OK)
            for directory in os.environ.get("PATH", "").split(os.pathsep)
        )
        return ["-G", "Ninja"] if found else []


setup(ext_modules=[CMakeExtension("sandboxd._native")], cmdclass={"build_ext": CMakeBuild})

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.conftest import rootfs

__all__ = ["rootfs"]

PROGRAMS = Path(__file__).parent / "programs"
COMPILE = ["gcc", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]


@pytest.fixture(scope="session")
def program_layer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A layer with the compiled programs in /t."""
    layer = tmp_path_factory.mktemp("programs")
    (layer / "t").mkdir()
    layer.chmod(0o755)
    for source in sorted(PROGRAMS.rglob("*.c")):
        subprocess.run(
            [*COMPILE, "-I", PROGRAMS, source, "-o", layer / "t" / source.stem],
            check=True,
        )
    return layer


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    shutil.rmtree(tmp_path, ignore_errors=True)

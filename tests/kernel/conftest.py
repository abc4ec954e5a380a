"""Sandboxes without the daemon: spawn and sandbox-init alone."""

from __future__ import annotations

import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def rootfs(base_image_tar: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The base image, unpacked. Read-only for tests: it is the lower directory of all of them.

    In memory, because its ten thousand files are removed again at the end of the session."""
    path = tmp_path_factory.mktemp("rootfs")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755,size=1g", "rootfs", path], check=True)
    try:
        with tarfile.open(base_image_tar) as tar:
            tar.extractall(path, filter="fully_trusted")
        yield path
    finally:
        subprocess.run(["umount", path], check=True)

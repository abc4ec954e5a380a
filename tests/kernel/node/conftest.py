"""Sandboxes made by the launcher, without a daemon."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd.launch import Launcher
from tests.kernel.node.harness import IMAGE, Box, build_probe, running_box, running_launcher


@pytest.fixture(scope="session")
def launcher(base_image_tar: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    """One launcher for the session, with the image `base`."""
    state_dir = tmp_path_factory.mktemp("launcher")
    with running_launcher(state_dir, f"venus-l{os.getpid()}") as launcher:
        with base_image_tar.open("rb") as tar:
            launcher.images.import_tar(IMAGE, tar)
        yield launcher


@pytest.fixture(scope="session")
def probe_binary(needs_root: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The static program of `probe/`."""
    return build_probe(tmp_path_factory.mktemp("probe"))


@pytest.fixture(scope="module")
def box(launcher: Launcher, probe_binary: Path) -> Iterator[Box]:
    """One sandbox for a module, with the probe."""
    with running_box(launcher) as box:
        box.install_probe(probe_binary)
        yield box

"""Sandboxes of an image that holds real programs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd.client import Daemon, Sandbox
from tests.support.daemon import DaemonProcess

IMAGE = "programs"


@pytest.fixture(scope="session")
def programs_image(daemon: DaemonProcess, programs_image_tar: Path) -> str:
    """The name of the image in the session's daemon."""
    with Daemon(daemon.socket) as client, programs_image_tar.open("rb") as tar:
        client.import_image_tar(IMAGE, tar)
    return IMAGE


@pytest.fixture
def programs_sandbox(daemon: DaemonProcess, programs_image: str) -> Iterator[Sandbox]:
    """A fresh sandbox in which bash, numpy, redis, Node and PostgreSQL are installed."""
    with Sandbox.create(programs_image, socket=daemon.socket) as sandbox:
        yield sandbox

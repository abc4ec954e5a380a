"""A daemon, and the frameworks as their users have them: they find it by the environment."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sandboxd.client import Sandbox
from tests.support.daemon import DaemonProcess


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def daemon_socket(daemon: DaemonProcess) -> str:
    return daemon.socket


@pytest.fixture(autouse=True)
def environment(daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test must leave no sandbox."""
    monkeypatch.setenv("VENUS_SOCKET", daemon.socket)
    yield
    left = Sandbox.list(socket=daemon.socket)
    for info in left:
        Sandbox.connect(info.id, socket=daemon.socket).kill()
    assert not left

"""A daemon that leaves what there is to the next one, and tells its service manager so."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sandboxd.client import Sandbox, Template
from tests.kernel.test_daemon_recovery import eventually
from tests.support.daemon import DaemonProcess, serving

PATIENCE_S = 60
INIT = "sandbox-init"


@pytest.fixture
def hearer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Hears what daemons that are started meanwhile tell their service manager."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as hearing:
        hearing.bind(str(tmp_path / "notify"))
        hearing.settimeout(PATIENCE_S)
        monkeypatch.setenv("NOTIFY_SOCKET", hearing.getsockname())
        yield hearing


@pytest.fixture
def keeping(base_image_tar: Path, tmp_path: Path, hearer: socket.socket) -> Iterator[DaemonProcess]:
    daemon = DaemonProcess(f"venus-k{os.getpid()}", tmp_path / "state", {"on_stop": "keep"})
    with serving(daemon, base_image_tar):
        yield daemon
        # It would keep what a test that failed has left.
        for sandbox in Sandbox.list(socket=daemon.socket):
            Sandbox.connect(sandbox.sandbox_id, socket=daemon.socket).kill()
        for template in Template.list(socket=daemon.socket):
            Template.get(template.template_id, socket=daemon.socket).remove()


def test_what_lives_is_left_to_the_next_daemon(
    keeping: DaemonProcess, hearer: socket.socket
) -> None:
    assert hearer.recv(100) == b"READY=1"
    sandbox = Sandbox.create(socket=keeping.socket)
    template = sandbox.snapshot()
    command = sandbox.commands.start("read line; echo got $line", stdin=True)
    inits = [each for each in psutil.Process(keeping.pid).children() if each.name() == INIT]
    assert len(inits) == 1

    keeping.stop()
    assert hearer.recv(100) == b"STOPPING=1"
    lived_on = inits[0].is_running() and inits[0].status() != psutil.STATUS_ZOMBIE
    keeping.start()
    assert lived_on
    assert hearer.recv(100) == b"READY=1"
    with Sandbox.connect(sandbox.sandbox_id, socket=keeping.socket) as again:
        again.commands.send_stdin(command.exec_id, b"it\n")
        assert again.commands.wait(command.exec_id).exit_code == 0
        assert again.commands.output(command.exec_id) == b"got it\n"
    found = Template.get(template.template_id, socket=keeping.socket)
    [fork] = found.fork()
    fork.kill()
    found.remove()

    # Nothing lives: it cleans up as any other.
    eventually(lambda: Sandbox.list(socket=keeping.socket) == [], "a sandbox is left")
    keeping.stop()
    assert hearer.recv(100) == b"STOPPING=1"
    assert keeping.leftovers() == []
    keeping.start()

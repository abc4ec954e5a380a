"""A connection to outside the sandbox is refused, or comes back reset where that was asked for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd import _native
from tests.fidelity.harness import freeze, isolated, restore
from tests.fidelity.rows import GO, IS_FORK, READY, RESULT, touch, wait_for
from tests.support.init_harness import RawSandbox

SERVER = """
import socket
listener = socket.create_server(("0.0.0.0", 9000))
print("listening", flush=True)
connection, _ = listener.accept()
while data := connection.recv(100):
    connection.sendall(data.upper())
"""
CLIENT = """
import os, socket, time
connection = socket.create_connection(("10.77.0.1", 9000), timeout=10)
open('/var/tmp/ready.new', 'w').write('ready'); os.rename('/var/tmp/ready.new', '/var/tmp/ready')
while not os.path.exists('/var/tmp/go'):
    time.sleep(0.005)
try:
    connection.sendall(b"hello")
    text = connection.recv(100).decode()
except OSError as error:
    text = type(error).__name__
open('/var/tmp/result.new', 'w').write(text); os.rename('/var/tmp/result.new', '/var/tmp/result')
time.sleep(60)
"""


@pytest.fixture
def outside() -> Iterator[subprocess.Popen[str]]:
    """A server in a network namespace of its own."""
    argv = ["unshare", "-n", sys.executable, "-c", SERVER]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout and server.stdout.readline() == "listening\n"
            yield server
        finally:
            server.kill()


def join(sandbox: RawSandbox, server: subprocess.Popen[str]) -> None:
    def run(*argv: str) -> None:
        subprocess.run(argv, check=True)

    run("ip", "link", "add", "venus-in", "netns", str(sandbox.pid), "type", "veth",
        "peer", "name", "venus-out", "netns", str(server.pid))  # fmt: skip
    for pid, name, address in (
        (sandbox.pid, "venus-in", "10.77.0.2/24"),
        (server.pid, "venus-out", "10.77.0.1/24"),
    ):
        run("nsenter", "-t", str(pid), "-n", "ip", "address", "add", address, "dev", name)
        run("nsenter", "-t", str(pid), "-n", "ip", "link", "set", name, "up")


def test_outside(rootfs: Path, workspace: Path, outside: subprocess.Popen[str]) -> None:
    with isolated(rootfs, workspace / "original", []) as original:
        assert original.shell("mkdir -p /var/tmp").code == 0
        join(original, outside)
        original.start("python3", "-c", CLIENT)
        assert wait_for(original, READY) == "ready"
        with pytest.raises(_native.Refused, match="its other end is outside the sandbox"):
            _native.capture(original.pid)
        template = _native.capture(
            original.pid,
            [],
            lambda: freeze(original.upper, workspace / "frozen"),
            on_external="reset",
        )
        with isolated(rootfs, workspace / "fork", [workspace / "frozen"]) as fork:
            assert restore(fork, template).failure == ""
            touch(fork, IS_FORK)
            touch(fork, GO)
            assert wait_for(fork, RESULT) == "ConnectionResetError"
        touch(original, GO)
        assert wait_for(original, RESULT) == "HELLO"

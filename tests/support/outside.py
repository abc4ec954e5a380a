"""A peer outside of a sandbox, and a network between the two."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

SERVER = """
import socket
listener = socket.create_server(("0.0.0.0", 9000))
print("listening", flush=True)
connection, _ = listener.accept()
while data := connection.recv(100):
    connection.sendall(data.upper())
"""
# In the sandbox: says that it is connected, and waits until it may use the connection.
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


@contextlib.contextmanager
def server_outside() -> Iterator[subprocess.Popen[str]]:
    """In a network namespace of its own."""
    argv = ["unshare", "-n", sys.executable, "-c", SERVER]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout and server.stdout.readline() == "listening\n"
            yield server
        finally:
            server.kill()


def join(pid: int, server: subprocess.Popen[str]) -> None:
    def run(*argv: str) -> None:
        subprocess.run(argv, check=True)

    run("ip", "link", "add", "venus-in", "netns", str(pid), "type", "veth",
        "peer", "name", "venus-out", "netns", str(server.pid))  # fmt: skip
    for each, name, address in (
        (pid, "venus-in", "10.77.0.2/24"),
        (server.pid, "venus-out", "10.77.0.1/24"),
    ):
        run("nsenter", "-t", str(each), "-n", "ip", "address", "add", address, "dev", name)
        run("nsenter", "-t", str(each), "-n", "ip", "link", "set", name, "up")

"""Connections to ports of sandboxes: bytes both ways, ends, bounds, and what they outlive."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator

import psutil
import pytest

from sandboxd import ports
from sandboxd.client import AsyncSandbox, CommandHandle, Sandbox
from sandboxd.errors import (
    Conflict,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    SandboxGone,
    SnapshotRefused,
    Unreachable,
)
from tests.kernel.test_daemon_recovery import eventually, restart
from tests.support.daemon import DaemonProcess
from tests.support.raw_http import request

# Says its number when it listens; serves each connection in a thread, by the given function.
SERVER = """
import socket, sys, threading
family = socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET
server = socket.create_server((sys.argv[1], 0), family=family)
print(server.getsockname()[1], flush=True)
def serve(connection):
BODY
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""
ECHO = """
    while data := connection.recv(65536):
        connection.sendall(data)
    connection.close()
"""
# Answers only once it has seen the end of the other direction.
COUNT = """
    count = 0
    while data := connection.recv(65536):
        count += len(data)
    connection.sendall(b'%d' % count)
    connection.close()
"""
# Reads nothing, ever.
DEAF = """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    threading.Event().wait()
"""
RESET = """
    connection.recv(1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b'\\1\\0\\0\\0\\0\\0\\0\\0')
    connection.close()
"""


def serve(sandbox: Sandbox, body: str, address: str = "127.0.0.1") -> tuple[CommandHandle, int]:
    """Start such a server: the command, and its port."""
    script = SERVER.replace("BODY", body)
    handle = sandbox.commands.run(["python3", "-c", script, address], background=True)
    assert isinstance(handle, CommandHandle)
    for output in handle:
        return handle, int(output.data)
    raise AssertionError("it does not listen")


@pytest.fixture
def echo(sandbox: Sandbox) -> Iterator[int]:
    handle, port = serve(sandbox, ECHO)
    with handle:
        yield port


def read_all(connection: socket.socket) -> bytes:
    content = b""
    while data := connection.recv(1 << 16):
        content += data
    return content


def read_exactly(connection: socket.socket, size: int) -> bytes:
    content = b""
    while len(content) < size:
        data = connection.recv(size - len(content))
        assert data, "it ended early"
        content += data
    return content


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::1", "::"])
def test_bytes_go_both_ways_and_each_has_an_end(sandbox: Sandbox, address: str) -> None:
    handle, port = serve(sandbox, COUNT, address)
    with handle, sandbox.connect_port(port) as connection:
        connection.sendall(b"x" * 100_000)
        connection.shutdown(socket.SHUT_WR)
        assert read_all(connection) == b"100000"


def test_much_goes_through_a_side_that_is_slow(sandbox: Sandbox, echo: int) -> None:
    content = bytes(range(256)) * (32 << 10)
    with sandbox.connect_port(echo) as connection:

        def send() -> None:
            connection.sendall(content)
            connection.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send)
        sender.start()
        assert read_all(connection) == content
        sender.join()


def test_a_program_that_does_not_read_stops_the_client_and_not_the_daemon(
    daemon: DaemonProcess, sandbox: Sandbox
) -> None:
    handle, port = serve(sandbox, DEAF)
    memory = psutil.Process(daemon.pid).memory_info().rss
    with handle, sandbox.connect_port(port) as connection:
        connection.settimeout(5)
        sent = 0
        # The kernel's buffers are full, and so is what the daemon keeps: nothing more is taken.
        with pytest.raises(TimeoutError):
            while sent < 256 << 20:
                sent += connection.send(b"x" * 65536)
        assert psutil.Process(daemon.pid).memory_info().rss - memory < 8 << 20


def test_a_reset_inside_ends_the_connection(sandbox: Sandbox) -> None:
    handle, port = serve(sandbox, RESET)
    with handle, sandbox.connect_port(port) as connection:
        connection.sendall(b"x")
        # To a Unix socket a reset is an end, unless something was unread.
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""


def test_where_nothing_listens(sandbox: Sandbox) -> None:
    with pytest.raises(Unreachable, match="nothing listens there"):
        sandbox.connect_port(9)


@pytest.mark.parametrize("port", [0, 65536, -1])
def test_what_is_no_port(sandbox: Sandbox, port: int) -> None:
    with pytest.raises(InvalidRequest):
        sandbox.connect_port(port)


def test_a_request_that_asks_for_no_upgrade(daemon: DaemonProcess, sandbox: Sandbox) -> None:
    status, body = request(daemon.socket, "GET", f"/v1/sandboxes/{sandbox.sandbox_id}/ports/80")
    assert status == 400
    assert "asks for no upgrade" in str(body)


def test_ports_of_the_host_are_not_reached(sandbox: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with pytest.raises(Unreachable):
            sandbox.connect_port(listener.getsockname()[1])


def test_connections_of_a_sandbox_are_counted(
    daemon: DaemonProcess, sandbox: Sandbox, echo: int
) -> None:
    files = psutil.Process(daemon.pid).num_fds()
    most = ports.MAX_CONNECTIONS_PER_SANDBOX
    connections = [sandbox.connect_port(echo) for _ in range(most)]
    with pytest.raises(LimitExceeded, match=f"may have {most}"):
        sandbox.connect_port(echo)
    connections.pop().close()

    def one_more() -> bool:
        try:
            connections.append(sandbox.connect_port(echo))
        except LimitExceeded:
            return False
        return True

    eventually(one_more, "a connection that was closed still counts")
    for each in connections:
        each.close()
    eventually(
        lambda: psutil.Process(daemon.pid).num_fds() <= files, "descriptors of connections stay"
    )


def test_a_pause_holds_a_connection_up(sandbox: Sandbox, echo: int) -> None:
    with sandbox.connect_port(echo) as connection:
        connection.sendall(b"before")
        assert read_exactly(connection, 6) == b"before"
        sandbox.pause()
        connection.sendall(b"after")
        with pytest.raises(Conflict, match="paused"):
            sandbox.connect_port(echo)
        sandbox.resume()
        assert read_exactly(connection, 5) == b"after"


def test_the_end_of_the_sandbox_ends_its_connections(daemon: DaemonProcess) -> None:
    with Sandbox.create(socket=daemon.socket) as sandbox:
        _, port = serve(sandbox, DEAF)
        connection = sandbox.connect_port(port)
        sandbox.kill()
        with connection:
            assert connection.recv(1) == b""
        with pytest.raises((SandboxGone, NotFound)):
            sandbox.connect_port(port)


def test_forks_have_the_listener_and_none_of_the_connections(sandbox: Sandbox, echo: int) -> None:
    with sandbox.connect_port(echo) as connection:
        connection.sendall(b"one")
        assert read_exactly(connection, 3) == b"one"
        with pytest.raises(SnapshotRefused, match="held outside the sandbox"):
            sandbox.fork()
        [fork] = sandbox.fork(on_external="reset")
        with fork, fork.connect_port(echo) as other:
            other.sendall(b"two")
            assert read_exactly(other, 3) == b"two"
            connection.sendall(b"three")
            assert read_exactly(connection, 5) == b"three"


def test_a_connection_that_waits_to_be_accepted(sandbox: Sandbox) -> None:
    """A fork's listener has nothing of it, and takes new ones."""
    script = SERVER.replace("while True:", "input()\nwhile True:").replace("BODY", ECHO)
    argv = ["python3", "-c", script, "127.0.0.1"]
    with sandbox.commands.run(argv, background=True, stdin=True) as handle:
        port = int(next(iter(handle)).data)
        with sandbox.connect_port(port) as connection:
            with pytest.raises(SnapshotRefused, match="held outside the sandbox"):
                sandbox.fork()
            [fork] = sandbox.fork(on_external="reset")
            with fork:
                [command] = fork.commands.list()
                fork.commands.send_stdin(command.exec_id, b"\n")
                with fork.connect_port(port) as other:
                    other.sendall(b"two")
                    assert read_exactly(other, 3) == b"two"
            handle.send_stdin(b"\n")
            connection.sendall(b"one")
            assert read_exactly(connection, 3) == b"one"


def test_a_daemon_that_is_killed_leaves_no_connection(daemon: DaemonProcess) -> None:
    sandbox = Sandbox.create(socket=daemon.socket)
    sandbox.commands.start(["python3", "-c", SERVER.replace("BODY", COUNT), "127.0.0.1"])
    [command] = sandbox.commands.list()
    eventually(lambda: bool(sandbox.commands.output(command.exec_id)), "it does not listen")
    port = int(sandbox.commands.output(command.exec_id))
    connection = sandbox.connect_port(port)
    restart(daemon)
    with connection:
        assert connection.recv(1) == b""
    with Sandbox.connect(sandbox.sandbox_id, socket=daemon.socket) as sandbox:
        with sandbox.connect_port(port) as connection:
            connection.sendall(b"again")
            connection.shutdown(socket.SHUT_WR)
            assert read_all(connection) == b"5"


def test_streams_of_asyncio(daemon: DaemonProcess, sandbox: Sandbox, echo: int) -> None:
    asyncio.run(use_streams(daemon.socket, sandbox.sandbox_id, echo))


async def use_streams(daemon_socket: str, sandbox_id: str, echo: int) -> None:
    box = await AsyncSandbox.connect(sandbox_id, socket=daemon_socket)
    reader, writer = await box.connect_port(echo)
    writer.write(b"hello")
    assert await reader.readexactly(5) == b"hello"
    writer.write_eof()
    assert await reader.read() == b""
    writer.close()
    with pytest.raises(Unreachable):
        await box.connect_port(9)
    async with box.forward_port(echo) as forward:
        reader, writer = await asyncio.open_connection(*forward.address)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        writer.close()
    await box.close()


def test_a_local_port_that_leads_to_one_of_the_sandbox(sandbox: Sandbox, echo: int) -> None:
    content = b"0123456789" * 100_000
    with sandbox.forward_port(echo) as forward:
        with socket.create_connection(forward.address) as connection:
            sender = threading.Thread(target=connection.sendall, args=(content,))
            sender.start()
            assert read_exactly(connection, len(content)) == content
            sender.join()
            connection.shutdown(socket.SHUT_WR)
            assert read_all(connection) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(forward.address)


def test_a_local_port_tells_why_a_connection_fails(sandbox: Sandbox) -> None:
    failed = threading.Event()
    errors = []

    def note(error: Exception) -> None:
        errors.append(error)
        failed.set()

    with sandbox.forward_port(9, on_error=note) as forward:
        with socket.create_connection(forward.address) as connection:
            assert read_all(connection) == b""
        assert failed.wait(20)
    assert isinstance(errors[0], Unreachable)

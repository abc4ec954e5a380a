"""Background commands: over a restart of the daemon, and hostile ones."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import psutil
import pytest

from sandboxd.client import ConnectionLost, ExitReason, Sandbox
from sandboxd.errors import LimitExceeded, VenusError
from tests.support.daemon import DaemonProcess
from tests.support.raw_http import UnixConnection

MIB = 1 << 20
COUNT = "i=0; while read x; do i=$((i+1)); echo $i $x; echo $x >&2; done; exit 9"


def restart(daemon: DaemonProcess) -> None:
    daemon.kill()
    daemon.start()


def test_a_command_is_attached_to_after_a_restart(daemon: DaemonProcess) -> None:
    with Sandbox.create(socket=daemon.socket) as sandbox:
        started = sandbox.commands.start(COUNT, stdin=True)
        handle = sandbox.commands.connect(started.pid)
        sandbox.commands.send_stdin(started.exec_id, b"one\n")
        assert next(iter(handle)).data in (b"1 one\n", b"one\n")
        restart(daemon)
        with pytest.raises(ConnectionLost):
            list(handle)
        handle.reconnect()
        [found] = sandbox.commands.list()
        assert (found.exec_id, found.running, found.kept) == (started.exec_id, True, True)
        handle.send_stdin(b"two\n")
        handle.close_stdin()
        rest = {"stdout": b"", "stderr": b""}
        for output in handle:
            rest[output.stream] += output.data
        # What the first daemon had read is gone with it; no byte comes twice.
        assert rest == {"stdout": b"2 two\n", "stderr": b"two\n"}
        assert handle.exit.exit_code == 9
        assert sandbox.commands.wait(started.exec_id).exit_code == 9


def test_a_command_that_ended_without_a_daemon_tells_how(daemon: DaemonProcess) -> None:
    with Sandbox.create(socket=daemon.socket) as sandbox:
        sandbox.commands.run("mkfifo /tmp/go")
        started = sandbox.commands.start("read x < /tmp/go; echo last words; exit 8")
        init = psutil.Process(sandbox.info.init_pid)
        [leader] = [each for each in init.children() if each.name() == "sh"]
        daemon.kill()
        Path(f"/proc/{init.pid}/root/tmp/go").write_text("go\n")
        psutil.wait_procs([leader], timeout=20)
        daemon.start()
        result = sandbox.commands.connect(exec_id=started.exec_id).wait(check=False)
        assert (result.exit_code, result.stdout) == (8, "last words\n")


def test_a_foreground_command_can_be_attached_to_after_a_restart(daemon: DaemonProcess) -> None:
    with Sandbox.create(socket=daemon.socket) as sandbox:
        handle = sandbox.commands.run("cat", True, stdin=True)
        restart(daemon)
        with sandbox.commands.connect(handle.pid) as again:
            again.send_stdin(b"still here\n")
            assert next(iter(again)).data == b"still here\n"
        handle.disconnect()
        assert sandbox.commands.get(handle.exec_id).running


def test_a_writer_without_end_and_without_reader(daemon: DaemonProcess, sandbox: Sandbox) -> None:
    process = psutil.Process(daemon.pid)
    writers = [sandbox.commands.start("yes & yes >&2") for _ in range(4)]
    written = 0
    while written < 8 * MIB:
        written = sandbox.commands.get(writers[0].exec_id).stdout_bytes
    before = process.memory_info().rss
    while written < 24 * MIB:
        written = sandbox.commands.get(writers[0].exec_id).stdout_bytes
    # Its rings were full before; what came since has left nothing.
    assert process.memory_info().rss - before < 2 * MIB
    assert sandbox.commands.run("echo others go on").stdout == "others go on\n"
    for writer in writers:
        assert sandbox.commands.kill(exec_id=writer.exec_id)
        assert sandbox.commands.wait(writer.exec_id).reason is ExitReason.KILLED


def test_a_slow_reader_stops_neither_the_command_nor_others(sandbox: Sandbox) -> None:
    started = sandbox.commands.start("yes 0123456")
    slow = sandbox.commands.connect(started.pid)
    first = next(iter(slow))
    written = 0
    while written < 16 * MIB:
        written = sandbox.commands.get(started.exec_id).stdout_bytes
    with sandbox.commands.connect(started.pid) as other:
        assert next(iter(other)).lost > 0
    sandbox.commands.kill(exec_id=started.exec_id)
    seen = len(first.data)
    lost = first.lost
    for output in slow:
        seen += len(output.data)
        lost += output.lost
    assert lost > 0
    assert seen + lost == slow.exit.stdout_bytes


def push(connection: UnixConnection, body: bytes) -> None:
    """As much as the daemon takes of it now."""
    with contextlib.suppress(BlockingIOError):
        while True:
            connection.sock.send(body)


def test_a_command_that_never_reads_its_input(daemon: DaemonProcess, sandbox: Sandbox) -> None:
    """Requests wait for it, and are bounded; a client that leaves frees its place."""
    started = sandbox.commands.start("sleep 300", stdin=True)
    path = f"/v1/sandboxes/{sandbox.sandbox_id}/execs/{started.exec_id}/stdin"
    body = bytes(64 << 10)
    process = psutil.Process(daemon.pid)
    before = process.memory_info().rss
    waiting = [UnixConnection(daemon.socket) for _ in range(16)]
    for connection in waiting:
        connection.putrequest("POST", path)
        connection.putheader("Content-Length", str(64 * MIB))
        connection.endheaders()
        connection.sock.setblocking(False)
    refused = None
    while refused is None:
        for connection in waiting:
            push(connection, body)
        try:
            sandbox.commands.send_stdin(started.exec_id, b"")
        except LimitExceeded as error:
            refused = error
    assert "wait already" in str(refused)
    # The daemon reads no more of what it cannot pass on.
    for connection in waiting:
        push(connection, body)
    assert process.memory_info().rss - before < 16 * MIB
    for connection in waiting:
        connection.close()
    while True:
        try:
            sandbox.commands.send_stdin(started.exec_id, b"")
            break
        except LimitExceeded:
            pass
    assert sandbox.commands.kill(started.pid)
    assert sandbox.commands.wait(started.exec_id).reason is ExitReason.KILLED


def test_a_thousand_attaches(daemon: DaemonProcess, sandbox: Sandbox) -> None:
    started = sandbox.commands.start("echo up; cat", stdin=True)
    process = psutil.Process(daemon.pid)
    seen: list[bytes] = []
    refused: list[VenusError] = []

    def attach(times: int) -> None:
        other = Sandbox.connect(sandbox.sandbox_id, socket=daemon.socket)
        for _ in range(times):
            with other.commands.connect(exec_id=started.exec_id) as handle:
                seen.append(next(iter(handle)).data)
        other.close()

    attach(1)
    files_before = process.num_fds()
    threads = [threading.Thread(target=attach, args=(250,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert seen == [b"up\n"] * 1001
    handles = []
    for _ in range(70):
        try:
            handles.append(sandbox.commands.connect(exec_id=started.exec_id))
        except LimitExceeded as error:
            refused.append(error)
    assert (len(handles), len(refused)) == (64, 6)
    sandbox.commands.send_stdin(started.exec_id, b"to all\n")
    sandbox.commands.close_stdin(started.exec_id)
    assert {handle.wait().stdout for handle in handles} == {"up\nto all\n"}
    sandbox.close()
    # Connections that clients keep for their next request are closed by the daemon after seconds.
    while process.num_fds() > files_before + 2:
        pass

"""Terminals over a restart of the daemon, over captures, and against hostile sandboxes."""

from __future__ import annotations

import threading
from pathlib import Path

import psutil
import pytest

from sandboxd.client import ExitReason, Sandbox
from sandboxd.errors import ExecFailed
from tests.integration.test_background_commands import read_to
from tests.kernel.test_daemon_background import restart
from tests.support.daemon import DaemonProcess

SIZE = (24, 80)
ENDS = (ExitReason.EXITED, ExitReason.SIGNALED)
ECHO = 'while read -r x; do echo "<$x> $(stty size)"; done; exit 6'


def test_a_terminal_goes_on_under_the_next_daemon(daemon: DaemonProcess) -> None:
    with Sandbox.create(socket=daemon.socket) as sandbox:
        started = sandbox.commands.start(ECHO, pty=SIZE)
        sandbox.commands.send_stdin(started.exec_id, b"one\n")
        with sandbox.commands.connect(started.pid) as handle:
            read_to(handle, b"<one> 24 80\r\n")
        restart(daemon)
        [found] = sandbox.commands.list()
        assert (found.pty, found.running) == (True, True)
        with sandbox.commands.connect(started.pid) as handle:
            handle.resize((30, 90))
            handle.send_stdin(b"two\n")
            read_to(handle, b"<two> 30 90\r\n")
            handle.send_stdin(b"\x04")
            assert handle.wait(check=False).exit_code == 6
        while len(sandbox.commands.run("ls /dev/pts").stdout.split()) > 1:
            pass


def test_a_terminal_of_a_fork_goes_on_under_the_next_daemon(daemon: DaemonProcess) -> None:
    with Sandbox.create(socket=daemon.socket) as sandbox:
        started = sandbox.commands.start(ECHO, pty=SIZE)
        [fork] = sandbox.fork()
        with fork:
            restart(daemon)
            [found] = fork.commands.list()
            assert (found.pty, found.inherited, found.running) == (True, True, True)
            # Its standard input is all that a program has of it; init holds the terminal open.
            with fork.commands.connect(started.pid) as handle:
                handle.send_stdin(b"one\n")
                read_to(handle, b"<one> 24 80\r\n")
                handle.send_stdin(b"\x04")
                assert handle.wait(check=False).exit_code == 6


def test_a_terminal_whose_command_ended_without_a_daemon(daemon: DaemonProcess) -> None:
    with Sandbox.create(socket=daemon.socket) as sandbox:
        sandbox.commands.run("mkfifo /tmp/go")
        started = sandbox.commands.start("read x < /tmp/go; echo last; exit 3", pty=SIZE)
        init = psutil.Process(sandbox.info.init_pid)
        [leader] = [each for each in init.children() if each.name() == "sh"]
        daemon.kill()
        Path(f"/proc/{init.pid}/root/tmp/go").write_text("go\n")
        psutil.wait_procs([leader], timeout=20)
        daemon.start()
        result = sandbox.commands.connect(exec_id=started.exec_id).wait(check=False)
        assert (result.exit_code, result.stdout) == (3, "last\r\n")
        while len(sandbox.commands.run("ls /dev/pts").stdout.split()) > 1:
            pass


def test_captures_take_no_byte_of_it_away_nor_out_of_order(
    daemon: DaemonProcess, sandbox: Sandbox
) -> None:
    count = 20000
    script = f"stty raw; exec python3 -c 'for n in range({count}): print(n)'"
    handle = sandbox.commands.run(script, True, pty=SIZE)
    first = next(iter(handle)).data
    templates = [sandbox.snapshot() for _ in range(3)]
    try:
        result = handle.wait()
    finally:
        for template in templates:
            template.remove()
    expected = b"".join(b"%d\n" % number for number in range(count))
    assert first + result.stdout_bytes == expected
    assert result.lost_bytes == 0


def test_what_is_typed_during_captures_is_what_it_is(
    daemon: DaemonProcess, sandbox: Sandbox
) -> None:
    """A capture takes the terminal into a mode for a moment in which keys mean nothing."""
    started = sandbox.commands.start('while read -r x; do echo "<$x>"; done', pty=SIZE)
    stop = threading.Event()
    typed = []

    def type_on() -> None:
        other = Sandbox.connect(sandbox.sandbox_id, socket=daemon.socket)
        while not stop.is_set() and len(typed) < 5000:
            other.commands.send_stdin(started.exec_id, b"%dx\x7f\n" % len(typed))
            typed.append(len(typed))
        other.close()

    thread = threading.Thread(target=type_on)
    thread.start()
    try:
        for _ in range(8):
            sandbox.snapshot().remove()
    finally:
        stop.set()
        thread.join(20)
    sandbox.commands.send_stdin(started.exec_id, b"\x04")
    sandbox.commands.wait(started.exec_id)
    output = sandbox.commands.output(started.exec_id)
    # Each was echoed with its correction, edited, and read once.
    assert [b"<%d>\r\n" % number in output for number in typed] == [True] * len(typed)
    assert output.count(b"x\x08 \x08\r\n") == len(typed)


def test_terminals_of_a_sandbox_are_bounded(sandbox: Sandbox) -> None:
    hoard = """
import os, time
held = []
try:
    while True:
        held.append(os.open('/dev/ptmx', os.O_RDWR | os.O_NOCTTY))
except OSError:
    print('full', flush=True)
time.sleep(300)
"""
    with sandbox.commands.run(["python3", "-c", hoard], True) as handle:
        read_to(handle, b"full\n")
        with pytest.raises(ExecFailed, match="ENOSPC"):
            sandbox.commands.start("true", pty=SIZE)
        assert sandbox.commands.run("echo others start").stdout == "others start\n"
    while True:
        try:
            started = sandbox.commands.start("echo free", pty=SIZE)
            break
        except ExecFailed:
            pass
    assert sandbox.commands.wait(started.exec_id).exit_code == 0


def test_a_terminal_that_somebody_takes_first(sandbox: Sandbox) -> None:
    """Processes of the sandbox's root open every terminal as soon as it has a name, and make it
    their own. A command then does not start, or it has its terminal; never another's."""
    thief = """
import os, time
print('up', flush=True)
while True:
    for name in os.listdir('/dev/pts'):
        if name == 'ptmx' or os.fork():
            continue
        try:
            os.setsid()
            os.open(f'/dev/pts/{name}', os.O_RDWR)  # and so, of a leader of a session, taken
        except OSError:
            os._exit(1)
        time.sleep(0.01)
        os._exit(0)
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
"""
    with sandbox.commands.run(["python3", "-c", thief], True) as handle:
        read_to(handle, b"up\n")
        for _ in range(60):
            try:
                started = sandbox.commands.start("exec sh -c 'echo mine > /dev/tty'", pty=SIZE)
            except ExecFailed as error:
                assert "terminal: EPERM" in str(error)
                continue
            assert sandbox.commands.wait(started.exec_id).reason in ENDS
    started = sandbox.commands.start("echo mine > /dev/tty", pty=SIZE)
    assert sandbox.commands.wait(started.exec_id).exit_code == 0
    assert sandbox.commands.output(started.exec_id) == b"mine\r\n"


def test_a_terminal_does_not_stop_a_writer_without_end(sandbox: Sandbox) -> None:
    started = sandbox.commands.start("yes", pty=SIZE)
    written = 0
    while written < 4 << 20:
        written = sandbox.commands.get(started.exec_id).stdout_bytes
    # It is interrupted from its keyboard, which nothing blocks.
    sandbox.commands.send_stdin(started.exec_id, b"\x03")
    assert sandbox.commands.wait(started.exec_id).signal == 2

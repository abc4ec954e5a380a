"""venus-sandbox in a terminal: a person's keys, the size, and the terminal afterwards."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator

import pytest

from sandboxd.client import ExitReason, Sandbox
from tests.support.daemon import DaemonProcess

PATIENCE_S = 30.0


class Person:
    """venus-sandbox runs in a terminal, whose master this holds."""

    def __init__(self, socket: str, *arguments: str) -> None:
        self.master, self.slave = pty.openpty()
        self.resize(33, 99, tell=False)
        self.before = termios.tcgetattr(self.slave)
        self.seen = b""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sandboxd.cli", "--socket", socket, *arguments],
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            # A shell starts background jobs with SIGINT ignored, and so perhaps these tests.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def resize(self, rows: int, columns: int, *, tell: bool = True) -> None:
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        if tell:  # the kernel tells only whoever has it as the controlling terminal
            self.process.send_signal(signal.SIGWINCH)

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def sees(self, wanted: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while wanted.encode() not in self.seen:
            readable, _, _ = select.select([self.master], [], [], deadline - time.monotonic())
            assert readable, f"{wanted!r} is not in {self.seen!r}"
            self.seen += os.read(self.master, 65536)
        self.seen = self.seen.partition(wanted.encode())[2]

    def ends(self) -> int:
        """The exit code; the terminal is as it was."""
        code = self.process.wait(PATIENCE_S)
        assert termios.tcgetattr(self.slave) == self.before
        return code

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)


@contextlib.contextmanager
def person(daemon: DaemonProcess, *arguments: str) -> Iterator[Person]:
    with contextlib.closing(Person(daemon.socket, *arguments)) as found:
        yield found


def test_every_key_goes_to_the_program(daemon: DaemonProcess, sandbox: Sandbox) -> None:
    script = "trap 'echo interrupted' INT; echo up; while read x; do echo \"<$x>\"; done; exit 7"
    with person(daemon, "exec", "-it", sandbox.sandbox_id, "sh", "-c", script) as user:
        user.sees("up\r\n")
        assert not termios.tcgetattr(user.slave)[3] & (termios.ECHO | termios.ICANON | termios.ISIG)
        user.type("wrond\x7fg\r")
        user.sees("<wrong>\r\n")
        user.type("\x03")
        user.sees("interrupted\r\n")
        user.type("\x04")
        assert user.ends() == 7


def test_the_size_is_this_terminals(daemon: DaemonProcess, sandbox: Sandbox) -> None:
    script = "trap 'stty size' WINCH; stty size; while :; do read x; done"
    with person(daemon, "exec", "-it", sandbox.sandbox_id, "sh", "-c", script) as user:
        user.sees("33 99\r\n")
        user.resize(20, 70)
        user.sees("20 70\r\n")
        user.type("\x03")
        assert user.ends() == 130


def test_a_shell_and_leaving_it(daemon: DaemonProcess, sandbox: Sandbox) -> None:
    with person(daemon, "shell", "-e", "A=b", "-w", "/usr", sandbox.sandbox_id) as user:
        user.type("echo $A-$(pwd)-$((6*7))\r")
        user.sees("b-/usr-42")
        user.type("exit 5\r")
        assert user.ends() == 5
    with person(daemon, "shell", sandbox.sandbox_id) as user:
        user.type("echo $((6*7))\r")
        user.sees("42\r\n")
        user.type("~.")
        user.sees("left")
        assert user.ends() == 0
    [first, second] = sandbox.commands.list()
    assert (first.exit_code, second.running) == (5, False) or sandbox.commands.wait(
        second.exec_id
    ).reason is ExitReason.KILLED


def test_attaching_to_a_terminal(daemon: DaemonProcess, sandbox: Sandbox) -> None:
    started = sandbox.commands.start('while read x; do echo "<$x> $(stty size)"; done', pty=(9, 9))
    arguments = ("attach", "-i", sandbox.sandbox_id, str(started.exec_id))
    for word in ("one", "two"):
        with person(daemon, *arguments) as user:
            user.type(f"{word}\r")
            user.sees(f"<{word}> 33 99\r\n")
            user.type("\r~.")
            user.sees("left")
            assert user.ends() == 0
    assert sandbox.commands.get(started.exec_id).running
    with person(daemon, *arguments) as user:
        user.sees("<two> 33 99\r\n")
        user.type("\x04")
        assert user.ends() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_the_terminal_as_it_was(
    daemon: DaemonProcess, sandbox: Sandbox, number: int
) -> None:
    with person(
        daemon, "exec", "-it", sandbox.sandbox_id, "sh", "-c", "echo up; sleep 300"
    ) as user:
        user.sees("up\r\n")
        user.process.send_signal(number)
        assert user.ends() == 128 + number
    [found] = sandbox.commands.list()
    assert sandbox.commands.wait(found.exec_id).reason is ExitReason.KILLED


def test_a_terminal_without_one_here(daemon: DaemonProcess, sandbox: Sandbox) -> None:
    line = [sys.executable, "-m", "sandboxd.cli", "--socket", daemon.socket]
    script = "stty size; read x; echo got $x; cat; exit 4"
    done = subprocess.run(
        [*line, "exec", "-it", sandbox.sandbox_id, "sh", "-c", script],
        input=b"~.\n",
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 4, done.stderr
    assert b"24 80\r\n" in done.stdout
    assert b"got ~.\r\n" in done.stdout
    assert subprocess.run([*line, "exec", "-t", "--json", "x", "true"], check=False).returncode == 2


def test_top_shows_what_comes_until_it_is_interrupted(daemon: DaemonProcess) -> None:
    with person(daemon, "top", "-i", "0.05") as user:
        user.sees("\x1b[?1049h")
        user.sees("CPU%")
        with Sandbox.create(socket=daemon.socket) as sandbox:
            user.sees(sandbox.sandbox_id)
            sandbox.pause()
            user.sees("1 paused")
            wanted = f"{sandbox.sandbox_id}  paused"
            user.resize(24, len(wanted))
            user.sees(f"{wanted}\x1b[K")
        user.process.send_signal(signal.SIGINT)
        user.sees("\x1b[?1049l")
        assert user.ends() == 130

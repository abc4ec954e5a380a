"""Pipes that lead to the daemon are new in each fork; everything else is a fork's own."""

from __future__ import annotations

import fcntl
import os
import select
import socket
import struct
import time
from pathlib import Path

from sandboxd import _native
from sandboxd import init_protocol as protocol
from tests.fidelity.harness import freeze, isolated, restore
from tests.fidelity.rows import BUDGET_S, READY, wait_for
from tests.support.init_harness import ID_BASE, RawSandbox

PROGRAM = """
import os, sys
open('/var/tmp/ready.new', 'w').write('ready'); os.rename('/var/tmp/ready.new', '/var/tmp/ready')
for line in sys.stdin:
    print('heard', line.strip(), flush=True)
"""


def test_new_ends_for_each_fork(rootfs: Path, workspace: Path) -> None:
    with isolated(rootfs, workspace / "original", []) as original:
        assert original.shell("mkdir -p /var/tmp").code == 0
        in_read, in_write = os.pipe2(os.O_CLOEXEC)
        out_read, out_write = os.pipe2(os.O_CLOEXEC)
        original.start(
            "python3", "-c", PROGRAM, fds=protocol.ExecFds(stdin=in_read, stdout=out_write)
        )
        assert wait_for(original, READY) == "ready"
        template = _native.capture(
            original.pid,
            [in_write, out_read],
            lambda: freeze(original.upper, workspace / "frozen"),
        )
        assert template.counts["external_slots"] == 2
        for number in range(2):
            fork_in, fork_in_write = os.pipe2(os.O_CLOEXEC)
            fork_out_read, fork_out = os.pipe2(os.O_CLOEXEC)
            with isolated(rootfs, workspace / f"fork-{number}", [workspace / "frozen"]) as fork:
                result = restore(fork, template, [fork_in, fork_out])
                assert (result.exit_code, result.failure) == (0, "")
                os.write(fork_in_write, f"fork {number}\n".encode())
                assert os.read(fork_out_read, 100) == f"heard fork {number}\n".encode()
            for fd in (fork_in, fork_in_write, fork_out_read, fork_out):
                os.close(fd)
        os.write(in_write, b"original\n")
        assert os.read(out_read, 100) == b"heard original\n"
    for fd in (in_read, in_write, out_read, out_write):
        os.close(fd)


TIOCSPTLCK, TIOCGPTPEER = 0x40045431, 0x5441


def open_terminal(sandbox: RawSandbox) -> tuple[int, int]:
    """Master and slave of a pty of the sandbox's own."""
    master = os.open(f"/proc/{sandbox.pid}/root/dev/pts/ptmx", os.O_RDWR | os.O_NOCTTY)
    fcntl.ioctl(master, TIOCSPTLCK, struct.pack("i", 0))
    slave = fcntl.ioctl(master, TIOCGPTPEER, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    os.fchown(slave, ID_BASE, ID_BASE)
    return master, slave


def read_until(fd: int, wanted: bytes) -> bytes:
    text = b""
    deadline = time.monotonic() + BUDGET_S
    while wanted not in text:
        readable, _, _ = select.select([fd], [], [], deadline - time.monotonic())
        assert readable, text
        text += os.read(fd, 1000)
    return text


def test_new_terminal_for_each_fork(rootfs: Path, workspace: Path) -> None:
    with isolated(rootfs, workspace / "original", []) as original:
        assert original.shell("mkdir -p /var/tmp").code == 0
        master, slave = open_terminal(original)
        fds = protocol.ExecFds(stdin=slave, stdout=slave, stderr=slave)
        original.start("python3", "-c", PROGRAM, fds=fds)
        os.close(slave)
        assert wait_for(original, READY) == "ready"
        os.write(master, b"half ")
        read_until(master, b"half ")
        template = _native.capture(
            original.pid, [master], lambda: freeze(original.upper, workspace / "frozen")
        )
        assert template.counts["external_slots"] == 1
        for number in range(2):
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            with (
                ours,
                theirs,
                isolated(rootfs, workspace / f"fork-{number}", [workspace / "frozen"]) as fork,
            ):
                result = restore(fork, template, [theirs.fileno()])
                assert (result.exit_code, result.failure) == (0, "")
                _, fds_received, _, _ = socket.recv_fds(ours, 1, 1)
                os.write(fds_received[0], f"fork {number}\n".encode())
                read_until(fds_received[0], f"heard half fork {number}".encode())
                os.close(fds_received[0])
        os.write(master, b"original\n")
        read_until(master, b"heard half original")
        os.close(master)

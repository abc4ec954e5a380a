"""Pipes that lead to the daemon are new in each fork; everything else is a fork's own."""

from __future__ import annotations

import os
from pathlib import Path

from sandboxd import _native
from sandboxd import init_protocol as protocol
from tests.fidelity.harness import freeze, isolated, restore
from tests.fidelity.rows import READY, wait_for

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

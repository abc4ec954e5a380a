"""Commands that this daemon did not start: an earlier one's, and those a fork was born with.

Their clients are elsewhere, or gone; their processes live on. What they write is taken and kept,
always, so that they neither block nor die of SIGPIPE and whoever comes back can read it; input of
theirs that is open can be continued.
"""

from __future__ import annotations

import os

from sandboxd.init_link import InitLink
from sandboxd.init_protocol import ExecKind, FdBit
from sandboxd.pipes import InputPipe, OutputPipe
from sandboxd.running_exec import RunningExec
from sandboxd.sandbox import LiveSandbox

_PROGRAMS = (ExecKind.PROGRAM, ExecKind.RESTORED)


async def take_over_execs(sandbox: LiveSandbox, link: InitLink) -> None:
    """Execs that an earlier daemon started. File operations have no meaning without their client
    and end by themselves, because init keeps no end of their pipes."""
    for info, fds in await link.list_execs():
        kept = dict(zip((bit for bit in FdBit if bit & info.fd_mask), fds, strict=True))
        running = RunningExec(
            sandbox, info.exec_id, "adopt command", is_program=info.kind in _PROGRAMS
        )
        running.pid = info.pid
        running.is_inherited = info.kind is ExecKind.RESTORED
        running.oom_kills_before = sandbox.oom_kills_seen
        if (fd := kept.get(FdBit.KEEP_STDIN)) is not None:
            running.stdin = InputPipe(fd)
        if (fd := kept.get(FdBit.KEEP_STDOUT)) is not None:
            if os.isatty(fd):
                running.take_terminal(fd)
            else:
                running.stdout = OutputPipe(fd, running.wake)
        if (fd := kept.get(FdBit.KEEP_STDERR)) is not None:
            running.stderr = OutputPipe(fd, running.wake)
        if info.exited is not None:
            running.exited = info.exited
        else:
            link.watch(info.exec_id, running.on_exit)
        if running.is_program:
            running.keep()
        else:
            running.detach()

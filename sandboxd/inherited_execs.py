"""Commands that this daemon did not start: an earlier one's, and those a fork was born with.

Their clients are elsewhere, or gone; their processes live on. What they write is taken, always, so
that they neither block nor die of SIGPIPE; input of theirs that is open can be continued.
"""

from __future__ import annotations

from sandboxd.exec_session import RunningExec
from sandboxd.init_link import InitLink
from sandboxd.init_protocol import ExecKind, FdBit
from sandboxd.pipes import InputPipe, OutputPipe
from sandboxd.sandbox import LiveSandbox

# Of each stream of a command of a fork: what its client can still get.
KEPT_OUTPUT_BYTES = 32 << 10
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
        if (fd := kept.get(FdBit.KEEP_STDIN)) is not None:
            running.stdin = InputPipe(fd)
        if (fd := kept.get(FdBit.KEEP_STDOUT)) is not None:
            running.stdout = OutputPipe(fd, running.wake)
        if (fd := kept.get(FdBit.KEEP_STDERR)) is not None:
            running.stderr = OutputPipe(fd, running.wake)
        if info.exited is not None:
            running.exited = info.exited
        else:
            link.watch(info.exec_id, running.on_exit)
        running.detach(KEPT_OUTPUT_BYTES if info.kind is ExecKind.RESTORED else 0)

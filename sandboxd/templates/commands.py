"""Commands that the daemon itself runs in a sandbox, for a recipe or in a new fork."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sandboxd.exec_session import DEFAULT_ENVIRONMENT, RunningExec, start_exec
from sandboxd.init_protocol import ExecRequest, Exited
from sandboxd.output_ring import OutputRing
from sandboxd.sandbox import LiveSandbox

KEPT_LOG_BYTES = 4096


@dataclass(frozen=True)
class CommandEnd:
    """How a command ended, with the end of what it wrote to both streams."""

    exited: Exited | None
    log: str

    @property
    def ok(self) -> bool:
        """It ended by itself, with exit code 0."""
        return self.exited is not None and self.exited.exit_code == 0 and not self.exited.timed_out

    def describe(self) -> str:
        """In words, for an error."""
        if self.exited is None:
            how = "the sandbox ended"
        elif self.exited.timed_out:
            how = "it took too long"
        elif self.exited.signal is not None:
            how = f"signal {self.exited.signal}"
        else:
            how = f"exit code {self.exited.exit_code}"
        return f"{how}; it wrote: {self.log}" if self.log else how


async def start(
    sandbox: LiveSandbox,
    argv: Sequence[str],
    operation: str,
    timeout_s: float | None,
    *,
    stream_stdin: bool = False,
    user: str | None = None,
) -> RunningExec:
    """Start a command with the sandbox's defaults; None for no timeout, and for its user."""
    record = sandbox.record
    assert record is not None

    def build(exec_id: int) -> ExecRequest:
        return ExecRequest(
            exec_id,
            tuple(argv),
            user=record.user if user is None else user,
            cwd=record.cwd,
            env={**DEFAULT_ENVIRONMENT, **record.env},
            timeout_ms=0 if timeout_s is None else max(1, round(timeout_s * 1000)),
        )

    return await start_exec(sandbox, build, operation=operation, stream_stdin=stream_stdin)


async def run(
    sandbox: LiveSandbox,
    argv: Sequence[str],
    operation: str,
    timeout_s: float,
    *,
    user: str | None = None,
    on_output: Callable[[bytes], None] = lambda piece: None,
) -> CommandEnd:
    """Run a command to the end of its leader; what others of it write later is not waited for."""

    def keep(ring: OutputRing, piece: bytes) -> None:
        ring.add(piece)
        if piece:
            on_output(piece)

    running = await start(sandbox, argv, operation, timeout_s, user=user)
    logs = [
        (pipe, OutputRing(KEPT_LOG_BYTES // 2))
        for pipe in (running.stdout, running.stderr)
        if pipe is not None
    ]
    try:
        while not running.over:
            data = [(ring, pipe.read()) for pipe, ring in logs]
            for ring, piece in data:
                keep(ring, piece)
            if not any(piece for _, piece in data):
                await running.wait()
            else:
                # It may write without end, and others are served, too.
                await asyncio.sleep(0)
        for pipe, ring in logs:
            left = pipe.waiting_bytes()
            while left > 0 and (piece := pipe.read_waiting(left)):
                left -= len(piece)
                keep(ring, piece)
    finally:
        if not running.over:
            running.kill_soon()
        running.detach()
    # What went wrong is said last.
    log = b"\n".join(ring.content().strip() for _, ring in logs)
    return CommandEnd(running.exited, log.decode(errors="replace").strip())

"""What can be done with the commands of a sandbox, apart from any protocol: start, find, list,
wait, write, signal; reading is `output_reader`'s. Whatever serves clients stands on this."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from sandboxd.bounds import checked_timeout_ms
from sandboxd.errors import (
    Conflict,
    LimitExceeded,
    NotFound,
    OperationTimeout,
    VenusError,
    error_from_errno,
)
from sandboxd.exec_session import DEFAULT_ENVIRONMENT, start_exec
from sandboxd.init_link import LinkClosed
from sandboxd.init_protocol import ExecRequest
from sandboxd.output_reader import require_kept
from sandboxd.pipes import InputPipe
from sandboxd.protocol import ExitReason, OnDisconnect, StdinMode
from sandboxd.running_exec import RunningExec
from sandboxd.sandbox import LiveSandbox
from sandboxd.service import SandboxService
from sandboxd.terminal import TerminalSize, set_size

# Of one command at once; each may hold a piece of a body while the command does not read.
MAX_STDIN_WRITERS = 16
_TERMINAL_ENVIRONMENT = {**DEFAULT_ENVIRONMENT, "TERM": "xterm-256color"}
_SHOWN_ARGUMENTS = 64
_SHOWN_CHARACTERS = 256


@dataclass(frozen=True)
class CommandSpec:
    """A command to start, checked for form. None takes the sandbox's own."""

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str | None = None
    user: str | None = None
    timeout_s: float | None = None
    stdin: StdinMode = StdinMode.NULL
    stdin_data: bytes = b""
    max_output_bytes: int | None = None
    """Of the stream to the client that starts it."""
    on_disconnect: OnDisconnect = OnDisconnect.KILL
    terminal: TerminalSize | None = None
    """It has a terminal of its own, which is its input and all of its output."""


async def start_command(
    service: SandboxService, sandbox: LiveSandbox, spec: CommandSpec, *, keep: bool
) -> RunningExec:
    """The command runs when this returns. `keep`: it needs nobody from here on, and its output is
    kept, as is that of a terminal; otherwise the caller reads its pipes and detaches it."""
    record = sandbox.record
    assert record is not None
    timeout_ms = checked_timeout_ms(service.config, spec.timeout_s)
    began = time.perf_counter()
    size = spec.terminal
    base = DEFAULT_ENVIRONMENT if size is None else _TERMINAL_ENVIRONMENT

    def build(exec_id: int) -> ExecRequest:
        return ExecRequest(
            exec_id,
            spec.argv,
            user=record.user if spec.user is None else spec.user,
            cwd=record.cwd if spec.cwd is None else spec.cwd,
            env={**base, **record.env, **spec.env},
            timeout_ms=timeout_ms,
            terminal=None if size is None else (size.rows, size.columns),
        )

    try:
        running = await start_exec(
            sandbox,
            build,
            operation="exec",
            stdin_data=spec.stdin_data if spec.stdin is StdinMode.INLINE else None,
            stream_stdin=spec.stdin is StdinMode.STREAM,
        )
    except VenusError:
        service.counters.execs_failed += 1
        raise
    service.counters.execs_started += 1
    service.instruments.exec_start.observe(time.perf_counter() - began)
    running.argv = _shown(spec.argv)
    if keep or running.is_terminal:

        def count(ended: RunningExec) -> None:
            service.counters.oom_kills += ended.reason is ExitReason.OOM

        running.on_end = count
        running.keep()
    return running


def _shown(argv: tuple[str, ...]) -> tuple[str, ...]:
    """What lists show: of many commands with long arguments the daemon would hold hundreds of
    MiB."""
    return tuple(each[:_SHOWN_CHARACTERS] for each in argv[:_SHOWN_ARGUMENTS])


def known_commands(sandbox: LiveSandbox) -> list[RunningExec]:
    """Those that run, or whose output is held open by others, and those that have ended and are
    remembered; in the order of their start."""
    known = (*sandbox.ended, *sandbox.execs.values())
    return sorted((each for each in known if each.is_program), key=lambda each: each.exec_id)


def find_command(sandbox: LiveSandbox, exec_id: int, operation: str) -> RunningExec:
    """A known command, or `NotFound`."""
    running = sandbox.execs.get(exec_id) or sandbox.ended.get(exec_id)
    if running is None or not running.is_program:
        raise _no_such(exec_id, operation)
    return running


def find_running(sandbox: LiveSandbox, exec_id: int, operation: str) -> RunningExec:
    """A command whose leader has not ended, or `NotFound`."""
    running = find_command(sandbox, exec_id, operation)
    if running.over:
        raise _no_such(exec_id, operation)
    return running


def command_epoch(running: RunningExec) -> int:
    """Positions in its output mean something only to the daemon that counted them."""
    return running.sandbox.exec_ids[0]


def _no_such(exec_id: int, operation: str) -> NotFound:
    return NotFound("there is no such command", operation=operation, object=f"exec {exec_id}")


async def wait_end(running: RunningExec, timeout_s: float) -> None:
    """Until a kept command has ended and its output is whole; `OperationTimeout` after the time."""
    sandbox, bounds = running.sandbox, running.sandbox.kept_output
    require_kept(running, "wait")
    if bounds.used_readers >= bounds.readers:
        raise LimitExceeded(
            f"{bounds.used_readers} readers of commands are attached already",
            operation="wait",
            object=sandbox.sandbox_id,
            cause=f"max_readers is {bounds.readers}",
        )
    bounds.used_readers += 1
    try:
        async with asyncio.timeout(timeout_s):
            await running.wait_end()
    except TimeoutError:
        raise OperationTimeout(
            f"the command has not ended within {timeout_s:g} s",
            operation="wait",
            object=f"exec {running.exec_id}",
        ) from None
    finally:
        bounds.used_readers -= 1


def require_input(running: RunningExec) -> InputPipe:
    """Its open input. `Conflict` when the command takes none, `LimitExceeded` when too many wait to
    write."""
    pipe = running.stdin
    if pipe is None or pipe.closed:
        raise Conflict(
            "the command takes no input",
            operation="send input",
            object=f"exec {running.exec_id}",
            cause="it was not started with stdin stream, or its input is closed",
        )
    if pipe.writers >= MAX_STDIN_WRITERS:
        raise LimitExceeded(
            f"{pipe.writers} requests wait already for the command to read",
            operation="send input",
            object=f"exec {running.exec_id}",
        )
    return pipe


async def write_stdin(running: RunningExec, data: bytes) -> None:
    """All of `data`, at the command's pace; `Conflict` when it takes no input, or no more."""
    try:
        await require_input(running).write(data)
    except BrokenPipeError:
        raise Conflict(
            "the command no longer reads its input",
            operation="send input",
            object=f"exec {running.exec_id}",
        ) from None


async def resize(running: RunningExec, size: TerminalSize) -> None:
    """Its terminal gets another size; `Conflict` when it has none."""
    # A capture has the terminal in its hands.
    await running.sandbox.gate.wait_open()
    if not running.is_terminal or running.stdout is None or running.stdout.eof:
        raise Conflict(
            "the command has no terminal", operation="resize", object=f"exec {running.exec_id}"
        )
    set_size(running.stdout.fd, size)


async def send_signal(running: RunningExec, number: int, *, whole_tree: bool) -> None:
    """To the command's leader, or to everything that it started."""
    _, link = running.sandbox.require_running("send signal")
    try:
        failed = await link.kill(running.exec_id, number, whole_tree=whole_tree)
    except LinkClosed:
        raise running.sandbox.gone_error("send signal") from None
    if failed:
        raise error_from_errno(
            failed,
            f"signal {number} was not sent",
            operation="send signal",
            object=f"exec {running.exec_id}",
        )

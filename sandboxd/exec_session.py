"""Starting a command or a file operation in a sandbox: its pipes, its group, and init's answer."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from sandboxd.errors import ExecFailed, InvalidRequest, LimitExceeded, VenusError, errno_text
from sandboxd.init_link import InitLink, LinkClosed
from sandboxd.init_protocol import (
    ExecFds,
    ExecKind,
    ExecRequest,
    ExecStep,
    Failed,
    ProtocolError,
)
from sandboxd.pipes import InputPipe, OutputPipe, command_pipe
from sandboxd.protocol import DEFAULT_PATH
from sandboxd.running_exec import RunningExec
from sandboxd.sandbox import LiveSandbox

if TYPE_CHECKING:
    from sandboxd.launch import LaunchedSandbox

__all__ = ["DEFAULT_ENVIRONMENT", "RunningExec", "start_exec"]

DEFAULT_ENVIRONMENT = {
    "PATH": DEFAULT_PATH,
    "LANG": "C.UTF-8",
}

_STEP_TEXTS = {
    ExecStep.REQUEST: "init refused the request",
    ExecStep.FORK: "no process could be made",
    ExecStep.USER: "the user does not exist in the sandbox",
    ExecStep.CREDENTIALS: "the user could not be taken on",
    ExecStep.CWD: "the working directory cannot be entered",
    ExecStep.EXEC: "the program cannot be executed",
    ExecStep.TERMINAL: "it could not be given a terminal",
}


async def start_exec(
    sandbox: LiveSandbox,
    build_request: Callable[[int], ExecRequest],
    *,
    operation: str,
    stdin_data: bytes | None = None,
    stream_stdin: bool = False,
    keep_for_takeover: bool = True,
) -> RunningExec:
    """Start a program or a file operation; `VenusError` when it did not start.

    Without `stdin_data` and `stream_stdin` its input is /dev/null.
    """
    await sandbox.gate.enter()
    try:
        launched, link = sandbox.require_running(operation)
        exec_id = sandbox.next_exec_id()
        request = build_request(exec_id)
        running = RunningExec(
            sandbox, exec_id, operation, is_program=request.kind is ExecKind.PROGRAM
        )
        try:
            await _start(
                running, request, launched, link, stdin_data, stream_stdin, keep_for_takeover
            )
        except BaseException:
            running.lost = True
            running.detach()
            raise
        if running.is_program:
            sandbox.tell("exec", exec_id=exec_id, pid=running.pid)
    except LinkClosed:
        raise sandbox.gone_error(operation) from None
    except ProtocolError as error:
        raise InvalidRequest(
            "the request cannot be put to init",
            operation=operation,
            object=sandbox.sandbox_id,
            cause=str(error),
        ) from error
    except OSError as error:
        raise LimitExceeded(
            "the daemon has no descriptors or groups for another command",
            operation=operation,
            object=sandbox.sandbox_id,
            cause=str(error),
        ) from error
    except VenusError as error:
        error.operation, error.object = operation, sandbox.sandbox_id
        raise
    finally:
        sandbox.gate.leave()
    return running


async def _start(
    running: RunningExec,
    request: ExecRequest,
    launched: LaunchedSandbox,
    link: InitLink,
    stdin_data: bytes | None,
    stream_stdin: bool,
    keep_for_takeover: bool,
) -> None:
    unwritten = b""
    with contextlib.ExitStack() as child_ends:
        procs_fds: tuple[int, ...] = ()
        kill_fd: int | None = None
        if running.is_program:
            running.oom_kills_before = launched.oom_kills()
            cgroup = launched.open_exec_cgroup(running.exec_id)
            child_ends.callback(cgroup.close)
            procs_fds, kill_fd = tuple(cgroup.procs_fds), cgroup.kill_fd
        if request.terminal is not None:
            fds = ExecFds(cgroup_procs=procs_fds, cgroup_kill=kill_fd)
        else:

            def pipe_from_child() -> tuple[OutputPipe, int, int]:
                read_end, write_end = command_pipe()
                child_ends.callback(os.close, write_end)
                return OutputPipe(read_end, running.wake), read_end, write_end

            running.stdout, stdout_read, stdout_write = pipe_from_child()
            running.stderr, stderr_read, stderr_write = pipe_from_child()
            stdin_read = stdin_write = None
            if stdin_data is not None or stream_stdin:
                stdin_read, stdin_write = command_pipe()
                child_ends.callback(os.close, stdin_read)
                running.stdin = InputPipe(stdin_write)
            fds = ExecFds(
                stdin=stdin_read,
                stdout=stdout_write,
                stderr=stderr_write,
                keep_stdin=stdin_write if stream_stdin and keep_for_takeover else None,
                keep_stdout=stdout_read if keep_for_takeover else None,
                keep_stderr=stderr_read if keep_for_takeover else None,
                cgroup_procs=procs_fds,
                cgroup_kill=kill_fd,
            )
        if stdin_data is not None and running.stdin is not None:
            # Nearly always all of it, so that the daemon's part is over before the command runs.
            unwritten = stdin_data[running.stdin.write_now(stdin_data) :]
        answer = await link.start(request, fds, running.on_exit)
    if isinstance(answer, Failed):
        if running.is_program:
            launched.remove_exec_cgroup(running.exec_id)
        raise ExecFailed(
            _STEP_TEXTS.get(answer.step, "it could not be started"),
            cause=f"step {answer.step.name.lower()}: {errno_text(answer.errno)}",
        )
    running.pid = answer.pid
    if answer.fds:
        try:
            running.take_terminal(*answer.fds)
        except BaseException:
            link.give_up(running.exec_id)
            raise
    if stdin_data is not None and running.stdin is not None:
        if unwritten:
            running.feeder = asyncio.ensure_future(_feed(running.stdin, unwritten))
        else:
            running.stdin.close()


async def _feed(pipe: InputPipe, data: bytes) -> None:
    # A command that does not read its input to the end is none of our concern.
    with contextlib.suppress(BrokenPipeError):
        await pipe.write(data)
    pipe.close()

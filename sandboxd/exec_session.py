"""A command in a sandbox, from its start until init may forget it.

Order of the end: the leader exits (init's event), then its pipes reach end of file once no child
holds them, then the exec is released: init drops its descriptors and the exec's cgroup goes. In
between, a command whose client is answered, or gone, is *detached*: what its children still write
is read and thrown away, so that they neither block nor die of SIGPIPE.

Memory is flat: nothing is collected here, and a consumer that does not read stops the command.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal as signals
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sandboxd.errors import ExecFailed, InvalidRequest, LimitExceeded, VenusError, errno_text
from sandboxd.exec_outcome import may_be_oom
from sandboxd.init_link import InitLink, LinkClosed
from sandboxd.init_protocol import (
    ExecFds,
    ExecKind,
    ExecRequest,
    ExecStep,
    Exited,
    Failed,
    ProtocolError,
)
from sandboxd.pipes import InputPipe, OutputPipe, OutputRing, command_pipe
from sandboxd.sandbox import LiveSandbox

if TYPE_CHECKING:
    from sandboxd.launch import LaunchedSandbox

# How long the end of a stream may take once its sandbox is gone.
_LAST_WORDS_S = 5.0

DEFAULT_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
}

_STEP_TEXTS = {
    ExecStep.REQUEST: "init refused the request",
    ExecStep.FORK: "no process could be made",
    ExecStep.USER: "the user does not exist in the sandbox",
    ExecStep.CREDENTIALS: "the user could not be taken on",
    ExecStep.CWD: "the working directory cannot be entered",
    ExecStep.EXEC: "the program cannot be executed",
}


class RunningExec:
    """One exec that init knows. Touched on the event loop only."""

    def __init__(
        self, sandbox: LiveSandbox, exec_id: int, operation: str, *, is_program: bool
    ) -> None:
        self.sandbox = sandbox
        self.exec_id = exec_id
        self.is_program = is_program
        self.pid = 0
        self.stdin: InputPipe | None = None
        self.stdout: OutputPipe | None = None
        self.stderr: OutputPipe | None = None
        self.exited: Exited | None = None
        self.lost = False
        self.oom_kills_before = 0
        self.feeder: asyncio.Task[None] | None = None
        self.consumer: asyncio.Task[Any] | None = None
        """The task that forwards the output; cancelling one that is done does nothing."""
        self.ends_for_capture = False
        """It starts again by itself after a capture, and must not be there during one."""
        self.ended_for_capture = False
        self.keeps_output = False
        """The end of its output can be read: nobody has its stream."""
        self._detached = False
        self._wake = asyncio.Event()
        sandbox.add_exec(self, operation)

    # -- what happens to it ------------------------------------------------------------------------

    def wake(self) -> None:
        """Something happened that `wait` waits for."""
        self._wake.set()
        if self._detached:
            self._settle()

    async def wait(self) -> None:
        """Until output, exit, loss or `wake` since the last call."""
        await self._wake.wait()
        self._wake.clear()

    def on_exit(self, exited: Exited) -> None:
        """Init's event: the leader is dead and reaped."""
        self.exited = exited
        if self.ends_for_capture:
            self.sandbox.gate.notify()
        self.wake()

    def on_lost(self) -> None:
        """The sandbox ended under it."""
        self.lost = True
        if self.consumer is not None:
            # It may be waiting for a client that does not read.
            asyncio.get_running_loop().call_later(_LAST_WORDS_S, self.consumer.cancel)
        self.wake()

    @property
    def over(self) -> bool:
        """No more is to be expected from the leader."""
        return self.exited is not None or self.lost

    def oom_kills_during(self) -> int:
        """Kernel kills for memory in the sandbox since the command started. Asked only of one that
        died as such a kill makes it die: it costs a read."""
        exited, launched = self.exited, self.sandbox.launched
        if exited is None or launched is None or not may_be_oom(exited):
            return 0
        now = launched.oom_kills()
        self.sandbox.oom_kills_seen = max(self.sandbox.oom_kills_seen, now)
        return now - self.oom_kills_before

    # -- what is done to it ------------------------------------------------------------------------

    def kill_soon(self) -> None:
        """SIGKILL to everything that the command started."""
        link = self.sandbox.link
        if link is not None and not self.over:
            with contextlib.suppress(LinkClosed):
                link.kill_soon(self.exec_id, signals.SIGKILL, whole_tree=True)

    def end_for_capture(self) -> None:
        """Once; it may already have been asked to."""
        if not self.ended_for_capture:
            self.ended_for_capture = True
            self.kill_soon()

    def close_stdin(self) -> None:
        """End of file for the command, once what was written is read."""
        if self.stdin is not None and not self.stdin.closed:
            self.stdin.close()
            if self.sandbox.link is not None:
                with contextlib.suppress(LinkClosed):
                    self.sandbox.link.stdin_closed_soon(self.exec_id)

    def detach(self, keep_bytes: int = 0) -> None:
        """Nobody reads the output from here on; the exec settles by itself. The last `keep_bytes`
        of each stream are kept."""
        if self._detached:
            return
        self._detached = True
        self.keeps_output = keep_bytes > 0
        for pipe in self._outputs():
            pipe.drain(OutputRing(keep_bytes) if keep_bytes else None)
        self._settle()

    def _outputs(self) -> list[OutputPipe]:
        return [pipe for pipe in (self.stdout, self.stderr) if pipe is not None]

    def _settle(self) -> None:
        if self.lost:
            for pipe in self._outputs():
                pipe.close()
        if not self.over or not all(pipe.eof for pipe in self._outputs()):
            return
        if self.stdin is not None:
            self.stdin.close()
        if not self.sandbox.drop_exec(self.exec_id) or self.lost:
            return
        if self.keeps_output:
            self.sandbox.ended_execs.append(self)
        if self.sandbox.link is not None:
            with contextlib.suppress(LinkClosed):
                self.sandbox.link.release_soon(self.exec_id)
        if self.is_program and self.sandbox.launched is not None:
            self.sandbox.launched.remove_exec_cgroup(self.exec_id)


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
    with contextlib.ExitStack() as child_ends:

        def pipe_from_child() -> tuple[OutputPipe, int, int]:
            read_end, write_end = command_pipe()
            child_ends.callback(os.close, write_end)
            return OutputPipe(read_end, running.wake), read_end, write_end

        running.stdout, stdout_read, stdout_write = pipe_from_child()
        running.stderr, stderr_read, stderr_write = pipe_from_child()
        stdin_read: int | None = None
        if stdin_data is not None or stream_stdin:
            stdin_read, stdin_write = command_pipe()
            child_ends.callback(os.close, stdin_read)
            running.stdin = InputPipe(stdin_write)
        procs_fds: tuple[int, ...] = ()
        kill_fd: int | None = None
        if running.is_program:
            running.oom_kills_before = launched.oom_kills()
            cgroup = launched.open_exec_cgroup(running.exec_id)
            child_ends.callback(cgroup.close)
            procs_fds, kill_fd = tuple(cgroup.procs_fds), cgroup.kill_fd
        fds = ExecFds(
            stdin=stdin_read,
            stdout=stdout_write,
            stderr=stderr_write,
            keep_stdin=(
                running.stdin.fd if running.stdin and stream_stdin and keep_for_takeover else None
            ),
            keep_stdout=stdout_read if keep_for_takeover else None,
            keep_stderr=stderr_read if keep_for_takeover else None,
            cgroup_procs=procs_fds,
            cgroup_kill=kill_fd,
        )
        unwritten = b""
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

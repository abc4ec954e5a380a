"""Commands of a sandbox, for asyncio. The same surface as the synchronous one."""

from __future__ import annotations

import signal as signal_numbers
from collections.abc import Mapping, Sequence
from typing import Literal, overload

from sandboxd.client import _command_calls
from sandboxd.client._async_handle import AsyncCommandHandle, AsyncOnOutput
from sandboxd.client._async_transport import AsyncTransport
from sandboxd.client._data import AsyncData, small
from sandboxd.client._exec import (
    DEFAULT_COMMAND_TIMEOUT_S,
    DEFAULT_MAX_OUTPUT_BYTES,
    WAIT_GRACE_S,
)
from sandboxd.client.types import CommandInfo, CommandResult, Exit, PtySize
from sandboxd.errors import NotFound
from sandboxd.protocol import DEFAULT_WAIT_S, StdinMode


class AsyncCommands:
    """Runs commands in one sandbox."""

    def __init__(self, transport: AsyncTransport, sandbox_id: str) -> None:
        self._transport = transport
        self._sandbox_id = sandbox_id

    @overload
    async def run(
        self,
        cmd: str | Sequence[str],
        background: Literal[False] = False,
        *,
        envs: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        timeout: float | None = DEFAULT_COMMAND_TIMEOUT_S,
        stdin: AsyncData | None = None,
        on_stdout: AsyncOnOutput | None = None,
        on_stderr: AsyncOnOutput | None = None,
        check: bool = True,
        max_output_bytes: int | None = DEFAULT_MAX_OUTPUT_BYTES,
    ) -> CommandResult: ...

    @overload
    async def run(
        self,
        cmd: str | Sequence[str],
        background: Literal[True],
        *,
        envs: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        timeout: float | None = None,
        stdin: bool = False,
        max_output_bytes: int | None = None,
        keep: bool = False,
        pty: PtySize | None = None,
    ) -> AsyncCommandHandle: ...

    async def run(
        self,
        cmd: str | Sequence[str],
        background: bool = False,
        *,
        envs: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        timeout: float | None = DEFAULT_COMMAND_TIMEOUT_S,
        stdin: AsyncData | bool | None = None,
        on_stdout: AsyncOnOutput | None = None,
        on_stderr: AsyncOnOutput | None = None,
        check: bool = True,
        max_output_bytes: int | None = DEFAULT_MAX_OUTPUT_BYTES,
        keep: bool = False,
        pty: PtySize | None = None,
    ) -> CommandResult | AsyncCommandHandle:
        """Runs a shell command line (str) or a program (sequence), to its end by default.

        `timeout` in seconds kills the command's whole tree; None means the daemon's maximum.
        With `check`, an end other than exit code 0 raises `CommandExitError` or
        `CommandTimeout`, both of which carry the result. With `background`, returns a handle at
        once; `stdin=True` then keeps the input open for `send_stdin`, and with `keep` the command
        goes on when the handle's connection is lost or given up. Cancelling the call ends the
        command and everything that it started.
        With `pty` (rows, columns) it has a terminal, which is its input and all of its output.
        """
        if background:
            return await self._start(
                cmd,
                StdinMode.STREAM if stdin else StdinMode.NULL,
                b"",
                envs=envs,
                cwd=cwd,
                user=user,
                timeout_s=timeout,
                max_output_bytes=max_output_bytes,
                keep=keep,
                pty=pty,
            )
        assert not keep and pty is None, "keep and pty are for background commands"
        assert not isinstance(stdin, bool), "stdin=True is for background commands"
        content = b"" if stdin is None else small(stdin)
        if stdin is None:
            mode = StdinMode.NULL
        else:
            mode = StdinMode.STREAM if content is None else StdinMode.INLINE
        async with await self._start(
            cmd,
            mode,
            content or b"",
            envs=envs,
            cwd=cwd,
            user=user,
            timeout_s=timeout,
            max_output_bytes=max_output_bytes,
        ) as handle:
            if mode is not StdinMode.STREAM or stdin is None:
                return await handle.wait(on_stdout=on_stdout, on_stderr=on_stderr, check=check)
            async with handle.feeding(stdin):
                return await handle.wait(on_stdout=on_stdout, on_stderr=on_stderr, check=check)

    async def start(
        self,
        cmd: str | Sequence[str],
        *,
        envs: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        timeout: float | None = None,
        stdin: bool = False,
        pty: PtySize | None = None,
    ) -> CommandInfo:
        """Starts a command that needs no connection: the end of its output is kept, `connect` reads
        it, `wait` tells how it ended. It never waits for a reader."""
        return await self._transport.call(
            _command_calls.start_command(
                self._sandbox_id,
                cmd,
                env=envs,
                cwd=cwd,
                user=user,
                timeout_s=timeout,
                stdin=stdin,
                pty=pty,
            )
        )

    async def connect(
        self,
        pid: int | None = None,
        *,
        exec_id: int | None = None,
        max_output_bytes: int | None = DEFAULT_MAX_OUTPUT_BYTES,
    ) -> AsyncCommandHandle:
        """Attaches to a kept command that runs as `pid`, or by its id, also when it has ended: what
        is kept of its output, then what it writes, then its end."""
        exec_id = await self._exec_id(pid, exec_id)
        call = _command_calls.attach(self._sandbox_id, exec_id, max_output_bytes=max_output_bytes)
        return await AsyncCommandHandle(self._transport, call, None, self._sandbox_id)._start()

    async def wait(self, exec_id: int, timeout: float = DEFAULT_WAIT_S) -> Exit:
        """How a kept command ended. `OperationTimeout` when it has not within `timeout` seconds, at
        most an hour."""
        return await self._transport.call(
            _command_calls.wait_command(self._sandbox_id, exec_id, timeout),
            timeout_s=timeout + WAIT_GRACE_S,
        )

    async def list(self) -> list[CommandInfo]:
        """Commands that run, and kept ones that ended lately, also those that a fork was born
        with."""
        return await self._transport.call(_command_calls.list_commands(self._sandbox_id))

    async def get(self, exec_id: int) -> CommandInfo:
        """One of `list`."""
        return await self._transport.call(_command_calls.get_command(self._sandbox_id, exec_id))

    async def output(self, exec_id: int, stream: Literal["stdout", "stderr"] = "stdout") -> bytes:
        """What is kept of what a kept command has written."""
        return await self._transport.call(
            _command_calls.read_output(self._sandbox_id, exec_id, stream)
        )

    async def send_stdin(self, exec_id: int, data: bytes, *, eof: bool = False) -> None:
        """Writes to a command's open input, at its pace."""
        await self._transport.call(
            _command_calls.send_stdin(self._sandbox_id, exec_id, data, eof=eof), timeout_s=None
        )

    async def close_stdin(self, exec_id: int) -> None:
        """The command reads end of file."""
        await self.send_stdin(exec_id, b"", eof=True)

    async def send_signal(self, exec_id: int, number: int, *, whole_tree: bool = False) -> None:
        """To the command's leader, or to everything that it started."""
        await self._transport.call(
            _command_calls.send_signal(self._sandbox_id, exec_id, number, whole_tree=whole_tree)
        )

    async def resize(self, exec_id: int, pty: PtySize) -> None:
        """Gives a command's terminal another size, of which its programs are told."""
        await self._transport.call(_command_calls.resize(self._sandbox_id, exec_id, pty))

    async def kill(self, pid: int | None = None, *, exec_id: int | None = None) -> bool:
        """Kills a command and everything that it started. False if there is none that runs."""
        try:
            await self.send_signal(
                await self._exec_id(pid, exec_id), signal_numbers.SIGKILL, whole_tree=True
            )
        except NotFound:
            return False
        return True

    async def _exec_id(self, pid: int | None, exec_id: int | None) -> int:
        if (pid is None) == (exec_id is None):
            raise ValueError("exactly one of pid and exec_id is needed")
        if exec_id is not None:
            return exec_id
        assert pid is not None
        return _command_calls.with_pid(await self.list(), pid, self._sandbox_id).exec_id

    async def _start(
        self,
        cmd: str | Sequence[str],
        mode: StdinMode,
        inline_stdin: bytes,
        *,
        envs: Mapping[str, str] | None,
        cwd: str | None,
        user: str | None,
        timeout_s: float | None,
        max_output_bytes: int | None,
        keep: bool = False,
        pty: PtySize | None = None,
    ) -> AsyncCommandHandle:
        call = _command_calls.run_command(
            self._sandbox_id,
            cmd,
            env=envs,
            cwd=cwd,
            user=user,
            timeout_s=timeout_s,
            stdin=mode,
            inline_stdin=inline_stdin,
            max_output_bytes=max_output_bytes,
            keep=keep,
            pty=pty,
        )
        return await AsyncCommandHandle(self._transport, call, timeout_s, self._sandbox_id)._start()

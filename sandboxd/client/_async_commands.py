"""Commands of a sandbox, for asyncio. The same surface as the synchronous one."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import signal as signal_numbers
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Literal, Self, overload

from sandboxd.client import _calls
from sandboxd.client._async_transport import AsyncTransport
from sandboxd.client._call import Call
from sandboxd.client._data import AsyncData, async_pieces, small
from sandboxd.client._exec import (
    DEFAULT_COMMAND_TIMEOUT_S,
    DEFAULT_MAX_OUTPUT_BYTES,
    Event,
    ExecStream,
    OutputCollector,
    checked,
)
from sandboxd.client._http import EXEC_GRACE_S
from sandboxd.client.types import (
    CommandInfo,
    CommandResult,
    Exit,
    Output,
    SandboxInfo,
    Started,
)
from sandboxd.errors import VenusError
from sandboxd.protocol import StdinMode

AsyncOnOutput = Callable[[str], Awaitable[None] | None]
_FEEDER_PATIENCE_S = 1.0


class AsyncCommandHandle:
    """A running command. Iterating yields its output; `wait` collects it.

    The command lives as long as its connection: leaving the context, or `disconnect`, ends it
    and everything it started. Without `sandbox_id`, the call makes the sandbox too.
    """

    def __init__(
        self,
        transport: AsyncTransport,
        call: Call[None],
        timeout_s: float | None,
        sandbox_id: str = "",
    ) -> None:
        self._transport = transport
        self._sandbox_id = sandbox_id
        self._call = call
        self._timeout_s = timeout_s
        self._stream = ExecStream(call)
        self._stack = contextlib.AsyncExitStack()
        self._events: AsyncIterator[Event]
        self._started: Started

    async def _start(self) -> Self:
        silence_s = None if self._timeout_s is None else self._timeout_s + EXEC_GRACE_S
        try:
            chunks = await self._stack.enter_async_context(
                self._transport.stream(self._call, timeout_s=silence_s)
            )
            self._events = self._read(chunks)
            first = await anext(self._events)
        except BaseException:
            await self._stack.aclose()
            raise
        assert isinstance(first, Started), "ExecStream yields Started first, or raises"
        self._started = first
        if first.sandbox is not None:
            self._sandbox_id = first.sandbox.id
        return self

    def _made(self) -> SandboxInfo:
        """The sandbox that the call has made."""
        assert self._started.sandbox is not None, "the daemon names the sandbox that it made"
        return self._started.sandbox

    @property
    def pid(self) -> int:
        """Process id inside the sandbox."""
        return self._started.pid

    @property
    def exec_id(self) -> int:
        return self._started.exec_id

    @property
    def exit(self) -> Exit:
        """How the command ended; only once its output has been read to the end."""
        if self._stream.exit is None:
            raise RuntimeError("the command's output has not been read to its end")
        return self._stream.exit

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.disconnect()

    async def disconnect(self) -> None:
        await self._stack.aclose()

    async def __aiter__(self) -> AsyncIterator[Output]:
        async for event in self._events:
            if isinstance(event, Output):
                yield event

    async def wait(
        self,
        *,
        on_stdout: AsyncOnOutput | None = None,
        on_stderr: AsyncOnOutput | None = None,
        check: bool = True,
    ) -> CommandResult:
        """Reads the output to its end. With `check`, any end but exit code 0 raises."""
        collector = OutputCollector()
        callbacks = {"stdout": on_stdout, "stderr": on_stderr}
        async for event in self._events:
            if isinstance(event, Output):
                await _tell(callbacks[event.stream], collector.add(event))
        for name, callback in callbacks.items():
            await _tell(callback, collector.finish(name))
        await self.disconnect()
        return checked(
            collector.result(self.exit), self._call, timeout_s=self._timeout_s, check=check
        )

    async def send_stdin(self, data: AsyncData, *, eof: bool = False) -> None:
        """Writes to the command's input, in pieces; returns when the command's pipe has it all."""
        content = small(data)
        call = _calls.send_stdin(self._sandbox_id, self.exec_id, content or b"", eof=eof)
        await self._transport.call(
            call, content=None if content is not None else async_pieces(data), timeout_s=None
        )

    async def close_stdin(self) -> None:
        """The command reads end of file."""
        await self.send_stdin(b"", eof=True)

    def feeding(self, data: AsyncData) -> contextlib.AbstractAsyncContextManager[None]:
        """While the block reads the output, a task sends `data` and then end of file."""
        return _Feeder(self, data)

    async def send_signal(self, number: int, *, whole_tree: bool = False) -> None:
        await self._transport.call(
            _calls.send_signal(self._sandbox_id, self.exec_id, number, whole_tree=whole_tree)
        )

    async def kill(self) -> None:
        """Kills the command and everything that it started."""
        await self.send_signal(signal_numbers.SIGKILL, whole_tree=True)

    async def _read(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[Event]:
        async for chunk in chunks:
            for event in self._stream.feed(chunk):
                yield event
        self._stream.end()


async def _tell(callback: AsyncOnOutput | None, text: str) -> None:
    if callback is not None and text:
        waited = callback(text)
        if inspect.isawaitable(waited):
            await waited


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
    ) -> CommandResult | AsyncCommandHandle:
        """Runs a shell command line (str) or a program (sequence), to its end by default.

        `timeout` in seconds kills the command's whole tree; None means the daemon's maximum.
        With `check`, an end other than exit code 0 raises `CommandExitError` or
        `CommandTimeout`, both of which carry the result. With `background`, returns a handle at
        once; `stdin=True` then keeps the input open for `send_stdin`. Cancelling the call ends
        the command and everything that it started.
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
            )
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

    async def list(self) -> list[CommandInfo]:
        """Commands that run, also those that a fork was born with."""
        return await self._transport.call(_calls.list_commands(self._sandbox_id))

    async def output(self, exec_id: int, stream: Literal["stdout", "stderr"] = "stdout") -> bytes:
        """The end of what a command that a fork was born with has written since."""
        return await self._transport.call(_calls.read_output(self._sandbox_id, exec_id, stream))

    async def send_stdin(self, exec_id: int, data: bytes, *, eof: bool = False) -> None:
        """Writes to the open input of a command that a fork was born with."""
        await self._transport.call(_calls.send_stdin(self._sandbox_id, exec_id, data, eof=eof))

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
    ) -> AsyncCommandHandle:
        call = _calls.run_command(
            self._sandbox_id,
            cmd,
            env=envs,
            cwd=cwd,
            user=user,
            timeout_s=timeout_s,
            stdin=mode,
            inline_stdin=inline_stdin,
            max_output_bytes=max_output_bytes,
        )
        return await AsyncCommandHandle(self._transport, call, timeout_s, self._sandbox_id)._start()


class _Feeder(contextlib.AbstractAsyncContextManager[None]):
    """Sends a command's input in a task while its output is read.

    The daemon's refusal to take more (the command closed its input, or ended) is not an error, as
    in a shell; a source that fails kills the command, which would otherwise take a cut input for
    a whole one.
    """

    def __init__(self, handle: AsyncCommandHandle, data: AsyncData) -> None:
        self._handle = handle
        self._data = data
        self._failure: BaseException | None = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        self._task = asyncio.create_task(self._feed(), name="venus-stdin")

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._task is not None
        patience_s = _FEEDER_PATIENCE_S if kind is None else 0
        await asyncio.wait([self._task], timeout=patience_s)
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._failure is not None:
            raise self._failure from error

    async def _feed(self) -> None:
        try:
            await self._handle.send_stdin(self._guarded(), eof=True)
        except _SourceFailed as failure:
            self._failure = failure.error
            with contextlib.suppress(VenusError):
                await self._handle.kill()
        except VenusError:
            pass

    async def _guarded(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in async_pieces(self._data):
                yield chunk
        except Exception as error:
            raise _SourceFailed(error) from error


class _SourceFailed(Exception):
    """The caller's own source of input raised `error`."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        # Not left to __cause__, which the transport clears when it raises again.
        self.error = error

"""A running command, for asyncio. The same surface as the synchronous one."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import signal as signal_numbers
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Self

from sandboxd.client import _command_calls
from sandboxd.client._async_transport import AsyncTransport
from sandboxd.client._call import Call
from sandboxd.client._data import AsyncData, async_pieces, small
from sandboxd.client._exec import Event, ExecStream, OutputCollector, checked
from sandboxd.client._http import EXEC_GRACE_S
from sandboxd.client.types import CommandResult, Exit, Output, PtySize, SandboxInfo, Started
from sandboxd.errors import VenusError

AsyncOnOutput = Callable[[str], Awaitable[None] | None]
_FEEDER_PATIENCE_S = 1.0


class AsyncCommandHandle:
    """A running command. Iterating yields its output; `wait` collects it.

    The command lives as long as its connection: leaving the context, or `disconnect`, ends it
    and everything it started. One that was started with `keep`, or in the background, lives on, and
    `reconnect` goes on where the output stopped. Without `sandbox_id`, the call makes the sandbox
    too.
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
        self._collector = OutputCollector()
        self._stack = contextlib.AsyncExitStack()
        self._stream: ExecStream
        self._events: AsyncIterator[Event]
        self._started: Started

    async def _start(self) -> Self:
        await self._open(self._call)
        if self._started.sandbox is not None:
            self._sandbox_id = self._started.sandbox.id
        return self

    async def _open(self, call: Call[None]) -> None:
        silence_s = None if self._timeout_s is None else self._timeout_s + EXEC_GRACE_S
        stream = ExecStream(call)
        try:
            chunks = await self._stack.enter_async_context(
                self._transport.stream(call, timeout_s=silence_s)
            )
            events = _read(stream, chunks)
            first = await anext(events)
        except BaseException:
            await self._stack.aclose()
            raise
        assert isinstance(first, Started), "ExecStream yields Started first, or raises"
        self._call, self._stream, self._events, self._started = call, stream, events, first

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
        """Reads no more. Ends a command that is not kept."""
        await self._stack.aclose()

    async def reconnect(self) -> None:
        """As `CommandHandle.reconnect`."""
        await self.disconnect()
        await self._open(
            _command_calls.attach_again(self._sandbox_id, self._started, self._stream.positions)
        )

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
        """Reads the output to its end. With `check`, any end but exit code 0 raises. After
        `reconnect` it goes on with what it had collected."""
        collector = self._collector
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
        call = _command_calls.send_stdin(self._sandbox_id, self.exec_id, content or b"", eof=eof)
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
            _command_calls.send_signal(
                self._sandbox_id, self.exec_id, number, whole_tree=whole_tree
            )
        )

    async def resize(self, pty: PtySize) -> None:
        """Gives the command's terminal another size, of which its programs are told."""
        await self._transport.call(_command_calls.resize(self._sandbox_id, self.exec_id, pty))

    async def kill(self) -> None:
        """Kills the command and everything that it started."""
        await self.send_signal(signal_numbers.SIGKILL, whole_tree=True)


async def _read(stream: ExecStream, chunks: AsyncIterator[bytes]) -> AsyncIterator[Event]:
    async for chunk in chunks:
        for event in stream.feed(chunk):
            yield event
    stream.end()


async def _tell(callback: AsyncOnOutput | None, text: str) -> None:
    if callback is not None and text:
        waited = callback(text)
        if inspect.isawaitable(waited):
            await waited


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

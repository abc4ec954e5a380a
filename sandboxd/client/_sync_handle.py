"""A running command, for threads."""

from __future__ import annotations

import contextlib
import signal as signal_numbers
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from sandboxd.client import _command_calls
from sandboxd.client._call import Call
from sandboxd.client._data import Data, pieces, small
from sandboxd.client._exec import Event, ExecStream, OutputCollector, checked
from sandboxd.client._http import EXEC_GRACE_S
from sandboxd.client._sync_transport import SyncTransport
from sandboxd.client.types import CommandResult, Exit, Output, PtySize, SandboxInfo, Started
from sandboxd.errors import VenusError

OnOutput = Callable[[str], None]
# How long a finished command's input may take to notice that nobody reads it any more.
_FEEDER_PATIENCE_S = 1.0


class CommandHandle:
    """A running command. Iterating yields its output; `wait` collects it.

    The command lives as long as its connection: leaving the context, or `disconnect`, ends it
    and everything it started. One that was started with `keep`, or in the background, lives on, and
    `reconnect` goes on where the output stopped. Without `sandbox_id`, the call makes the sandbox
    too.
    """

    def __init__(
        self,
        transport: SyncTransport,
        call: Call[None],
        timeout_s: float | None,
        sandbox_id: str = "",
    ) -> None:
        self._transport = transport
        self._sandbox_id = sandbox_id
        self._timeout_s = timeout_s
        self._collector = OutputCollector()
        self._stack = contextlib.ExitStack()
        self._open(call)
        if self._started.sandbox is not None:
            self._sandbox_id = self._started.sandbox.id

    def _open(self, call: Call[None]) -> None:
        silence_s = None if self._timeout_s is None else self._timeout_s + EXEC_GRACE_S
        stream = ExecStream(call)
        chunks = self._stack.enter_context(self._transport.stream(call, timeout_s=silence_s))
        events = _read(stream, chunks)
        try:
            first = next(events, None)
        except BaseException:
            self._stack.close()
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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.disconnect()

    def disconnect(self) -> None:
        """Reads no more. Ends a command that is not kept."""
        self._stack.close()

    def reconnect(self) -> None:
        """Goes on reading a kept command's output where it stopped, after a connection that was
        lost. What is no longer kept is told as `Output.lost`, but for what a daemon had kept that
        was restarted meanwhile."""
        self.disconnect()
        positions = self._stream.positions
        self._open(_command_calls.attach_again(self._sandbox_id, self._started, positions))

    def __iter__(self) -> Iterator[Output]:
        for event in self._events:
            if isinstance(event, Output):
                yield event

    def wait(
        self,
        *,
        on_stdout: OnOutput | None = None,
        on_stderr: OnOutput | None = None,
        check: bool = True,
    ) -> CommandResult:
        """Reads the output to its end. With `check`, any end but exit code 0 raises. After
        `reconnect` it goes on with what it had collected."""
        collector = self._collector
        callbacks = {"stdout": on_stdout, "stderr": on_stderr}
        for output in self:
            text = collector.add(output)
            callback = callbacks[output.stream]
            if callback is not None and text:
                callback(text)
        for name, callback in callbacks.items():
            rest = collector.finish(name)
            if callback is not None and rest:
                callback(rest)
        self.disconnect()
        return checked(
            collector.result(self.exit), self._call, timeout_s=self._timeout_s, check=check
        )

    def send_stdin(self, data: Data, *, eof: bool = False) -> None:
        """Writes to the command's input, in pieces; returns when the command's pipe has it all."""
        content = small(data)
        call = _command_calls.send_stdin(self._sandbox_id, self.exec_id, content or b"", eof=eof)
        self._transport.call(
            call, content=None if content is not None else pieces(data), timeout_s=None
        )

    def close_stdin(self) -> None:
        """The command reads end of file."""
        self.send_stdin(b"", eof=True)

    def feeding(self, data: Data) -> contextlib.AbstractContextManager[None]:
        """While the block reads the output, a second thread sends `data` and then end of file."""
        return _Feeder(self, data)

    def send_signal(self, number: int, *, whole_tree: bool = False) -> None:
        self._transport.call(
            _command_calls.send_signal(
                self._sandbox_id, self.exec_id, number, whole_tree=whole_tree
            )
        )

    def resize(self, pty: PtySize) -> None:
        """Gives the command's terminal another size, of which its programs are told."""
        self._transport.call(_command_calls.resize(self._sandbox_id, self.exec_id, pty))

    def kill(self) -> None:
        """Kills the command and everything that it started."""
        self.send_signal(signal_numbers.SIGKILL, whole_tree=True)


def _read(stream: ExecStream, chunks: Iterator[bytes]) -> Iterator[Event]:
    for chunk in chunks:
        yield from stream.feed(chunk)
    stream.end()


class _Feeder(contextlib.AbstractContextManager[None]):
    """Sends a command's input from a second thread while the first reads its output.

    One thread for both would deadlock as soon as both pipes are full. The daemon's refusal to
    take more (the command closed its input, or ended) is not an error, as in a shell; a source
    that fails kills the command, which would otherwise take a cut input for a whole one.
    """

    def __init__(self, handle: CommandHandle, data: Data) -> None:
        self._handle = handle
        self._data = data
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._feed, name="venus-stdin", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._thread.join(_FEEDER_PATIENCE_S)
        if self._failure is not None:
            raise self._failure from error

    def _feed(self) -> None:
        try:
            self._handle.send_stdin(pieces(self._guarded()), eof=True)
        except _SourceFailed as failure:
            self._failure = failure.error
            with contextlib.suppress(VenusError):
                self._handle.kill()
        except VenusError:
            pass

    def _guarded(self) -> Iterator[bytes]:
        try:
            yield from pieces(self._data)
        except Exception as error:
            raise _SourceFailed(error) from error


class _SourceFailed(Exception):
    """The caller's own source of input raised `error`."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        # Not left to __cause__, which the transport clears when it raises again.
        self.error = error

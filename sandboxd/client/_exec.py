"""The answer to an exec request, read piece by piece. No I/O here.

Invariant: a stream yields `Started` once, any number of `Output`, and `Exit` once, or raises. A
stream that ends early raises `ConnectionLost`: what a cut connection hides is never taken for a
result.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator

from sandboxd.client._call import Call
from sandboxd.client.errors import CommandExitError, CommandTimeout, ConnectionLost
from sandboxd.client.types import CommandResult, Exit, Output, Started
from sandboxd.errors import error_from_json
from sandboxd.protocol import ExitReason, Frame, FrameDecoder, FrameType, ProtocolError

Event = Started | Output | Exit

# The client collects output in memory, so it asks the daemon for a bound unless told otherwise.
DEFAULT_MAX_OUTPUT_BYTES = 64 << 20
DEFAULT_COMMAND_TIMEOUT_S = 60.0
STDIN_CHUNK_BYTES = 256 << 10
# Above the time that the daemon was given for its answer.
WAIT_GRACE_S = 10.0

_STREAMS = {FrameType.STDOUT: "stdout", FrameType.STDERR: "stderr"}


class ExecStream:
    """Bytes of an exec answer in, events out."""

    def __init__(self, call: Call[None]) -> None:
        self._call = call
        self._decoder = FrameDecoder()
        self.started: Started | None = None
        self.exit: Exit | None = None
        self.positions = {"stdout": 0, "stderr": 0}
        """Of the next byte of each stream."""

    def feed(self, chunk: bytes) -> Iterator[Event]:
        try:
            for frame in self._decoder.feed(chunk):
                yield self._event(frame)
        except ProtocolError as error:
            raise self._lost("the daemon's answer cannot be read", str(error)) from error

    def end(self) -> None:
        """The peer has closed the stream."""
        if self.exit is None or self._decoder.mid_frame:
            raise self._lost("the answer ended before the command's exit was reported", "")

    def _event(self, frame: Frame) -> Event:
        if self.exit is not None:
            raise ProtocolError(f"{frame.type.name} frame after EXIT")
        if self.started is None and frame.type not in (FrameType.STARTED, FrameType.ERROR):
            raise ProtocolError(f"{frame.type.name} frame before STARTED")
        stream = _STREAMS.get(frame.type)
        if stream is not None:
            self.positions[stream] += len(frame.payload)
            return Output(stream, frame.payload)
        if frame.type is FrameType.LOST:
            return self._gap(frame)
        if frame.type is FrameType.STARTED and self.started is None:
            started = self.started = Started.from_json(frame.json())
            self.positions = {"stdout": started.stdout_position, "stderr": started.stderr_position}
            return started
        if frame.type is FrameType.EXIT:
            self.exit = Exit.from_json(frame.json())
            return self.exit
        if frame.type is FrameType.ERROR:
            error = error_from_json(frame.json())
            error.operation = error.operation or self._call.operation
            error.object = error.object or self._call.object
            raise error
        raise ProtocolError(f"unexpected {frame.type.name} frame")

    def _gap(self, frame: Frame) -> Output:
        fields = frame.json()
        stream, lost = fields.get("stream"), fields.get("bytes")
        if stream not in self.positions or not isinstance(lost, int) or lost < 0:
            raise ProtocolError(f"LOST frame of {fields!r:.200}")
        self.positions[stream] += lost
        return Output(stream, b"", lost)

    def _lost(self, message: str, cause: str) -> ConnectionLost:
        return ConnectionLost(
            message, operation=self._call.operation, object=self._call.object, cause=cause
        )


class OutputCollector:
    """Keeps a command's output, and decodes it for callbacks.

    A character whose bytes arrive in two pieces reaches the callback whole, with the second one.
    """

    def __init__(self) -> None:
        self._bytes: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
        make_decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = {name: make_decoder("replace") for name in self._bytes}
        self._lost_bytes = 0

    def add(self, output: Output) -> str:
        self._lost_bytes += output.lost
        self._bytes[output.stream].append(output.data)
        return self._decoders[output.stream].decode(output.data)

    def finish(self, stream: str) -> str:
        """What the decoder still holds: an incomplete character at the very end."""
        return self._decoders[stream].decode(b"", final=True)

    def result(self, exit_: Exit) -> CommandResult:
        return CommandResult(
            b"".join(self._bytes["stdout"]),
            b"".join(self._bytes["stderr"]),
            exit_,
            self._lost_bytes,
        )


def checked(
    result: CommandResult, call: Call[None], *, timeout_s: float | None, check: bool
) -> CommandResult:
    """The result, or the exception that it stands for."""
    if not check or result.ok:
        return result
    if result.reason is ExitReason.TIMEOUT:
        raise CommandTimeout(call.object, timeout_s, result)
    raise CommandExitError(call.object, result)

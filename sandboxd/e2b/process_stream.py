"""The events of a command, to one client."""

from __future__ import annotations

import contextlib
import signal as signals
from contextlib import aclosing

from sandboxd.e2b.connect import Code, ConnectError
from sandboxd.e2b.paced import paced
from sandboxd.e2b.proto import process_pb2 as wire
from sandboxd.e2b.rpc import AnswerStream, Call
from sandboxd.output_reader import OutputReader, Piece
from sandboxd.protocol import ExitReason
from sandboxd.running_exec import RunningExec

Event = wire.ProcessEvent
Answer = type[wire.StartResponse] | type[wire.ConnectResponse]


async def stream_command(
    reader: OutputReader,
    call: Call,
    stream: AnswerStream,
    answer: Answer,
    timeout_s: float | None = None,
) -> None:
    """Until the command's end is told, or the client is gone: the command goes on then. `timeout_s`
    is the stream's; a command has its own."""
    running = reader.running
    await stream.send(answer(event=Event(start=Event.StartEvent(pid=running.pid))))
    pieces = paced(reader, stream.client, keepalive_s=call.keepalive_s, timeout_s=timeout_s)
    async with aclosing(pieces):
        async for piece in pieces:
            if piece is None:
                await stream.send(answer(event=Event(keepalive=Event.KeepAlive())))
            elif piece.data:
                await stream.send(answer(event=Event(data=_output(running, piece))))
    if not stream.client.gone:
        await stream.send(answer(event=Event(end=end_event(running))))


def _output(running: RunningExec, piece: Piece) -> wire.ProcessEvent.DataEvent:
    if running.is_terminal:
        return Event.DataEvent(pty=piece.data)
    if piece.stream == "stderr":
        return Event.DataEvent(stderr=piece.data)
    return Event.DataEvent(stdout=piece.data)


def end_event(running: RunningExec) -> wire.ProcessEvent.EndEvent:
    """How the command ended; `ConnectError` when nobody knows, or when its time was up."""
    exited, reason = running.exited, running.reason
    if exited is None:
        raise ConnectError(
            Code.UNAVAILABLE,
            f"the connection to sandbox {running.sandbox.sandbox_id} ended before its command",
        )
    if reason is ExitReason.TIMEOUT:
        raise ConnectError(Code.DEADLINE_EXCEEDED, "the command was killed: its time was up")
    if exited.signal is None:
        status = f"exit status {exited.exit_code}"
        end = Event.EndEvent(exit_code=exited.exit_code, exited=True, status=status)
        failed = exited.exit_code != 0
    else:
        status = f"signal: {_signal_name(exited.signal)}"
        end = Event.EndEvent(exit_code=-1, exited=False, status=status)
        failed = True
    if failed:
        end.error = f"{status} (out of memory)" if reason is ExitReason.OOM else status
    return end


def _signal_name(number: int) -> str:
    name = None
    with contextlib.suppress(ValueError):
        name = signals.strsignal(number)
    return (name or str(number)).lower()

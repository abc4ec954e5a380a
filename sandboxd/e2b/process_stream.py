"""The events of a command, to one client."""

from __future__ import annotations

import asyncio
import contextlib
import signal as signals

from sandboxd.e2b.connect import Code, ConnectError
from sandboxd.e2b.proto import process_pb2 as wire
from sandboxd.e2b.rpc import AnswerStream, Call
from sandboxd.exec_outcome import exit_reason
from sandboxd.exec_session import RunningExec
from sandboxd.pipes import OutputPipe
from sandboxd.protocol import ExitReason

Event = wire.ProcessEvent


async def stream_command(running: RunningExec, call: Call, stream: AnswerStream) -> None:
    """Until the command's end is told, or the client is gone: the command goes on then."""
    running.consumer = asyncio.current_task()
    stream.client.on_gone = running.wake
    try:
        await _send(stream, Event(start=Event.StartEvent(pid=running.pid)))
        while not running.over:
            if stream.client.gone:
                return
            if not await _forward_some(running, stream):
                await _wait(running, call, stream)
        for pipe, name in _outputs(running):
            await _forward_rest(pipe, name, stream)
        await _send(stream, Event(end=end_event(running, call)))
    finally:
        running.detach()


async def _forward_some(running: RunningExec, stream: AnswerStream) -> bool:
    """True when there was any output."""
    any_data = False
    for pipe, name in _outputs(running):
        if data := pipe.read():
            any_data = True
            await _send(stream, _output(name, data))
    return any_data


async def _forward_rest(pipe: OutputPipe, name: str, stream: AnswerStream) -> None:
    # What is in the pipe when the leader has exited is its output; what its children write from
    # now on is not waited for.
    left = pipe.waiting_bytes()
    while left > 0 and (data := pipe.read_waiting(left)):
        left -= len(data)
        await _send(stream, _output(name, data))
    pipe.read_end_of_file()


async def _wait(running: RunningExec, call: Call, stream: AnswerStream) -> None:
    try:
        async with asyncio.timeout(call.keepalive_s):
            await running.wait()
    except TimeoutError:
        await _send(stream, Event(keepalive=Event.KeepAlive()))


def _outputs(running: RunningExec) -> list[tuple[OutputPipe, str]]:
    pipes = ((running.stdout, "stdout"), (running.stderr, "stderr"))
    return [(pipe, name) for pipe, name in pipes if pipe is not None]


def _output(name: str, data: bytes) -> wire.ProcessEvent:
    chunk = Event.DataEvent(stdout=data) if name == "stdout" else Event.DataEvent(stderr=data)
    return Event(data=chunk)


async def _send(stream: AnswerStream, event: wire.ProcessEvent) -> None:
    await stream.send(wire.StartResponse(event=event))


def end_event(running: RunningExec, call: Call) -> wire.ProcessEvent.EndEvent:
    """How the command ended; `ConnectError` when nobody knows, or when its time was up."""
    exited = running.exited
    if exited is None:
        raise ConnectError(
            Code.UNAVAILABLE,
            f"the connection to sandbox {call.sandbox.sandbox_id} ended before its command",
        )
    reason = exit_reason(exited, oom_kills=running.oom_kills_during())
    if reason is ExitReason.TIMEOUT:
        raise ConnectError(Code.DEADLINE_EXCEEDED, "the command was killed: its time was up")
    if reason is ExitReason.OOM:
        call.service.counters.oom_kills += 1
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

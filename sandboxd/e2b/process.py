"""E2B's process service: the commands of a sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from sandboxd.bounds import checked_timeout_ms
from sandboxd.e2b.connect import Code, ConnectError
from sandboxd.e2b.process_stream import stream_command
from sandboxd.e2b.proto import process_pb2 as wire
from sandboxd.e2b.rpc import AnswerStream, Call, ClientStream, Procedure, ServerStream, Unary
from sandboxd.errors import InvalidRequest, error_from_errno
from sandboxd.exec_session import DEFAULT_ENVIRONMENT, RunningExec, start_exec
from sandboxd.init_link import LinkClosed
from sandboxd.init_protocol import ExecRequest
from sandboxd.sandbox import LiveSandbox

if TYPE_CHECKING:
    from google.protobuf.message import Message

MAX_ARGUMENTS = 8192
MAX_TAG_LENGTH = 256


class ProcessService:
    """What a client told of the commands that it started is kept as long as they run."""

    def __init__(self) -> None:
        self._told: WeakKeyDictionary[RunningExec, wire.ProcessInfo] = WeakKeyDictionary()

    def procedures(self) -> Mapping[str, Procedure]:
        """By the path of their URL."""
        return {
            "/process.Process/List": Unary(wire.ListRequest, self._list),
            "/process.Process/Start": ServerStream(wire.StartRequest, self._start),
            "/process.Process/SendInput": Unary(wire.SendInputRequest, self._send_input),
            "/process.Process/StreamInput": ClientStream(
                wire.StreamInputRequest, self._stream_input
            ),
            "/process.Process/SendSignal": Unary(wire.SendSignalRequest, self._send_signal),
            "/process.Process/CloseStdin": Unary(wire.CloseStdinRequest, self._close_stdin),
        }

    async def _list(self, call: Call, _request: wire.ListRequest) -> Message:
        return wire.ListResponse(
            processes=[
                self._told.get(each, wire.ProcessInfo(pid=each.pid))
                for each in _alive(call.sandbox)
            ]
        )

    async def _start(self, call: Call, request: wire.StartRequest, stream: AnswerStream) -> None:
        if request.HasField("pty"):
            raise ConnectError(Code.UNIMPLEMENTED, "terminals are not supported")
        if len(request.tag) > MAX_TAG_LENGTH:
            raise ConnectError(Code.INVALID_ARGUMENT, f"a tag has at most {MAX_TAG_LENGTH} letters")
        running = await self._start_command(call, request)
        info = wire.ProcessInfo(config=request.process, pid=running.pid)
        if request.HasField("tag"):
            info.tag = request.tag
        self._told[running] = info
        await stream_command(running, call, stream)

    async def _start_command(self, call: Call, request: wire.StartRequest) -> RunningExec:
        record = call.sandbox.record
        assert record is not None
        config = request.process
        if not config.cmd or len(config.args) >= MAX_ARGUMENTS:
            raise ConnectError(
                Code.INVALID_ARGUMENT, f"a command has a name and at most {MAX_ARGUMENTS} arguments"
            )
        timeout_ms = checked_timeout_ms(call.service.config, call.timeout_s)
        cwd = config.cwd or record.cwd
        env = {**DEFAULT_ENVIRONMENT, **record.env, **config.envs}
        try:
            running = await start_exec(
                call.sandbox,
                lambda exec_id: ExecRequest(
                    exec_id,
                    (config.cmd, *config.args),
                    user=call.user,
                    cwd=cwd,
                    env=env,
                    timeout_ms=timeout_ms,
                ),
                operation="start process",
                stream_stdin=request.stdin if request.HasField("stdin") else True,
            )
        except Exception:
            call.service.counters.execs_failed += 1
            raise
        call.service.counters.execs_started += 1
        return running

    async def _send_input(self, call: Call, request: wire.SendInputRequest) -> Message:
        await _write(self._find(call.sandbox, request.process), request.input)
        return wire.SendInputResponse()

    async def _stream_input(
        self, call: Call, requests: AsyncIterator[wire.StreamInputRequest]
    ) -> Message:
        running: RunningExec | None = None
        async for request in requests:
            kind = request.WhichOneof("event")
            if kind == "start" and running is None:
                running = self._find(call.sandbox, request.start.process)
            elif kind == "data" and running is not None:
                await _write(running, request.data.input)
            elif kind != "keepalive":
                raise ConnectError(Code.INVALID_ARGUMENT, "one start comes first, then data")
        return wire.StreamInputResponse()

    async def _send_signal(self, call: Call, request: wire.SendSignalRequest) -> Message:
        if request.signal not in (wire.SIGNAL_SIGTERM, wire.SIGNAL_SIGKILL):
            raise ConnectError(Code.UNIMPLEMENTED, "only SIGTERM and SIGKILL can be sent")
        running = self._find(call.sandbox, request.process)
        _, link = call.sandbox.require_running("send signal")
        # What a killed command has started goes with it, as with E2B its process group does.
        whole_tree = request.signal == wire.SIGNAL_SIGKILL
        try:
            number = await link.kill(running.exec_id, int(request.signal), whole_tree=whole_tree)
        except LinkClosed:
            raise call.sandbox.gone_error("send signal") from None
        if number:
            raise error_from_errno(
                number, "it was not sent", operation="send signal", object=f"pid {running.pid}"
            )
        return wire.SendSignalResponse()

    async def _close_stdin(self, call: Call, request: wire.CloseStdinRequest) -> Message:
        running = self._find(call.sandbox, request.process)
        _require_input(running)
        running.close_stdin()
        return wire.CloseStdinResponse()

    def _find(self, sandbox: LiveSandbox, selector: wire.ProcessSelector) -> RunningExec:
        kind = selector.WhichOneof("selector")
        for running in _alive(sandbox):
            told = self._told.get(running)
            if kind == "pid" and running.pid == selector.pid:
                return running
            if kind == "tag" and told is not None and told.tag == selector.tag:
                return running
        if kind is None:
            raise InvalidRequest("no process is named", operation="find process")
        named = selector.pid if kind == "pid" else repr(selector.tag[:MAX_TAG_LENGTH])
        raise ConnectError(Code.NOT_FOUND, f"process with {kind} {named} not found")


def _alive(sandbox: LiveSandbox) -> list[RunningExec]:
    return [
        each for each in sandbox.execs.values() if each.is_program and each.pid and not each.over
    ]


def _require_input(running: RunningExec) -> Any:
    if running.stdin is None or running.stdin.closed:
        raise ConnectError(
            Code.FAILED_PRECONDITION, "the process was not started with an input, or it is closed"
        )
    return running.stdin


async def _write(running: RunningExec, given: wire.ProcessInput) -> None:
    pipe = _require_input(running)
    if given.WhichOneof("input") != "stdin":
        raise ConnectError(Code.FAILED_PRECONDITION, "the process has no terminal")
    try:
        await pipe.write(given.stdin)
    except BrokenPipeError:
        raise ConnectError(
            Code.FAILED_PRECONDITION, "the process no longer reads its input"
        ) from None
    # Whatever the pipe took, others are served too.
    await asyncio.sleep(0)

"""E2B's process service: the commands of a sandbox. Each is kept: it goes on without its client,
and any client may connect to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from sandboxd import commands
from sandboxd.commands import CommandSpec, known_commands, start_command
from sandboxd.e2b.connect import Code, ConnectError
from sandboxd.e2b.process_stream import stream_command
from sandboxd.e2b.proto import process_pb2 as wire
from sandboxd.e2b.rpc import AnswerStream, Call, ClientStream, Procedure, ServerStream, Unary
from sandboxd.errors import InvalidRequest, VenusError
from sandboxd.output_reader import StreamName, open_reader
from sandboxd.pipes import OutputPipe
from sandboxd.protocol import StdinMode
from sandboxd.running_exec import RunningExec
from sandboxd.sandbox import LiveSandbox
from sandboxd.terminal import MAX_COLUMNS, MAX_ROWS, TerminalSize

if TYPE_CHECKING:
    from google.protobuf.message import Message

MAX_ARGUMENTS = 8192
MAX_TAG_LENGTH = 256
# Of a command, for lists.
_MAX_SHOWN_ENVIRONMENT_BYTES = 4096


class ProcessService:
    """What a client told of the commands that it started is kept as long as they are known."""

    def __init__(self) -> None:
        self._told: WeakKeyDictionary[RunningExec, wire.ProcessInfo] = WeakKeyDictionary()

    def procedures(self) -> Mapping[str, Procedure]:
        """By the path of their URL."""
        service = "/process.Process"
        return {
            f"{service}/List": Unary(wire.ListRequest, self._list),
            f"{service}/Start": ServerStream(wire.StartRequest, self._start),
            f"{service}/Connect": ServerStream(wire.ConnectRequest, self._connect),
            f"{service}/Update": Unary(wire.UpdateRequest, self._update),
            f"{service}/SendInput": Unary(wire.SendInputRequest, self._send_input),
            f"{service}/StreamInput": ClientStream(wire.StreamInputRequest, self._stream_input),
            f"{service}/SendSignal": Unary(wire.SendSignalRequest, self._send_signal),
            f"{service}/CloseStdin": Unary(wire.CloseStdinRequest, self._close_stdin),
        }

    async def _list(self, call: Call, _request: wire.ListRequest) -> Message:
        return wire.ListResponse(processes=[self._info(each) for each in _alive(call.sandbox)])

    async def _start(self, call: Call, request: wire.StartRequest, stream: AnswerStream) -> None:
        if len(request.tag) > MAX_TAG_LENGTH:
            raise ConnectError(Code.INVALID_ARGUMENT, f"a tag has at most {MAX_TAG_LENGTH} letters")
        spec = _spec(call, request)
        running = await start_command(call.service, call.sandbox, spec, keep=True)
        self._told[running] = _told(running, request)
        try:
            # The command waits for this client when it does not read.
            reader = open_reader(running, "start process", holds=True)
        except VenusError:
            running.kill_soon()
            raise
        with reader:
            await stream_command(reader, call, stream, wire.StartResponse)

    async def _connect(
        self, call: Call, request: wire.ConnectRequest, stream: AnswerStream
    ) -> None:
        """What it writes from now on."""
        running = self._find(call.sandbox, request.process)
        with open_reader(running, "connect to process", _positions_now(running)) as reader:
            await stream_command(
                reader, call, stream, wire.ConnectResponse, timeout_s=call.timeout_s
            )

    async def _update(self, call: Call, request: wire.UpdateRequest) -> Message:
        running = self._find(call.sandbox, request.process)
        if request.HasField("pty"):
            await commands.resize(running, _size(request.pty))
        return wire.UpdateResponse()

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
        # What a killed command has started goes with it.
        whole_tree = request.signal == wire.SIGNAL_SIGKILL
        await commands.send_signal(running, int(request.signal), whole_tree=whole_tree)
        return wire.SendSignalResponse()

    async def _close_stdin(self, call: Call, request: wire.CloseStdinRequest) -> Message:
        running = self._find(call.sandbox, request.process)
        if running.is_terminal or running.stdin is None or running.stdin.closed:
            raise ConnectError(
                Code.FAILED_PRECONDITION, "the process has no input that can be closed"
            )
        running.close_stdin()
        return wire.CloseStdinResponse()

    def _info(self, running: RunningExec) -> wire.ProcessInfo:
        told = self._told.get(running)
        if told is not None:
            return told
        name, *arguments = running.argv or ("",)
        config = wire.ProcessConfig(cmd=name, args=arguments)
        return wire.ProcessInfo(config=config, pid=running.pid)

    def _find(self, sandbox: LiveSandbox, selector: wire.ProcessSelector) -> RunningExec:
        kind = selector.WhichOneof("selector")
        if kind is None:
            raise InvalidRequest("no process is named", operation="find process")
        for running in _alive(sandbox):
            told = self._told.get(running)
            if kind == "pid" and running.pid == selector.pid:
                return running
            if kind == "tag" and told is not None and told.tag == selector.tag:
                return running
        named = selector.pid if kind == "pid" else repr(selector.tag[:MAX_TAG_LENGTH])
        raise ConnectError(Code.NOT_FOUND, f"process with {kind} {named} not found")


def _spec(call: Call, request: wire.StartRequest) -> CommandSpec:
    config = request.process
    if not config.cmd or len(config.args) >= MAX_ARGUMENTS:
        raise ConnectError(
            Code.INVALID_ARGUMENT, f"a command has a name and at most {MAX_ARGUMENTS} arguments"
        )
    with_input = request.stdin if request.HasField("stdin") else True
    return CommandSpec(
        argv=(config.cmd, *config.args),
        env=dict(config.envs),
        cwd=config.cwd or None,
        user=call.user,
        timeout_s=call.timeout_s,
        stdin=StdinMode.STREAM if with_input else StdinMode.NULL,
        terminal=_size(request.pty) if request.HasField("pty") else None,
    )


def _size(pty: wire.PTY) -> TerminalSize:
    size = pty.size
    if not (0 < size.rows <= MAX_ROWS and 0 < size.cols <= MAX_COLUMNS):
        raise ConnectError(
            Code.INVALID_ARGUMENT,
            f"a terminal has 1 to {MAX_ROWS} rows and 1 to {MAX_COLUMNS} columns",
        )
    return TerminalSize(size.rows, size.cols)


def _told(running: RunningExec, request: wire.StartRequest) -> wire.ProcessInfo:
    """For lists; what is long is cut, for there may be many."""
    name, *arguments = running.argv
    given = request.process
    config = wire.ProcessConfig(cmd=name, args=arguments)
    if given.HasField("cwd"):
        config.cwd = given.cwd
    if sum(len(key) + len(value) for key, value in given.envs.items()) < (
        _MAX_SHOWN_ENVIRONMENT_BYTES
    ):
        config.envs.update(given.envs)
    info = wire.ProcessInfo(config=config, pid=running.pid)
    if request.HasField("tag"):
        info.tag = request.tag
    return info


def _positions_now(running: RunningExec) -> dict[StreamName, int]:
    pipes: dict[StreamName, OutputPipe | None]
    pipes = {"stdout": running.stdout, "stderr": running.stderr}
    return {
        name: pipe.ring.end
        for name, pipe in pipes.items()
        if pipe is not None and pipe.ring is not None
    }


def _alive(sandbox: LiveSandbox) -> list[RunningExec]:
    return [each for each in known_commands(sandbox) if each.pid and not each.over]


async def _write(running: RunningExec, given: wire.ProcessInput) -> None:
    kind = "pty" if running.is_terminal else "stdin"
    if given.WhichOneof("input") != kind:
        raise ConnectError(Code.FAILED_PRECONDITION, f"the input of the process is its {kind}")
    await commands.write_stdin(running, given.pty if running.is_terminal else given.stdin)

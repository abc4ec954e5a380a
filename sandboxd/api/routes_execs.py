"""Routes of commands in a sandbox.

Starting one is answered by a shortcut, before the framework sees the request. The routes here for
it, `exec_command` and `run`, are what the OpenAPI document shows.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from sandboxd.api import models_commands
from sandboxd.api.attach_stream import AttachResponse
from sandboxd.api.context import Context, CurrentPeer, error_answers
from sandboxd.api.departure import while_there
from sandboxd.api.exec_request import parse_header
from sandboxd.api.presentation import command_info, created
from sandboxd.bounds import checked_output_bytes
from sandboxd.commands import (
    command_epoch,
    find_command,
    find_running,
    known_commands,
    require_input,
    resize,
    send_signal,
    start_command,
    wait_end,
    write_stdin,
)
from sandboxd.errors import Conflict, TooLarge
from sandboxd.output_reader import StreamName, open_reader, require_kept
from sandboxd.protocol import (
    CONTENT_TYPE_BYTES,
    CONTENT_TYPE_FRAMES,
    DEFAULT_WAIT_S,
    MAX_WAIT_S,
    StdinMode,
)
from sandboxd.terminal import TerminalSize

router = APIRouter(prefix="/v1/sandboxes/{sandbox_id}", tags=["commands"])
run_router = APIRouter(prefix="/v1", tags=["commands"])

Position = Annotated[int, Query(ge=0, description="of the first byte that is wanted")]
_FRAMES: dict[str, Any] = {CONTENT_TYPE_FRAMES: {"schema": {"type": "string", "format": "binary"}}}


@router.post(
    "/exec",
    operation_id="exec",
    response_class=Response,
    responses={
        200: {
            "description": "STARTED, then STDOUT and STDERR frames, then one EXIT or ERROR",
            "content": _FRAMES,
        },
        **error_answers(400, 404, 409, 410, 413, 422, 429),
    },
    openapi_extra={
        "requestBody": {
            "description": "one HEADER frame, then STDIN frames when its stdin is inline",
            "required": True,
            "content": _FRAMES,
        }
    },
)
async def exec_command(sandbox_id: str) -> Response:
    """Run a command; its output comes as frames, as it is written."""
    raise AssertionError(f"exec in {sandbox_id} passed by its shortcut")


@run_router.post(
    "/run",
    operation_id="run",
    response_class=Response,
    responses={
        200: {
            "description": "as of exec; STARTED has a field `sandbox`, as create answers it",
            "content": _FRAMES,
        },
        **error_answers(400, 404, 409, 410, 413, 422, 429, 501, 504, 507),
    },
    openapi_extra={
        "requestBody": {
            "description": "as of exec; HEADER may have the fields `sandbox`, which is the body of "
            "create, and `remove`: the sandbox goes with the command",
            "required": True,
            "content": _FRAMES,
        }
    },
)
async def run_command() -> Response:
    """Make a sandbox and run a command in it: create and exec in one request. A sandbox in which
    the command does not start is removed."""
    raise AssertionError("run passed by its shortcut")


@router.post(
    "/execs",
    status_code=201,
    operation_id="start_command",
    response_model=models_commands.CommandInfo,
    responses=error_answers(400, 404, 409, 410, 413, 422, 429),
)
async def start_background(
    sandbox_id: str,
    body: models_commands.StartCommandRequest,
    context: Context,
    peer: CurrentPeer,
) -> Response:
    """Start a command that needs no client: its output is kept, to be read and attached to."""
    sandbox = context.service.population.find(peer.uid, sandbox_id, "exec")
    spec = parse_header(body.model_dump(exclude_none=True, exclude={"stdin"}), b"")
    if body.stdin and spec.terminal is None:
        spec = dataclasses.replace(spec, stdin=StdinMode.STREAM)
    sandbox.require_running("exec")
    return created(command_info(await start_command(context.service, sandbox, spec, keep=True)))


@router.get("/execs", operation_id="list_execs", responses=error_answers(404, 410))
async def list_execs(
    sandbox_id: str, context: Context, peer: CurrentPeer
) -> models_commands.CommandList:
    """Commands that run, and background ones, also those that came with a fork, that ended
    lately."""
    sandbox = context.service.population.find(peer.uid, sandbox_id, "list commands")
    return models_commands.CommandList(
        commands=[command_info(each) for each in known_commands(sandbox)]
    )


@router.get("/execs/{exec_id}", operation_id="get_exec", responses=error_answers(404, 410))
async def get_exec(
    sandbox_id: str, exec_id: int, context: Context, peer: CurrentPeer
) -> models_commands.CommandInfo:
    """One command that runs, or a background one that ended lately."""
    sandbox = context.service.population.find(peer.uid, sandbox_id, "get command")
    return command_info(find_command(sandbox, exec_id, "get command"))


@router.get(
    "/execs/{exec_id}/attach",
    operation_id="attach",
    response_class=Response,
    responses={
        200: {
            "description": "STARTED, then STDOUT, STDERR and LOST frames, then one EXIT",
            "content": _FRAMES,
        },
        **error_answers(400, 404, 409, 410, 429),
    },
)
async def attach(
    sandbox_id: str,
    exec_id: int,
    context: Context,
    peer: CurrentPeer,
    epoch: Annotated[
        int | None, Query(ge=0, description="of the positions; those of another one do not count")
    ] = None,
    stdout_position: Position = 0,
    stderr_position: Position = 0,
    max_output_bytes: Annotated[int | None, Query(ge=0)] = None,
) -> Response:
    """The output of a background command: what is kept of it, what it writes, and its end.

    Any number of clients may be attached, each at its own pace; one that is too slow is told how
    much it has lost.
    """
    sandbox = context.service.population.find(peer.uid, sandbox_id, "attach")
    running = find_command(sandbox, exec_id, "attach")
    room = checked_output_bytes(context.service.config, max_output_bytes)
    positions: dict[StreamName, int] = {}
    if epoch is None or epoch == command_epoch(running):
        positions = {"stdout": stdout_position, "stderr": stderr_position}
    return AttachResponse(open_reader(running, "attach", positions), room)


@router.get(
    "/execs/{exec_id}/wait",
    operation_id="wait_command",
    responses=error_answers(400, 404, 409, 410, 429, 504),
)
async def wait_command(
    request: Request,
    sandbox_id: str,
    exec_id: int,
    context: Context,
    peer: CurrentPeer,
    timeout_s: Annotated[float, Query(gt=0, le=MAX_WAIT_S)] = DEFAULT_WAIT_S,
) -> models_commands.CommandEnd:
    """How a background command ended; waits for that, and answers `timeout` at the deadline."""
    sandbox = context.service.population.find(peer.uid, sandbox_id, "wait")
    running = find_command(sandbox, exec_id, "wait")
    await while_there(request, wait_end(running, timeout_s))
    return models_commands.CommandEnd(**running.outcome())


@router.post(
    "/execs/{exec_id}/stdin",
    status_code=204,
    operation_id="send_stdin",
    responses=error_answers(404, 409, 410, 413, 429),
    openapi_extra={
        "requestBody": {
            "content": {CONTENT_TYPE_BYTES: {"schema": {"type": "string", "format": "binary"}}}
        }
    },
)
async def send_stdin(
    request: Request,
    sandbox_id: str,
    exec_id: int,
    context: Context,
    peer: CurrentPeer,
    eof: bool = False,
) -> None:
    """Write the body to the command's input, at its pace; `eof` closes the input afterwards."""
    sandbox = context.service.population.find(peer.uid, sandbox_id, "send input")
    running = find_running(sandbox, exec_id, "send input")
    if eof and running.is_terminal:
        raise Conflict(
            "the input of a terminal has no end",
            operation="send input",
            object=f"exec {exec_id}",
            cause="the end of a file is typed, as ^D",
        )
    require_input(running)
    sent = 0
    async for chunk in request.stream():
        sent += len(chunk)
        if sent > context.service.config.max_upload_bytes:
            raise TooLarge(
                "the input is too large",
                operation="send input",
                object=f"exec {exec_id}",
                cause=f"more than {context.service.config.max_upload_bytes} bytes in one request "
                "(max_upload_bytes)",
            )
        if chunk:
            await while_there(request, write_stdin(running, chunk))
    if eof:
        running.close_stdin()


@router.post(
    "/execs/{exec_id}/signal",
    status_code=204,
    operation_id="send_signal",
    responses=error_answers(400, 404, 410),
)
async def signal_command(
    sandbox_id: str,
    exec_id: int,
    body: models_commands.SignalRequest,
    context: Context,
    peer: CurrentPeer,
) -> None:
    """Signal the command's leader, or everything that it started."""
    sandbox = context.service.population.find(peer.uid, sandbox_id, "send signal")
    sandbox.require_running("send signal")
    running = find_running(sandbox, exec_id, "send signal")
    await send_signal(running, body.signal, whole_tree=body.whole_tree)


@router.post(
    "/execs/{exec_id}/resize",
    status_code=204,
    operation_id="resize_terminal",
    responses=error_answers(400, 404, 409, 410),
)
async def resize_terminal(
    sandbox_id: str,
    exec_id: int,
    body: models_commands.TerminalSizeRequest,
    context: Context,
    peer: CurrentPeer,
) -> None:
    """Another size for the command's terminal, of which its programs are told (SIGWINCH)."""
    sandbox = context.service.population.find(peer.uid, sandbox_id, "resize")
    running = find_running(sandbox, exec_id, "resize")
    await resize(running, TerminalSize(body.rows, body.cols))


@router.get(
    "/execs/{exec_id}/output",
    operation_id="read_output",
    response_class=Response,
    responses={
        200: {"content": {CONTENT_TYPE_BYTES: {"schema": {"type": "string", "format": "binary"}}}},
        **error_answers(400, 404, 409, 410),
    },
)
async def read_output(
    sandbox_id: str,
    exec_id: int,
    context: Context,
    peer: CurrentPeer,
    stream: StreamName = "stdout",
) -> Response:
    """What is kept of what a background command has written to one stream."""
    sandbox = context.service.population.find(peer.uid, sandbox_id, "read output")
    running = find_command(sandbox, exec_id, "read output")
    require_kept(running, "read output")
    pipe = running.stdout if stream == "stdout" else running.stderr
    content = pipe.ring.content() if pipe is not None and pipe.ring is not None else b""
    return Response(content, media_type=CONTENT_TYPE_BYTES)

"""Routes of commands in a sandbox.

Starting one is answered by `ExecShortcut`, before the framework sees the request. The routes here
for it, `exec_command` and `run`, are what the OpenAPI document shows.
"""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter, Request, Response

from sandboxd.api import models
from sandboxd.api.context import Context, CurrentPeer, error_answers
from sandboxd.api.presentation import command_info
from sandboxd.errors import Conflict, NotFound, error_from_errno
from sandboxd.exec_session import RunningExec
from sandboxd.init_link import LinkClosed
from sandboxd.protocol import CONTENT_TYPE_BYTES, CONTENT_TYPE_FRAMES
from sandboxd.sandbox import LiveSandbox

router = APIRouter(prefix="/v1/sandboxes/{sandbox_id}", tags=["commands"])
run_router = APIRouter(prefix="/v1", tags=["commands"])

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
    raise AssertionError(f"exec in {sandbox_id} passed by ExecShortcut")


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
    raise AssertionError("run passed by ExecShortcut")


def _find_exec(sandbox: LiveSandbox, exec_id: int, operation: str) -> RunningExec:
    running = sandbox.execs.get(exec_id)
    if running is None or not running.is_program or running.over:
        raise NotFound("there is no such command", operation=operation, object=f"exec {exec_id}")
    return running


@router.post(
    "/execs/{exec_id}/stdin",
    status_code=204,
    operation_id="send_stdin",
    responses=error_answers(404, 409, 410),
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
    running = _find_exec(sandbox, exec_id, "send input")
    if running.stdin is None or running.stdin.closed:
        raise Conflict(
            "the command takes no input",
            operation="send input",
            object=f"exec {exec_id}",
            cause="it was not started with stdin stream, or its input is closed",
        )
    try:
        async for chunk in request.stream():
            await running.stdin.write(chunk)
    except BrokenPipeError:
        raise Conflict(
            "the command no longer reads its input",
            operation="send input",
            object=f"exec {exec_id}",
        ) from None
    if eof:
        running.close_stdin()


@router.post(
    "/execs/{exec_id}/signal",
    status_code=204,
    operation_id="send_signal",
    responses=error_answers(400, 404, 410),
)
async def send_signal(
    sandbox_id: str, exec_id: int, body: models.SignalRequest, context: Context, peer: CurrentPeer
) -> None:
    """Signal the command's leader, or everything that it started."""
    sandbox = context.service.population.find(peer.uid, sandbox_id, "send signal")
    _, link = sandbox.require_running("send signal")
    running = _find_exec(sandbox, exec_id, "send signal")
    try:
        number = await link.kill(running.exec_id, body.signal, whole_tree=body.whole_tree)
    except LinkClosed:
        raise sandbox.gone_error("send signal") from None
    if number:
        raise error_from_errno(
            number,
            f"signal {body.signal} was not sent",
            operation="send signal",
            object=f"exec {exec_id}",
        )


@router.get("/execs", operation_id="list_execs", responses=error_answers(404, 410))
async def list_execs(sandbox_id: str, context: Context, peer: CurrentPeer) -> models.CommandList:
    """Commands that run, and the last ones that came with a fork and have ended."""
    sandbox = context.service.population.find(peer.uid, sandbox_id, "list commands")
    known = [*sandbox.ended_execs, *sandbox.execs.values()]
    return models.CommandList(commands=[command_info(each) for each in known if each.is_program])


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
    stream: Literal["stdout", "stderr"] = "stdout",
) -> Response:
    """The end of what a command that came with a fork has written since."""
    sandbox = context.service.population.find(peer.uid, sandbox_id, "read output")
    known = {each.exec_id: each for each in (*sandbox.ended_execs, *sandbox.execs.values())}
    running = known.get(exec_id)
    if running is None or not running.is_program:
        raise NotFound(
            "there is no such command", operation="read output", object=f"exec {exec_id}"
        )
    pipe = running.stdout if stream == "stdout" else running.stderr
    if not running.keeps_output:
        raise Conflict(
            "its output is not kept",
            operation="read output",
            object=f"exec {exec_id}",
            cause="it goes to the client that started the command",
        )
    content = pipe.ring.content() if pipe is not None and pipe.ring is not None else b""
    return Response(content, media_type=CONTENT_TYPE_BYTES)

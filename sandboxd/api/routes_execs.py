"""Routes of commands in a sandbox.

Starting one is the hottest path of the daemon, so it is answered before the framework sees the
request: `ExecShortcut` stands in front of it. The route below it is what the OpenAPI document
shows.
"""

from __future__ import annotations

import logging
import re
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from sandboxd.api import models
from sandboxd.api.context import ApiContext, Context, CurrentPeer, error_answers
from sandboxd.api.exec_request import read_request
from sandboxd.api.exec_stream import ExecStream
from sandboxd.api.peer import Peer
from sandboxd.api.presentation import command_info
from sandboxd.bounds import checked_output_bytes, checked_timeout_ms
from sandboxd.errors import Conflict, InternalError, NotFound, VenusError, error_from_errno
from sandboxd.exec_session import DEFAULT_ENVIRONMENT, RunningExec, start_exec
from sandboxd.init_link import LinkClosed
from sandboxd.init_protocol import ExecRequest
from sandboxd.protocol import CONTENT_TYPE_BYTES, CONTENT_TYPE_FRAMES, ExitReason, StdinMode
from sandboxd.sandbox import LiveSandbox

router = APIRouter(prefix="/v1/sandboxes/{sandbox_id}", tags=["commands"])

_LOG = logging.getLogger("sandboxd")
_EXEC_PATH = re.compile(r"/v1/sandboxes/([^/]+)/exec")
_FRAMES: dict[str, Any] = {CONTENT_TYPE_FRAMES: {"schema": {"type": "string", "format": "binary"}}}


class ExecShortcut:
    """Answers exec requests itself and hands all others on."""

    def __init__(self, app: ASGIApp, context: ApiContext) -> None:
        self._app = app
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match = None
        if scope["type"] == "http" and scope["method"] == "POST":
            match = _EXEC_PATH.fullmatch(scope["path"])
        if match is None:
            await self._app(scope, receive, send)
            return
        try:
            running, max_output_bytes = await _start(
                self._context, scope["state"]["peer"], match[1], receive
            )
        except Exception as error:
            answer = _known(error, match[1])
            response = JSONResponse(answer.to_json(), status_code=answer.http_status)
            await response(scope, receive, send)
            return
        reason = await ExecStream(running, max_output_bytes, send).run(receive)
        if reason is ExitReason.OOM:
            self._context.service.counters.oom_kills += 1


def _known(error: Exception, sandbox_id: str) -> VenusError:
    if isinstance(error, VenusError):
        return error
    _LOG.error("exec in %s failed", sandbox_id, exc_info=error)
    return InternalError(
        "the daemon failed",
        operation="exec",
        object=sandbox_id,
        cause=f"{type(error).__name__}: {error}"[:500],
    )


async def _start(
    context: ApiContext, peer: Peer, sandbox_id: str, receive: Receive
) -> tuple[RunningExec, int]:
    """The command is running when this returns."""
    service = context.service
    sandbox = service.population.find(peer.uid, sandbox_id, "exec")
    header = await read_request(receive)
    timeout_ms = checked_timeout_ms(service.config, header.timeout_s)
    max_output_bytes = checked_output_bytes(service.config, header.max_output_bytes)
    sandbox.require_running("exec")
    record = sandbox.record
    assert record is not None

    def build(exec_id: int) -> ExecRequest:
        return ExecRequest(
            exec_id,
            header.argv,
            user=record.user if header.user is None else header.user,
            cwd=record.cwd if header.cwd is None else header.cwd,
            env={**DEFAULT_ENVIRONMENT, **record.env, **header.env},
            timeout_ms=timeout_ms,
        )

    try:
        running = await start_exec(
            sandbox,
            build,
            operation="exec",
            stdin_data=header.stdin_data if header.stdin is StdinMode.INLINE else None,
            stream_stdin=header.stdin is StdinMode.STREAM,
        )
    except VenusError:
        service.counters.execs_failed += 1
        raise
    service.counters.execs_started += 1
    return running, max_output_bytes


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

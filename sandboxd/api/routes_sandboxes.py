"""Routes of sandboxes and their commands."""

from __future__ import annotations

import platform
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.types import Receive, Scope, Send

import sandboxd
from sandboxd.api import models
from sandboxd.api.context import Context, CurrentPeer, context_of, error_answers, peer_of_request
from sandboxd.api.exec_request import read_request
from sandboxd.api.exec_stream import ExecStream
from sandboxd.bounds import CreateOptions, checked_timeout_ms
from sandboxd.errors import Conflict, InvalidRequest, NotFound, VenusError, error_from_errno
from sandboxd.exec_session import RunningExec, start_exec
from sandboxd.init_link import LinkClosed
from sandboxd.init_protocol import ExecRequest
from sandboxd.protocol import CONTENT_TYPE_BYTES, CONTENT_TYPE_FRAMES, StdinMode
from sandboxd.sandbox import LiveSandbox

router = APIRouter(prefix="/v1", tags=["sandboxes"])

DEFAULT_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
}


@router.get("/health", operation_id="health")
async def health(_peer: CurrentPeer) -> models.Health:
    """The daemon answers."""
    return models.Health()


@router.get("/info", operation_id="info")
async def info(context: Context, peer: CurrentPeer) -> models.DaemonInfo:
    """The daemon, its counters and its bounds."""
    service = context.service
    config = service.config
    return models.DaemonInfo(
        version=sandboxd.__version__,
        api_version=sandboxd.API_VERSION,
        kernel=platform.release(),
        sandboxes=len(service.visible(peer.uid)),
        counters=models.Counters(**vars(service.counters)),
        limits=models.DaemonLimits(
            max_sandboxes=config.max_sandboxes,
            max_memory_bytes=config.max_memory_bytes,
            max_pids=config.max_pids,
            max_cpu_cores=config.max_cpu_cores,
            max_disk_bytes=config.max_disk_bytes,
            max_execs_per_sandbox=config.max_execs_per_sandbox,
            max_exec_timeout_s=config.max_exec_timeout_s,
        ),
        storage_backend=service.storage_backend,
    )


def sandbox_info(sandbox: LiveSandbox) -> models.SandboxInfo:
    """What a tenant sees of a sandbox."""
    record = sandbox.record
    if record is None:
        raise Conflict(
            "the sandbox is still being created", operation="get sandbox", object=sandbox.sandbox_id
        )
    return models.SandboxInfo(
        id=sandbox.sandbox_id,
        image=record.image,
        state=sandbox.state.value,
        tenant_uid=sandbox.tenant_uid,
        limits=models.SandboxLimits(
            memory_bytes=record.memory_bytes,
            pids=record.pids,
            cpu_cores=record.cpu_cores,
            disk_bytes=record.disk_bytes,
        ),
        env=record.env,
        cwd=record.cwd,
        user=record.user,
        hostname=record.hostname,
        labels=record.labels,
        created_at=record.created_at,
        expires_at=sandbox.expires_at(),
        init_pid=record.init_pid,
    )


@router.post(
    "/sandboxes",
    status_code=201,
    operation_id="create_sandbox",
    responses=error_answers(400, 404, 409, 429, 501, 504, 507),
)
async def create_sandbox(
    body: models.CreateSandboxRequest, request: Request, context: Context, peer: CurrentPeer
) -> models.SandboxInfo:
    """Create a sandbox; it runs when this answers."""
    options = CreateOptions(
        image=body.image,
        memory_bytes=body.limits.memory_bytes,
        pids=body.limits.pids,
        cpu_cores=body.limits.cpu_cores,
        disk_bytes=body.limits.disk_bytes,
        env=body.env,
        cwd=body.cwd,
        user=body.user,
        hostname=body.hostname,
        ttl_s=body.ttl_s,
        labels=body.labels,
    )
    sandbox = await context.service.create(peer.uid, options)
    if await request.is_disconnected():
        # Nobody will ever learn its id.
        await context.service.destroy(sandbox)
    return sandbox_info(sandbox)


@router.get("/sandboxes", operation_id="list_sandboxes", responses=error_answers())
async def list_sandboxes(context: Context, peer: CurrentPeer) -> models.SandboxList:
    """The peer's sandboxes; root sees all."""
    visible = context.service.visible(peer.uid)
    return models.SandboxList(
        sandboxes=[sandbox_info(each) for each in visible if each.record is not None]
    )


@router.get(
    "/sandboxes/{sandbox_id}", operation_id="get_sandbox", responses=error_answers(404, 410)
)
async def get_sandbox(sandbox_id: str, context: Context, peer: CurrentPeer) -> models.SandboxInfo:
    """One sandbox."""
    return sandbox_info(context.service.find(peer.uid, sandbox_id, "get sandbox"))


@router.delete(
    "/sandboxes/{sandbox_id}",
    status_code=204,
    operation_id="destroy_sandbox",
    responses=error_answers(404, 409, 410),
)
async def destroy_sandbox(sandbox_id: str, context: Context, peer: CurrentPeer) -> None:
    """End it; when this answers, nothing of it is left."""
    sandbox = context.service.find(peer.uid, sandbox_id, "destroy sandbox")
    await context.service.destroy(sandbox)


@router.post(
    "/sandboxes/{sandbox_id}/ttl", operation_id="set_ttl", responses=error_answers(400, 404, 410)
)
async def set_ttl(
    sandbox_id: str, body: models.TtlRequest, context: Context, peer: CurrentPeer
) -> models.SandboxInfo:
    """A new time to live, counted from now."""
    sandbox = context.service.find(peer.uid, sandbox_id, "set time to live")
    context.service.set_ttl(sandbox, body.ttl_s)
    return sandbox_info(sandbox)


@router.get(
    "/sandboxes/{sandbox_id}/metrics", operation_id="get_metrics", responses=error_answers(404, 410)
)
async def get_metrics(
    sandbox_id: str, context: Context, peer: CurrentPeer
) -> models.SandboxMetrics:
    """What it uses now."""
    sandbox = context.service.find(peer.uid, sandbox_id, "get metrics")
    usage = await context.service.usage(sandbox, "get metrics")
    return models.SandboxMetrics(
        memory_bytes=usage.memory_bytes,
        memory_peak_bytes=usage.memory_peak_bytes,
        cpu_s=usage.cpu_s,
        pids=usage.pids,
        disk_bytes=usage.disk_bytes,
        oom_kills=usage.oom_kills,
        execs_running=sum(each.is_program and each.pid > 0 for each in sandbox.execs.values()),
    )


class _ExecResponse(Response):
    """Streams a command that has been started."""

    def __init__(self, running: RunningExec, max_output_bytes: int) -> None:
        super().__init__()
        self._running = running
        self._max_output_bytes = max_output_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await ExecStream(self._running, self._max_output_bytes, send).run(receive)


_FRAMES: dict[str, Any] = {CONTENT_TYPE_FRAMES: {"schema": {"type": "string", "format": "binary"}}}


@router.post(
    "/sandboxes/{sandbox_id}/exec",
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
async def exec_command(request: Request, sandbox_id: str) -> Response:
    """Run a command; its output comes as frames, as it is written."""
    return await exec_response(request, sandbox_id)


async def exec_response(request: Request, sandbox_id: str) -> Response:
    """The command is running when this returns; the response streams it."""
    peer = peer_of_request(request)
    service = context_of(request).service
    sandbox = service.find(peer.uid, sandbox_id, "exec")
    header = await read_request(request.receive)
    timeout_ms = checked_timeout_ms(service.config, header.timeout_s)
    limit = service.config.max_exec_output_bytes
    max_output_bytes = limit if header.max_output_bytes is None else header.max_output_bytes
    if max_output_bytes > limit:
        raise InvalidRequest(
            f"{max_output_bytes} is out of bounds",
            operation="exec",
            object="field max_output_bytes",
            cause=f"it must be at most {limit}",
        )
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
            max_execs=service.config.max_execs_per_sandbox,
            stdin_data=header.stdin_data if header.stdin is StdinMode.INLINE else None,
            stream_stdin=header.stdin is StdinMode.STREAM,
        )
    except VenusError:
        service.counters.execs_failed += 1
        raise
    service.counters.execs_started += 1
    return _ExecResponse(running, max_output_bytes)


def _find_exec(sandbox: LiveSandbox, exec_id: int, operation: str) -> RunningExec:
    running = sandbox.execs.get(exec_id)
    if running is None or not running.is_program or running.over:
        raise NotFound("there is no such command", operation=operation, object=f"exec {exec_id}")
    return running


@router.post(
    "/sandboxes/{sandbox_id}/execs/{exec_id}/stdin",
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
    sandbox = context.service.find(peer.uid, sandbox_id, "send input")
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
    "/sandboxes/{sandbox_id}/execs/{exec_id}/signal",
    status_code=204,
    operation_id="send_signal",
    responses=error_answers(400, 404, 410),
)
async def send_signal(
    sandbox_id: str, exec_id: int, body: models.SignalRequest, context: Context, peer: CurrentPeer
) -> None:
    """Signal the command's leader, or everything that it started."""
    sandbox = context.service.find(peer.uid, sandbox_id, "send signal")
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

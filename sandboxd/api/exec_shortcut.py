"""Requests that start a command, answered before the framework sees them.

They are the hottest path of the daemon: exec, a command in a sandbox that exists, and run, a new
sandbox and a command in it. The routes of the same paths (sandboxd.api.routes_execs) are only what
the OpenAPI document shows.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.types import ASGIApp, Receive, Scope, Send

from sandboxd.api import models
from sandboxd.api.attach_stream import KeptStream
from sandboxd.api.context import ApiContext
from sandboxd.api.exec_request import parse_header, parse_run_header, read_request
from sandboxd.api.exec_stream import ExecStream
from sandboxd.api.frame_stream import Client
from sandboxd.api.presentation import sandbox_info
from sandboxd.api.refusal import refusal
from sandboxd.api.routes_sandboxes import new_sandbox
from sandboxd.bounds import checked_output_bytes, checked_timeout_ms
from sandboxd.commands import CommandSpec, start_command
from sandboxd.errors import InternalError, InvalidRequest, OperationTimeout, TooLarge, VenusError
from sandboxd.lifecycle import EndReason
from sandboxd.output_reader import open_reader
from sandboxd.protocol import MAX_CONTROL_BYTES, ExitReason, OnDisconnect
from sandboxd.running_exec import RunningExec
from sandboxd.sandbox import LiveSandbox
from sandboxd.service import SandboxService

_LOG = logging.getLogger("sandboxd")
_EXEC_PATH = re.compile(r"/v1/sandboxes/([^/]+)/exec")
_RUN_PATH = "/v1/run"
# The rest of the frame that tells of a new sandbox.
_STARTED_ROOM_BYTES = 256


@dataclass(frozen=True)
class _Begun:
    """A command that runs, and the sandbox if it was made for it."""

    stream: ExecStream | KeptStream
    made: LiveSandbox | None = None
    remove: bool = False


class ExecShortcut:
    """Answers requests that start a command, and hands all others on."""

    def __init__(self, app: ASGIApp, context: ApiContext) -> None:
        self._app = app
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"] if scope["type"] == "http" and scope["method"] == "POST" else ""
        begin: Awaitable[_Begun]
        if path == _RUN_PATH:
            where = "a new sandbox"
            begin = _begin_in_new(self._context, scope["state"]["peer"].uid, receive, send)
        elif match := _EXEC_PATH.fullmatch(path):
            where = match[1]
            begin = _begin(self._context, scope["state"]["peer"].uid, where, receive, send)
        else:
            await self._app(scope, receive, send)
            return
        try:
            begun = await begin
        except Exception as error:
            answer = _known(error, where)
            self._context.service.instruments.note_error(answer)
            # The rest of what has not come in time is not waited for.
            headers = {"connection": "close"} if isinstance(answer, OperationTimeout) else None
            response = JSONResponse(answer.to_json(), answer.http_status, headers)
            await response(scope, receive, send)
            return
        service = self._context.service
        try:
            reason = await begun.stream.run()
        finally:
            if begun.made is not None and (begun.remove or not begun.stream.told):
                service.destroy_soon(begun.made)
        if reason is ExitReason.OOM:
            service.counters.oom_kills += 1


def _known(error: Exception, where: str) -> VenusError:
    if isinstance(error, VenusError):
        return error
    _LOG.error("exec in %s failed", where, exc_info=error)
    return InternalError(
        "the daemon failed",
        operation="exec",
        object=where,
        cause=f"{type(error).__name__}: {error}"[:500],
    )


async def _begin(
    context: ApiContext, tenant_uid: int, sandbox_id: str, receive: Receive, send: Send
) -> _Begun:
    """The command is running when this returns."""
    service = context.service
    sandbox = service.population.find(tenant_uid, sandbox_id, "exec")
    spec = await read_request(receive, parse_header, service.config.request_timeout_s)
    max_output_bytes = _checked(service, spec)
    sandbox.require_running("exec")
    running = await _start(service, sandbox, spec)
    return _Begun(_stream(running, spec, max_output_bytes, send, Client(receive)))


async def _begin_in_new(
    context: ApiContext, tenant_uid: int, receive: Receive, send: Send
) -> _Begun:
    """The command is running in a new sandbox when this returns, or nothing is left."""
    service = context.service
    timeout_s = service.config.request_timeout_s
    header = await read_request(receive, parse_run_header, timeout_s)
    max_output_bytes = _checked(service, header.command)
    wanted = _checked_sandbox(header.sandbox)
    client = Client(receive)
    try:
        sandbox = await new_sandbox(context, tenant_uid, wanted, ephemeral=header.remove)
        try:
            if client.gone:
                raise InvalidRequest("the request was cut", operation="exec", object="body")
            told = _told(sandbox)
            running = await _start(service, sandbox, header.command)
            stream = _stream(running, header.command, max_output_bytes, send, client, told)
        except BaseException:
            await service.destroy(sandbox, EndReason.CREATE_FAILED)
            raise
    except BaseException:
        client.close()
        raise
    return _Begun(stream, sandbox, header.remove)


def _checked(service: SandboxService, spec: CommandSpec) -> int:
    """Bound of the output. What else is wrong with the request is said before anything is made."""
    checked_timeout_ms(service.config, spec.timeout_s)
    return checked_output_bytes(service.config, spec.max_output_bytes)


async def _start(service: SandboxService, sandbox: LiveSandbox, spec: CommandSpec) -> RunningExec:
    return await start_command(service, sandbox, spec, keep=spec.on_disconnect is OnDisconnect.KEEP)


def _stream(
    running: RunningExec,
    spec: CommandSpec,
    max_output_bytes: int,
    send: Send,
    client: Client,
    told: str | None = None,
) -> ExecStream | KeptStream:
    if not running.is_kept:
        return ExecStream(running, max_output_bytes, send, client, told)
    try:
        reader = open_reader(running, "exec", holds=True)
    except BaseException:
        client.close()
        running.kill_soon()
        raise
    return KeptStream(reader, max_output_bytes, send, client, told, spec.on_disconnect)


def _checked_sandbox(body: dict[str, Any]) -> models.CreateSandboxRequest:
    try:
        return models.CreateSandboxRequest.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        raise refusal("create sandbox", ("body", "sandbox", *first["loc"]), first["msg"]) from None


def _told(sandbox: LiveSandbox) -> str:
    told = sandbox_info(sandbox).model_dump_json()
    if len(told.encode()) > MAX_CONTROL_BYTES - _STARTED_ROOM_BYTES:
        raise TooLarge(
            "what is to be told of the sandbox does not fit into one frame",
            operation="create sandbox",
            object=sandbox.sandbox_id,
            cause=f"env and labels are too large together; a frame holds {MAX_CONTROL_BYTES} bytes",
        )
    return told

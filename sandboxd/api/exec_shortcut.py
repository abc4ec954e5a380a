"""The shortcuts of requests that start a command: exec, in a sandbox that exists, and run, in a new
one. The routes of the same paths (sandboxd.api.routes_execs) are only what the OpenAPI document
shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from starlette.types import Send

from sandboxd.api import models
from sandboxd.api.attach_stream import KeptStream
from sandboxd.api.exec_request import parse_header, parse_run_header, read_request
from sandboxd.api.exec_stream import ExecStream
from sandboxd.api.frame_stream import Client
from sandboxd.api.presentation import sandbox_info
from sandboxd.api.refusal import refusal
from sandboxd.api.routes_sandboxes import new_sandbox
from sandboxd.api.shortcuts import ShortRequest
from sandboxd.bounds import checked_output_bytes, checked_timeout_ms
from sandboxd.commands import CommandSpec, start_command
from sandboxd.errors import InvalidRequest, TooLarge
from sandboxd.lifecycle import EndReason
from sandboxd.output_reader import open_reader
from sandboxd.protocol import MAX_CONTROL_BYTES, ExitReason, OnDisconnect
from sandboxd.running_exec import RunningExec
from sandboxd.sandbox import LiveSandbox
from sandboxd.service import SandboxService

# The rest of the frame that tells of a new sandbox.
_STARTED_ROOM_BYTES = 256


@dataclass(frozen=True)
class _Begun:
    """A command that runs, and the sandbox if it was made for it."""

    stream: ExecStream | KeptStream
    made: LiveSandbox | None = None
    remove: bool = False


async def exec_command(request: ShortRequest) -> None:
    """A command in a sandbox that exists."""
    await _go_on(request.context.service, await _begin(request))


async def run_command(request: ShortRequest) -> None:
    """A new sandbox and a command in it."""
    await _go_on(request.context.service, await _begin_in_new(request))


async def _go_on(service: SandboxService, begun: _Begun) -> None:
    try:
        reason = await begun.stream.run()
    finally:
        if begun.made is not None and (begun.remove or not begun.stream.told):
            service.destroy_soon(begun.made)
    if reason is ExitReason.OOM:
        service.counters.oom_kills += 1


async def _begin(request: ShortRequest) -> _Begun:
    """The command is running when this returns."""
    service = request.context.service
    sandbox = service.population.find(request.tenant_uid, request.sandbox_id, "exec")
    spec = await read_request(request.receive, parse_header, service.config.request_timeout_s)
    max_output_bytes = _checked(service, spec)
    sandbox.require_running("exec")
    running = await _start(service, sandbox, spec)
    client = Client(request.receive)
    return _Begun(_stream(running, spec, max_output_bytes, request.send, client))


async def _begin_in_new(request: ShortRequest) -> _Begun:
    """The command is running in a new sandbox when this returns, or nothing is left."""
    service = request.context.service
    timeout_s = service.config.request_timeout_s
    header = await read_request(request.receive, parse_run_header, timeout_s)
    max_output_bytes = _checked(service, header.command)
    wanted = _checked_sandbox(header.sandbox)
    client = Client(request.receive)
    try:
        sandbox = await new_sandbox(
            request.context, request.tenant_uid, wanted, ephemeral=header.remove
        )
        try:
            if client.gone:
                raise InvalidRequest("the request was cut", operation="exec", object="body")
            told = _told(sandbox)
            running = await _start(service, sandbox, header.command)
            stream = _stream(running, header.command, max_output_bytes, request.send, client, told)
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

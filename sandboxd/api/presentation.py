"""Between the bodies of the API and the daemon's own values."""

from __future__ import annotations

from fastapi import Response
from pydantic import BaseModel

from sandboxd.api import models, models_commands, models_templates
from sandboxd.bounds import CreateOptions
from sandboxd.bulk_usage import Reading
from sandboxd.errors import Conflict
from sandboxd.launch_request import Limits
from sandboxd.launched import Usage
from sandboxd.registry import SandboxRecord
from sandboxd.running_exec import RunningExec
from sandboxd.sandbox import LiveSandbox
from sandboxd.templates.recipe import Recipe, RecipeCommand, RecipeFile, WarmCommand
from sandboxd.templates.template import Template


def create_options(
    body: models.SandboxOptions, image: str, *, ephemeral: bool = False
) -> CreateOptions:
    """What a request asks for."""
    return CreateOptions(
        image=image,
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
        lease=body.lease or "",
        ephemeral=ephemeral,
    )


def created(answer: BaseModel) -> Response:
    """The answer that brought something into being. It is a model already: the framework would
    check and convert it once more, which costs as much as the fork of a small sandbox."""
    return answered(answer, 201)


def answered(answer: BaseModel, status: int = 200) -> Response:
    """For the same reason, of what is asked for often or is long."""
    return Response(answer.model_dump_json(), status, media_type="application/json")


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
        limits=_limits_of(record),
        env=record.env,
        cwd=record.cwd,
        user=record.user,
        hostname=record.hostname,
        labels=record.labels,
        created_at=record.created_at,
        expires_at=sandbox.expires_at(),
        init_pid=record.init_pid,
        generation=record.generation_id,
        template=record.template or None,
        lease=record.lease or None,
    )


def sandbox_metrics(sandbox: LiveSandbox, usage: Usage) -> models.SandboxMetrics:
    """What a tenant sees of what it uses."""
    return models.SandboxMetrics(
        memory_bytes=usage.memory_bytes,
        memory_peak_bytes=usage.memory_peak_bytes,
        private_bytes=usage.private_bytes,
        shared_bytes=0 if sandbox.template is None else sandbox.template.shared_bytes,
        cpu_s=usage.cpu_s,
        pids=usage.pids,
        disk_bytes=usage.disk_bytes,
        oom_kills=usage.oom_kills,
        execs_running=sum(each.is_program and each.pid > 0 for each in sandbox.execs.values()),
    )


def sandbox_stats(reading: Reading) -> models.SandboxStats:
    """One of a table of many."""
    sandbox = reading.sandbox
    record = sandbox.record
    assert record is not None, "only those on record are listed"
    return models.SandboxStats(
        id=sandbox.sandbox_id,
        state=sandbox.state.value,
        tenant_uid=sandbox.tenant_uid,
        created_at=record.created_at,
        template=record.template or None,
        lease=record.lease or None,
        limits=_limits_of(record),
        metrics=sandbox_metrics(sandbox, reading.usage),
        read_at_s=reading.read_at_s,
    )


def template_info(template: Template) -> models_templates.TemplateInfo:
    """What a tenant sees of a template."""
    record = template.record
    return models_templates.TemplateInfo(
        id=record.template_id,
        tenant_uid=record.tenant_uid,
        image=record.image,
        parent=record.parent or None,
        sandbox=record.sandbox_id,
        limits=_limits(record.limits),
        env=record.env,
        cwd=record.cwd,
        user=record.user,
        labels=record.labels,
        created_at=record.created_at,
        lease=record.lease or None,
        recipe=record.recipe or None,
        layers=len(record.layers),
        processes=record.counts["processes"],
        threads=record.counts.get("threads", 0),
        mappings=record.counts.get("mappings", 0),
        own_bytes=record.counts.get("extent_bytes", 0),
        inherited_bytes=record.counts.get("inherited_bytes", 0),
        shared_bytes=template.shared_bytes,
    )


def recipe(body: models_templates.BuildTemplateRequest) -> Recipe:
    """What a build is asked for."""
    return Recipe(
        options=create_options(body, body.image or "base"),
        template=body.template or "",
        files=tuple(RecipeFile(each.path, each.content, each.mode) for each in body.files),
        setup=tuple(RecipeCommand(_argv(each.command), each.timeout_s) for each in body.setup),
        warm=tuple(
            WarmCommand(
                _argv(each.command),
                None if each.ready is None else _argv(each.ready),
                each.timeout_s,
            )
            for each in body.warm
        ),
        on_fork=(
            None
            if body.on_fork is None
            else RecipeCommand(_argv(body.on_fork.command), body.on_fork.timeout_s)
        ),
        labels=body.labels,
    )


def _argv(command: str | list[str]) -> tuple[str, ...]:
    return ("/bin/sh", "-c", command) if isinstance(command, str) else tuple(command)


def command_info(running: RunningExec) -> models_commands.CommandInfo:
    """What a tenant sees of a command."""
    exited = running.exited
    return models_commands.CommandInfo(
        exec_id=running.exec_id,
        pid=running.pid,
        running=not running.over,
        argv=list(running.argv),
        kept=running.is_kept,
        inherited=running.is_inherited,
        pty=running.is_terminal,
        exit_code=exited.exit_code if exited is not None and running.pid else None,
        signal=exited.signal if exited is not None else None,
        reason=None if running.reason is None else running.reason.value,
        stdout_bytes=running.stdout.total_bytes if running.stdout else 0,
        stderr_bytes=running.stderr.total_bytes if running.stderr else 0,
    )


def _limits_of(record: SandboxRecord) -> models.SandboxLimits:
    return _limits(Limits(record.memory_bytes, record.pids, record.cpu_cores, record.disk_bytes))


def _limits(limits: Limits) -> models.SandboxLimits:
    return models.SandboxLimits(
        memory_bytes=limits.memory_bytes,
        pids=limits.pids,
        cpu_cores=limits.cpu_cores,
        disk_bytes=limits.disk_bytes,
    )

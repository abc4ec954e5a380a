"""Routes of the daemon itself and of sandboxes."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Callable
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response

import sandboxd
from sandboxd import listing, pausing
from sandboxd.api import models
from sandboxd.api.context import ApiContext, Context, CurrentPeer, LabelQuery, error_answers
from sandboxd.api.presentation import (
    answered,
    create_options,
    created,
    sandbox_info,
    sandbox_metrics,
    sandbox_stats,
)
from sandboxd.bounds import DESTROY, Expiry
from sandboxd.bulk_usage import read_usages
from sandboxd.lifecycle import State
from sandboxd.sandbox import LiveSandbox

router = APIRouter(prefix="/v1", tags=["sandboxes"])


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
        sandboxes=len(service.population.visible(peer.uid)),
        templates=len(context.templates.store.visible(peer.uid, {})),
        standing=context.creation.standing.count,
        pool_bytes=context.templates.pool_bytes(),
        private_bytes=await service.private_bytes(),
        counters=models.Counters(**vars(service.counters)),
        limits=models.DaemonLimits(
            max_sandboxes=config.max_sandboxes,
            max_forks_per_request=config.max_forks_per_request,
            max_templates_per_tenant=config.max_templates_per_tenant,
            max_layers=config.max_layers,
            max_memory_bytes=config.max_memory_bytes,
            max_pids=config.max_pids,
            max_cpu_cores=config.max_cpu_cores,
            max_disk_bytes=config.max_disk_bytes,
            max_execs_per_sandbox=config.max_execs_per_sandbox,
            max_exec_timeout_s=config.max_exec_timeout_s,
        ),
        storage_backend=service.storage_backend,
    )


@router.post(
    "/sandboxes",
    status_code=201,
    response_model=models.SandboxInfo,
    operation_id="create_sandbox",
    responses=error_answers(400, 404, 409, 422, 429, 501, 504, 507),
)
async def create_sandbox(
    body: models.CreateSandboxRequest, request: Request, context: Context, peer: CurrentPeer
) -> Response:
    """Create a sandbox of an image or of a template; it runs when this answers."""
    return await created_sandbox(context, peer.uid, body, request.state.has_left)


async def created_sandbox(
    context: ApiContext,
    tenant_uid: int,
    body: models.CreateSandboxRequest,
    has_left: Callable[[], bool],
) -> Response:
    """The answer to a create."""
    sandbox = await new_sandbox(context, tenant_uid, body)
    if has_left():
        # Nobody will ever learn its id.
        await context.service.destroy(sandbox)
    return created(sandbox_info(sandbox))


async def new_sandbox(
    context: ApiContext,
    tenant_uid: int,
    body: models.CreateSandboxRequest,
    *,
    ephemeral: bool = False,
    expiry: Expiry = DESTROY,
) -> LiveSandbox:
    """What a create asks for, running. `ephemeral`: it goes with the command that it is for."""
    if body.template is None:
        options = create_options(body, body.image or "base", ephemeral=ephemeral)
        options = dataclasses.replace(options, expiry=expiry)
        return await context.creation.create(tenant_uid, options)
    template = context.templates.store.find(tenant_uid, body.template, "create sandbox")
    options = create_options(body, template.record.image, ephemeral=ephemeral)
    options = dataclasses.replace(options, expiry=expiry)
    [sandbox] = await context.templates.fork_template(template, options, 1)
    return sandbox


@router.get("/sandboxes", operation_id="list_sandboxes", responses=error_answers(400))
async def list_sandboxes(
    context: Context,
    peer: CurrentPeer,
    label: LabelQuery = None,
    hostname: str | None = None,
    state: Literal["running", "paused", "stopping"] | None = None,
    lease: str | None = None,
    limit: int = listing.MAX_PAGE,
    after: Annotated[str, Query(description="`next` of the page before")] = "",
) -> models.SandboxList:
    """The peer's sandboxes, or those that have all that is asked for, the oldest first; root sees
    everybody's."""
    wanted = listing.SandboxFilter(
        labels=listing.parse_labels(label or [], "list sandboxes"),
        hostname=hostname,
        state=None if state is None else State(state),
        lease=lease,
    )
    found, following = listing.page(
        context.service.population.visible(peer.uid), wanted, limit, after
    )
    return models.SandboxList(sandboxes=[sandbox_info(each) for each in found], next=following)


@router.get(
    "/sandboxes/{sandbox_id}", operation_id="get_sandbox", responses=error_answers(404, 410)
)
async def get_sandbox(sandbox_id: str, context: Context, peer: CurrentPeer) -> models.SandboxInfo:
    """One sandbox."""
    return sandbox_info(context.service.population.find(peer.uid, sandbox_id, "get sandbox"))


@router.delete(
    "/sandboxes/{sandbox_id}",
    status_code=204,
    operation_id="destroy_sandbox",
    responses=error_answers(404, 409, 410),
)
async def destroy_sandbox(sandbox_id: str, context: Context, peer: CurrentPeer) -> None:
    """End it; when this answers, nothing of it is left."""
    await destroy(context, peer.uid, sandbox_id)


async def destroy(context: ApiContext, tenant_uid: int, sandbox_id: str) -> None:
    """Find it and end it."""
    sandbox = context.service.population.find(tenant_uid, sandbox_id, "destroy sandbox")
    await context.service.destroy(sandbox)


@router.post(
    "/sandboxes/{sandbox_id}/ttl", operation_id="set_ttl", responses=error_answers(400, 404, 410)
)
async def set_ttl(
    sandbox_id: str, body: models.TtlRequest, context: Context, peer: CurrentPeer
) -> models.SandboxInfo:
    """A new time to live, counted from now."""
    sandbox = context.service.population.find(peer.uid, sandbox_id, "set time to live")
    context.service.set_ttl(sandbox, body.ttl_s)
    return sandbox_info(sandbox)


@router.post(
    "/sandboxes/{sandbox_id}/pause",
    operation_id="pause_sandbox",
    responses=error_answers(404, 409, 410),
)
async def pause_sandbox(sandbox_id: str, context: Context, peer: CurrentPeer) -> models.SandboxInfo:
    """Stop all that runs in it, until it is resumed. Its time to live goes on."""
    sandbox = context.service.population.find(peer.uid, sandbox_id, "pause sandbox")
    await pausing.pause(context.service, sandbox)
    return sandbox_info(sandbox)


@router.post(
    "/sandboxes/{sandbox_id}/resume",
    operation_id="resume_sandbox",
    responses=error_answers(404, 409, 410),
)
async def resume_sandbox(
    sandbox_id: str, context: Context, peer: CurrentPeer
) -> models.SandboxInfo:
    """Let a paused sandbox go on."""
    sandbox = context.service.population.find(peer.uid, sandbox_id, "resume sandbox")
    await pausing.resume(context.service, sandbox)
    return sandbox_info(sandbox)


@router.get(
    "/sandboxes/{sandbox_id}/metrics", operation_id="get_metrics", responses=error_answers(404, 410)
)
async def get_metrics(
    sandbox_id: str, context: Context, peer: CurrentPeer
) -> models.SandboxMetrics:
    """What it uses now."""
    sandbox = context.service.population.find(peer.uid, sandbox_id, "get metrics")
    return sandbox_metrics(sandbox, await context.service.usage(sandbox, "get metrics"))


@router.get(
    "/stats",
    operation_id="list_stats",
    response_model=models.SandboxStatsList,
    responses=error_answers(400),
)
async def list_stats(
    context: Context,
    peer: CurrentPeer,
    label: LabelQuery = None,
    lease: str | None = None,
    limit: int = listing.MAX_PAGE,
    after: Annotated[str, Query(description="`next` of the page before")] = "",
) -> Response:
    """What the peer's sandboxes use now, those that have all that is asked for, the oldest first;
    root sees everybody's."""
    labels = listing.parse_labels(label or [], "list stats")
    wanted = listing.SandboxFilter(labels=labels, lease=lease)
    visible = context.service.population.visible(peer.uid)
    found, following = listing.page(visible, wanted, limit, after)
    readings = await read_usages(context.service, found)
    return answered(
        models.SandboxStatsList(
            sandboxes=[sandbox_stats(each) for each in readings], next=following
        )
    )
